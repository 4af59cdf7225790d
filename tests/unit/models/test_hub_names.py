"""Names on the hub, and which file a short name means; expectations follow llama.cpp's own rules by hand."""

import pytest

from terazi.errors import UsageError
from terazi.models.hub import (
    HubReference,
    choose_gguf,
    choose_projector,
    parse_page,
    parse_reference,
    projector_beside,
    quants,
)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("hf:org/repo", HubReference(repository="org/repo")),
        ("org/repo:Q4_K_M", HubReference(repository="org/repo", quant="Q4_K_M")),
        ("hf:org/repo@v1:a/b.gguf", HubReference(repository="org/repo", revision="v1", file="a/b.gguf")),
        ("hf:o-1/r.2_x@refs/pr/3", HubReference(repository="o-1/r.2_x", revision="refs/pr/3")),
        ("hf:org/repo:config.json", HubReference(repository="org/repo", file="config.json")),
    ],
)
def test_references(text: str, reference: HubReference) -> None:
    assert parse_reference(text) == reference
    assert parse_reference(str(reference)) == reference


@pytest.mark.parametrize(
    "text",
    ["hf:", "hf:repo", "hf:a/b/c", "hf:a/b:", "hf:a/b@", "hf:a b/c", "hf:../b", "hf:a/b:../x.gguf", "hf:a/b@../c",
     "hf:a/b:x\n.gguf", "hf:/b", "hf:ä/b", "hf:" + "a" * 500 + "/b"],
)  # fmt: skip
def test_senseless_references(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_reference(text)
    assert "hf:org/repo" in caught.value.hint
    assert caught.value.message.isprintable()


def test_pages_of_the_hub() -> None:
    hub = "https://huggingface.co"
    page = parse_page(f"{hub}/org/repo/blob/main/sub/m-Q4_0.gguf?download=true", hub)
    assert page == HubReference(repository="org/repo", revision="main", file="sub/m-Q4_0.gguf")
    assert parse_page("https://huggingface.co.evil.org/o/r/blob/main/m.gguf", hub) is None
    assert parse_page(f"{hub}/org/repo", hub) is None


NAMES = [
    "BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf", "README.md", "imatrix_unsloth.gguf",
    "m-IQ2_XXS.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m.Q5_K_S.gguf", "mmproj-BF16.gguf", "mmproj-F32.gguf",
    "mtp-m-Q4_K_M.gguf",
]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "quant", "file"),
    [
        (NAMES, None, "m-Q4_K_M.gguf"),
        (NAMES, "q8_0", "m-Q8_0.gguf"),
        (NAMES, "Q5_K_S", "m.Q5_K_S.gguf"),
        (NAMES, "BF16", "BF16/m-BF16-00001-of-00002.gguf"),
        (NAMES, "Q6_K", None),
        (NAMES, "Q4", None),  # the name goes on after it
        (NAMES, "K_M", "m-Q4_K_M.gguf"),  # any part of a name that a dot or a dash ends
        (NAMES, ".*", None),
        (["x-Q8_0.gguf", "x-Q2_K.gguf"], None, "x-Q8_0.gguf"),
        (["x-Q2_K.gguf", "x-Q3_K.gguf"], None, "x-Q2_K.gguf"),
        (["mmproj-Q4_K_M.gguf"], None, None),
        ([], None, None),
        # a folder's name counts as well
        (["Q4_K_M-old/x-F16.gguf"], None, "Q4_K_M-old/x-F16.gguf"),
    ],
)
def test_choice_of_a_file(names: list[str], quant: str | None, file: str | None) -> None:
    assert choose_gguf(names, quant) == file


def test_choice_of_a_projector() -> None:
    # 4 bits lie nearer to 16 than to 32
    assert choose_projector(NAMES, "m-Q4_K_M.gguf") == "mmproj-BF16.gguf"
    assert (
        choose_projector([*NAMES, "BF16/mmproj-F32.gguf"], "BF16/m-BF16-00001-of-00002.gguf")
        == "BF16/mmproj-F32.gguf"
    )
    assert choose_projector(["a/mmproj-F16.gguf"], "b/m-Q4_0.gguf") is None
    assert choose_projector([], "m.gguf") is None


def test_quants_on_offer() -> None:
    assert quants(NAMES) == ("BF16", "IQ2_XXS", "Q4_K_M", "Q8_0", "Q5_K_S")


@pytest.mark.parametrize(
    ("others", "model", "projector"),
    [
        # names as repositories have them: unsloth, ggml-org, Google, bartowski, Qwen
        (["mmproj-F16.gguf", "mmproj-F32.gguf"], "gemma-3-4b-it-UD-Q4_K_XL.gguf", "mmproj-F16.gguf"),
        (["mmproj-gemma-3-4b-it-f16.gguf"], "gemma-3-4b-it-Q4_K_M.gguf", "mmproj-gemma-3-4b-it-f16.gguf"),
        (["mmproj-model-f16-4B.gguf"], "gemma-3-4b-it-q4_0.gguf", "mmproj-model-f16-4B.gguf"),
        (["mmproj-Qwen_Qwen3-VL-8B-Instruct-bf16.gguf"], "Qwen_Qwen3-VL-8B-Instruct-Q6_K.gguf",
         "mmproj-Qwen_Qwen3-VL-8B-Instruct-bf16.gguf"),
        (["Qwen2-VL-7B-mmproj-Q8_0.gguf", "mmproj-Qwen2-VL-7B-F16.gguf"], "Qwen2-VL-7B-Q8_0.gguf",
         "Qwen2-VL-7B-mmproj-Q8_0.gguf"),
        (["mmproj-BF16.gguf"], "M-BF16-00001-of-00002.gguf", "mmproj-BF16.gguf"),
        # another model's, and one that could be either's
        (["mmproj-gemma-3-12b-it-f16.gguf"], "gemma-3-4b-it-Q4_K_M.gguf", None),
        (["mmproj-F16.gguf", "Llama-3.1-8B-Q4_K_M.gguf"], "gemma-3-4b-it-Q4_K_M.gguf", None),
        (["mmproj-F16.gguf", "gemma-3-4b-it-Q8_0.gguf"], "gemma-3-4b-it-Q4_K_M.gguf", "mmproj-F16.gguf"),
        ([], "gemma-3-4b-it-Q4_K_M.gguf", None),
    ],
)  # fmt: skip
def test_the_projector_beside_a_file(others: list[str], model: str, projector: str | None) -> None:
    assert projector_beside([*others, model], model) == projector
