"""vLLM's command lines, as its parser takes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.engines.vllm.arguments import settings_argv
from terazi.engines.vllm.commands import parse_command
from terazi.engines.vllm.values import human_int
from terazi.errors import UsageError
from terazi.memory.vllm.settings import Speculation, VllmSettings
from terazi.units import GIB


def read(text: str, **environment: str) -> VllmSettings:
    return parse_command(["vllm", "serve", "m", *text.split()], environment).settings


@pytest.mark.parametrize(
    "argv",
    [
        ["vllm", "serve", "org/model", "-tp", "2"],
        ["/opt/venv/bin/vllm", "serve", "-tp", "2", "org/model"],
        ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "org/model", "--tensor-parallel-size=2"],
        ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model=org/model", "--tensor_parallel_size", "2"],
    ],
)
def test_the_model_is_found_however_it_is_named(argv: list[str]) -> None:
    command = parse_command(argv)
    assert (command.model, command.settings.tensor_parallel) == ("org/model", 2)
    assert command.unknown_flags == ()


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("--max-model-len 4k", VllmSettings(max_model_len=4000)),
        ("--max-model-len 4K", VllmSettings(max_model_len=4096)),
        ("--max-model-len=auto", VllmSettings(max_model_len=-1)),
        ("--max-model-len -1", VllmSettings(max_model_len=-1)),
        ("--max_num_batched_tokens 8K", VllmSettings(max_num_batched_tokens=8192)),
        ("--max-num-seqs 64", VllmSettings(max_num_seqs=64)),
        ("--kv-cache-memory-bytes 2G", VllmSettings(kv_cache_memory_bytes=2 * GIB)),
        ("--gpu-memory-util 0.8 --enforce-eager", VllmSettings(gpu_memory_utilization=0.8, enforce_eager=True)),
        ("--enforce-eager --no-enforce-eager", VllmSettings()),
        ("--no-enable-prefix-caching", VllmSettings(prefix_caching=False)),
        ("--disable-hybrid-kv-cache-manager", VllmSettings(hybrid_kv_cache=False)),
        ("-pp 2 -dp 4 -ep", VllmSettings(pipeline_parallel=2, data_parallel=4, expert_parallel=True)),
        ("--cpu-offload-gb 1.5", VllmSettings(cpu_offload_bytes=3 * GIB // 2)),
        ("--dtype half --kv-cache-dtype fp8", VllmSettings(dtype="half", kv_cache_dtype="fp8")),
        ("-q fp8", VllmSettings(quantization="fp8")),
        (
            "--speculative-config.method ngram --speculative-config.num_speculative_tokens 4",
            VllmSettings(speculation=Speculation(method="ngram", tokens=4)),
        ),
    ],
)  # fmt: skip
def test_settings(text: str, settings: VllmSettings) -> None:
    assert read(text) == settings


def test_a_draft_model_is_read_from_json() -> None:
    command = parse_command(
        [
            "vllm",
            "serve",
            "m",
            "-sc",
            '{"model": "d", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 1}',
        ]
    )
    assert command.settings.speculation == Speculation(method="draft_model", tokens=5, model="d", tensor_parallel=1)


def test_variables_count_above_flags() -> None:
    settings = read("--kv-cache-memory-bytes 5G", VLLM_CPU_KVCACHE_SPACE="2", VLLM_PP_LAYER_PARTITION="3,5")
    assert (settings.kv_cache_memory_bytes, settings.layer_partition) == (2 * GIB, (3, 5))
    assert read("", VLLM_ALLOW_LONG_MAX_MODEL_LEN="1").enable_long_length


def test_flags_that_the_build_lacks_are_named_with_what_to_do() -> None:
    command = parse_command(["vllm", "serve", "m", "--swap-space", "4", "--make-it-fast", "--port", "8000"])
    assert command.unknown_flags == ("--swap-space", "--make-it-fast")
    assert any("--kv-offloading-size" in note for note in command.notes)


def test_flags_whose_memory_is_not_counted_are_said() -> None:
    command = parse_command(["vllm", "serve", "m", "--enable-lora", "--lora-modules", "a=b", "c=d", "-tp", "2"])
    assert command.settings.tensor_parallel == 2
    assert any("LoRA" in note for note in command.notes)


@pytest.mark.parametrize(
    "text",
    [
        "--tensor-parallel-size two",
        "--max-num-seqs 0",
        "--gpu-memory-utilization 1.5",
        "--max-model-len 1.5K",
        "--speculative-config {",
        "--speculative-config {}x",
        "--speculative-config.method ngram",
        "--max-num-seqs",
    ],
)
def test_what_vllm_would_not_take_is_an_error(text: str) -> None:
    with pytest.raises(UsageError):
        read(text)


@pytest.mark.parametrize(
    "argv", [["vllm"], ["vllm", "bench", "m"], ["python", "-m", "vllm.entrypoints.llm"], ["python"]]
)
def test_other_programs_are_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_command(argv)


@given(
    st.builds(
        VllmSettings,
        tensor_parallel=st.integers(1, 16),
        pipeline_parallel=st.integers(1, 4),
        max_model_len=st.none() | st.integers(-1, -1) | st.integers(1, 10**7),
        max_num_seqs=st.none() | st.integers(1, 4096),
        kv_cache_memory_bytes=st.none() | st.integers(1, 2**42),
        gpu_memory_utilization=st.sampled_from([0.92, 0.5, 0.875]),
        enforce_eager=st.booleans(),
        expert_parallel=st.booleans(),
        prefix_caching=st.none() | st.booleans(),
        hybrid_kv_cache=st.none() | st.booleans(),
        kv_cache_dtype=st.sampled_from(["auto", "fp8"]),
        speculation=st.none() | st.just(Speculation(method="ngram", tokens=3)),
    )
)
def test_what_is_written_reads_back_the_same(settings: VllmSettings) -> None:
    command = parse_command(settings_argv(settings, "org/model"))
    assert (command.settings, command.model, command.unknown_flags) == (settings, "org/model", ())


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), ("4k", 4000), ("4K", 4096), ("25.6k", 25_600), ("1M", 2**20), ("2t", 2 * 10**12)]
)
def test_sizes_as_people_write_them(text: str, number: int) -> None:
    assert human_int(text) == number
