"""A ModelSpec from handmade headers: defaults as the engine's, essential keys, other architectures, non-models."""

from collections.abc import Mapping, Sequence

import pytest

from gguf_writer import ARRAY, BOOL, STRING, UINT32, TensorRow, Typed, header
from terazi.errors import ModelFileError
from terazi.models.from_gguf import build_spec
from terazi.models.gguf import GgufHeader, header_from_bytes
from terazi.models.spec import ModelSpec

LLAMA: dict[str, object] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 4096,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 172,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
}
TENSORS: list[TensorRow] = [
    ("token_embd.weight", (64, 100), "q4_0"),
    ("blk.0.attn_q.weight", (64, 64), "q4_0"),
    ("blk.0.attn_norm.weight", (64,), "f32"),
    ("blk.1.attn_norm.weight", (64,), "f32"),
]


def part(
    keys: Mapping[str, object], tensors: Sequence[TensorRow] = TENSORS, path: str = "d/some-model.gguf"
) -> GgufHeader:
    raw, data = header({k: v for k, v in keys.items() if v is not None}, tensors)
    return header_from_bytes(raw, path, len(raw) + data)


def spec(changes: Mapping[str, object] | None = None, tensors: Sequence[TensorRow] = TENSORS) -> ModelSpec:
    return build_spec([part({**LLAMA, **(changes or {})}, tensors)], origin="x")


def refusal(changes: Mapping[str, object], tensors: Sequence[TensorRow] = TENSORS) -> str:
    with pytest.raises(ModelFileError) as caught:
        spec(changes, tensors)
    assert caught.value.message.startswith("d/some-model.gguf ")
    assert caught.value.hint
    return caught.value.message


def test_scalars_become_one_number_for_each_layer() -> None:
    model = spec()
    assert model.head_count == (8, 8)
    assert model.head_count_kv == (2, 2)
    assert model.feed_forward_length == (172, 172)
    assert (model.key_length, model.value_length) == (8, 8)
    assert (model.block_count, model.context_length, model.embedding_length) == (2, 4096, 64)
    assert (model.expert_count, model.expert_used_count, model.sliding_window) == (0, 0, None)
    assert model.parameter_count == 64 * 100 + 64 * 64 + 64 + 64
    assert model.weights_bytes == (6400 + 4096) // 32 * 18 + 512
    assert model.origin == "x"
    assert model.files[0].path == "d/some-model.gguf"


def test_arrays_differ_by_layer_and_zero_means_no_cache() -> None:
    model = spec({"llama.attention.head_count_kv": [0, 4], "llama.feed_forward_length": [10, 20]})
    assert model.head_count_kv == (0, 4)
    assert model.feed_forward_length == (10, 20)


def test_kv_heads_default_to_heads_and_explicit_lengths_win() -> None:
    model = spec(
        {
            "llama.attention.head_count_kv": None,
            "llama.attention.key_length": 192,
            "llama.attention.value_length": 128,
        }
    )
    assert model.head_count_kv == (8, 8)
    assert (model.key_length, model.value_length) == (192, 128)


def test_model_without_attention() -> None:
    model = build_spec(
        [
            part(
                {
                    "general.architecture": "mamba",
                    "mamba.block_count": 3,
                    "mamba.context_length": 2**20,
                    "mamba.embedding_length": 64,
                    "mamba.feed_forward_length": 0,
                    "mamba.attention.head_count": 0,
                    "mamba.ssm.state_size": 16,
                }
            )
        ]
    )
    assert model.head_count == model.head_count_kv == model.feed_forward_length == (0, 0, 0)
    assert (model.key_length, model.value_length) == (0, 0)
    assert model.metadata["mamba.ssm.state_size"] == 16


def test_unknown_and_encoder_only_architectures_are_no_error() -> None:
    for arch in ("bert", "nobody-knows-9"):
        keys = {k.replace("llama", arch): v for k, v in LLAMA.items()} | {
            "general.architecture": arch,
            f"{arch}.attention.causal": False,
        }
        assert build_spec([part(keys)]).architecture == arch


def test_experts_and_window() -> None:
    model = spec(
        {"llama.expert_count": 8, "llama.expert_used_count": [1, 2], "llama.attention.sliding_window": 1024}
    )
    assert (model.expert_count, model.expert_used_count, model.sliding_window) == (8, 2, 1024)
    assert spec({"llama.attention.sliding_window": 0}).sliding_window is None


def test_vocabulary_size_is_the_engines_count_of_tokens() -> None:
    assert spec().vocab_size == 100  # rows of the embedding matrix, when the file says nothing else
    assert spec({"llama.vocab_size": 90}).vocab_size == 90
    assert spec({"llama.vocab_size": 90, "tokenizer.ggml.tokens": ["a", "b"]}).vocab_size == 2
    many = [f"t{i}" for i in range(5000)]
    assert spec({"llama.vocab_size": 90, "tokenizer.ggml.tokens": many}).vocab_size == 5000


@pytest.mark.parametrize(
    ("file_type", "name"),
    [(15, "Q4_K_M"), (7, "Q8_0"), (38, "MXFP4_MOE"), (1024 + 2, "Q4_0"), (None, "Q4_0"), (9999, "Q4_0")],
)
def test_quantisation_name(file_type: int | None, name: str) -> None:
    assert spec({"general.file_type": file_type}).quantisation == name


def test_name_and_template() -> None:
    assert spec().name == "some-model"
    assert spec({"general.name": "Some Model"}).name == "Some Model"
    assert not spec().chat_template
    assert spec({"tokenizer.chat_template": "{{ x }}"}).chat_template


@pytest.mark.parametrize(
    "key", ["llama.block_count", "llama.context_length", "llama.embedding_length", "general.architecture"]
)
def test_missing_essential_key_is_named(key: str) -> None:
    assert f"lacks the key {key}" in refusal({key: None})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 0),
        ("llama.block_count", 2**32 - 1),
        ("llama.block_count", "two"),
        ("llama.block_count", Typed(BOOL, True)),
        ("llama.context_length", -1),
        ("llama.embedding_length", 1.5),
        ("llama.embedding_length", [64]),
        ("llama.attention.head_count", "8"),
        ("llama.attention.head_count", [8, 8, 8]),
        ("llama.attention.head_count_kv", Typed(ARRAY, [2] * 2000, UINT32)),
        ("llama.feed_forward_length", Typed(ARRAY, ["a", "b"], STRING)),
        ("llama.expert_count", -5),
        ("llama.attention.sliding_window", "wide"),
    ],
)
def test_senseless_values_are_named(key: str, value: object) -> None:
    assert f"under {key}" in refusal({key: value})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"general.type": "adapter"}, "LoRA adapter"),
        ({"general.type": "mmproj", "general.architecture": "clip"}, "vision or audio"),
        ({"general.architecture": "clip"}, "vision or audio"),
        ({"general.type": "imatrix"}, "importance matrix"),
        ({"general.architecture": "controlvector"}, "control vector"),
        ({"general.architecture": 7}, "general.architecture"),
        ({"general.architecture": " "}, "general.architecture"),
    ],
)
def test_files_that_are_no_model(changes: dict[str, object], word: str) -> None:
    assert word in refusal(changes)


def test_vocabulary_alone_is_no_model() -> None:
    assert "holds no tensors" in refusal({}, [])
