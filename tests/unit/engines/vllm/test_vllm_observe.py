"""The log of a starting engine: real ones of build 0.32.0 on CPU, and lines of its GPU worker."""

from pathlib import Path

import pytest

from terazi.engines.vllm.observe import LoadReport, read_log
from terazi.units import GIB

LOGS = {path.stem: path.read_text() for path in (Path(__file__).parents[3] / "golden/vllm/logs").glob("*.log")}


def report(name: str) -> LoadReport:
    return read_log(LOGS[name].splitlines())


def test_a_cache_of_a_given_size() -> None:
    found = report("cpu_explicit")
    assert (found.kv_tokens, found.max_model_len, found.concurrency, found.ready) == (46_592, 8192, 5.69, True)
    assert found.available_bytes == ((0, GIB),)
    assert found.failure is None


def test_two_ranks_say_each_what_they_have() -> None:
    found = report("cpu_two_ranks")
    assert (found.kv_tokens, found.available_bytes) == (262_144, ((0, GIB), (1, GIB)))


def test_a_share_of_the_host_says_what_else_was_held() -> None:
    found = report("cpu_share")
    assert found.kv_tokens == 82_816
    assert found.consumed_bytes == round(1.09 * GIB)


def test_a_cache_that_is_too_small_is_the_failure_and_says_what_fits() -> None:
    failure = report("cpu_too_small").failure
    assert failure is not None
    assert (failure.code, failure.longest) == ("cache", 4352)


def test_heads_that_do_not_divide() -> None:
    failure = report("heads").failure
    assert failure is not None
    assert failure.code == "heads"


def test_what_a_card_measures() -> None:
    found = read_log(
        [
            "(Worker_TP1 pid=9) INFO Model loading took 7.51 GiB memory and 4.1 seconds",
            "(Worker_PP0_TP0 pid=8) INFO 11-30 13:16:30 [gpu_model_runner.py:1] Model loading took 7.52 GiB memory",
            "(Worker_TP0 pid=8) INFO 11-30 13:16:31 [gpu_worker.py:9] Available KV cache memory: 11.25 GiB",
            "(EngineCore pid=7) INFO 11-30 13:16:31 [kv_cache_utils.py:2327] GPU KV cache size: 92,144 tokens",
            "(Worker_TP0 pid=8) INFO CUDA graph pool memory: 0.62 GiB (actual), 0.5 GiB (estimated)",
            "(EngineCore pid=7) INFO Setting attention block size to 544 tokens to ensure that",
            "(EngineCore pid=7) INFO Auto-fit max_model_len: reduced from 131072 to 92144 to fit",
        ]
    )  # fmt: skip
    assert found.weights_bytes == ((0, round(7.52 * GIB)), (1, round(7.51 * GIB)))
    assert found.available_bytes == ((0, round(11.25 * GIB)),)
    assert (found.graphs_bytes, found.block_size, found.max_model_len) == (round(0.62 * GIB), 544, 92_144)
    assert not found.ready


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("ValueError: No available memory for the cache blocks. Try increasing", "blocks"),
        ("ValueError: User-specified max_model_len (9000) is greater than the derived max_model_len", "length"),
        ("ValueError: Free memory on device cuda:0 (3.1/24.0 GiB) on startup is less than desired GPU", "free"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "memory"),
        ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0", "dtype"),
        ("api_server.py: error: unrecognized arguments: --swap-space 4", "flags"),
    ],
)
def test_failures_by_their_own_line(line: str, code: str) -> None:
    noise = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    failure = read_log([line, noise]).failure
    assert failure is not None
    assert (failure.code, failure.evidence) == (code, line)


def test_a_symptom_alone_is_no_cause() -> None:
    assert read_log(["vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."]).failure is None
