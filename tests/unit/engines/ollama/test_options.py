"""Variables and parameters of Ollama: what is read, what is named, what is refused."""

from typing import Any

import pytest

from terazi.engines.ollama.options import with_environment, with_parameters
from terazi.errors import UsageError
from terazi.memory.ollama.settings import OllamaSettings


def environment(**variables: str) -> tuple[OllamaSettings, tuple[str, ...]]:
    return with_environment(OllamaSettings(), variables)


def parameters(**given: Any) -> tuple[OllamaSettings, tuple[str, ...]]:
    return with_parameters(OllamaSettings(), given)


@pytest.mark.parametrize(
    ("variables", "changed"),
    [
        ({"OLLAMA_NUM_PARALLEL": "4"}, {"num_parallel": 4}),
        ({"OLLAMA_NUM_PARALLEL": "0"}, {"num_parallel": 1}),
        ({"OLLAMA_CONTEXT_LENGTH": ' "8192" '}, {"context_length": 8192}),
        ({"OLLAMA_KV_CACHE_TYPE": "Q8_0"}, {"kv_cache_type": "q8_0"}),
        ({"OLLAMA_FLASH_ATTENTION": "1"}, {"flash_attention": True}),
        ({"OLLAMA_FLASH_ATTENTION": "false"}, {"flash_attention": False}),
        ({"OLLAMA_FLASH_ATTENTION": "perhaps"}, {"flash_attention": True}),
        ({"OLLAMA_FLASH_ATTENTION": ""}, {}),
        ({"OLLAMA_SCHED_SPREAD": "true"}, {"sched_spread": True}),
        ({"LLAMA_ARG_FIT": "off"}, {"fit": False}),
        ({"LLAMA_ARG_FIT_TARGET": "512"}, {"fit_target_mib": 512}),
        ({"OLLAMA_HOST": "0.0.0.0", "PATH": "/bin", "OLLAMA_DEBUG": "1"}, {}),
    ],
)
def test_variables(variables: dict[str, str], changed: dict[str, Any]) -> None:
    asked, notes = environment(**variables)
    assert asked == OllamaSettings(**changed)
    assert notes == ()


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"OLLAMA_NUM_PARALEL": "4"}, "has no variable OLLAMA_NUM_PARALEL"),
        ({"OLLAMA_MAX_LOADED_MODELS": "2"}, "not applied"),
        ({"OLLAMA_KEEP_ALIVE": "-1"}, "not applied"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "--on"),
        ({"OLLAMA_NUM_PARALLEL": "many"}, "goes on with 1"),
        ({"OLLAMA_CONTEXT_LENGTH": "-5"}, "goes on with 0"),
        ({"OLLAMA_CONTEXT_LENGTH": "9" * 500}, "goes on with 0"),
        ({"OLLAMA_GPU_OVERHEAD": "1000"}, "default context only"),
    ],
)
def test_variables_that_are_named(variables: dict[str, str], says: str) -> None:
    _, notes = environment(**variables)
    assert len(notes) == 1
    assert says in notes[0]


def test_a_cache_type_that_would_not_start() -> None:
    with pytest.raises(UsageError) as caught:
        environment(OLLAMA_KV_CACHE_TYPE="q9")
    assert "q8_0" in caught.value.hint


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"num_ctx": 4096, "stop": ["a"], "temperature": 0.1}, {"num_ctx": 4096}),
        ({"num_ctx": "4096"}, {"num_ctx": 4096}),
        ({"num_ctx": 4096.7}, {"num_ctx": 4096}),
        ({"num_gpu": 0, "main_gpu": 1, "num_batch": 256}, {"num_gpu": 0, "main_gpu": 1, "num_batch": 256}),
        ({"use_mmap": False}, {"use_mmap": False}),
        ({"use_mmap": "true"}, {"use_mmap": True}),
        ({"draft_num_predict": 2}, {"draft_num_predict": 2}),
    ],
)
def test_parameters(given: dict[str, Any], changed: dict[str, Any]) -> None:
    assert parameters(**given) == (OllamaSettings(**changed), ())


def test_parameters_that_are_named() -> None:
    _, notes = parameters(num_cxt=5, use_mlock=True)
    assert "num_cxt" in notes[0]
    assert "no longer" in notes[1]


@pytest.mark.parametrize(
    "given",
    [{"num_ctx": "many"}, {"num_ctx": None}, {"num_ctx": 2**40}, {"num_ctx": -5}, {"num_ctx": True},
     {"use_mmap": "maybe"}, {"num_gpu": float("inf")}, {"num_gpu": float("nan")}, {"num_ctx": [1]}],
)  # fmt: skip
def test_parameters_that_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        parameters(**given)
    assert "PARAMETER" in caught.value.hint
