"""Reading logs that the real engine wrote (build b11434), in pieces of any size.

The ``cuda-*`` and ``recovered-*`` texts are the exception: put together from the format strings of that build's
source, for want of a full graphics card.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.engines.llama_cpp.observe import LoadReport, LogReader

GOLDEN = Path(__file__).parents[3] / "golden" / "llama_cpp"
LOGS = {path.stem.removeprefix("log-"): path.read_text() for path in GOLDEN.glob("log-*.txt")}
FAILURES = {path.stem.removeprefix("fail-"): path.read_text() for path in GOLDEN.glob("fail-*.txt")}
RECOVERED = (GOLDEN / "recovered-pipeline.txt").read_text()
MIB = 1024 * 1024


def read(text: str) -> LogReader:
    """A reader that has seen all of *text*."""
    reader = LogReader()
    reader.feed(text)
    reader.close()
    return reader


def mib(report: LoadReport) -> dict[tuple[str, str], float]:
    """Sums in MiB as the log prints them."""
    return {key: round(n / MIB, 2) for key, n in report.sums().items()}


def test_cpu_load() -> None:
    report = read(LOGS["smollm2"]).report
    assert mib(report) == {
        ("weights", "Host"): 92.10,
        ("output", "Host"): 0.38,
        ("kv", "Host"): 90.00,
        ("compute", "Host"): 16.64,
    }
    assert (report.n_ctx, report.n_slots, report.kv_unified, report.flash_attn) == (4096, 2, False, True)
    assert (report.offloaded, report.build, report.loaded) == ((31, 31), "b0-unknown", True)


def test_rpc_buffers_find_their_device_by_address() -> None:
    sums = mib(read(LOGS["rpc"]).report)
    assert (sums["weights", "RPC0"], sums["weights", "RPC1"]) == (29.59, 39.26)
    assert (sums["kv", "Host"], sums["kv", "RPC0"], sums["kv", "RPC1"]) == (16.50, 21.00, 7.50)
    assert (sums["compute", "RPC0"], sums["compute", "Host"]) == (12.26, 15.64)


def test_two_caches_and_repacked_weights_are_summed_on_the_host() -> None:
    sums = mib(read(LOGS["gemma"]).report)
    assert sums["weights", "Host"] == pytest.approx(235.16 + 12.66, abs=0.011)
    assert sums["kv", "Host"] == 54.00


def test_layers_are_read_where_they_are_printed() -> None:
    report = read(LOGS["layers-debug"]).report
    assert dict(report.layers) == dict.fromkeys(range(31), "Host")


@given(st.sampled_from(sorted(LOGS)), st.lists(st.integers(1, 400), max_size=60))
def test_pieces_of_any_size_give_the_same_report(name: str, sizes: list[int]) -> None:
    text, reader, at = LOGS[name], LogReader(), 0
    for size in sizes:
        reader.feed(text[at : at + size])
        at += size
    reader.feed(text[at:])
    reader.close()
    assert reader.report == read(text).report


def test_lines_and_dots_are_progress_and_silence_is_not() -> None:
    reader = LogReader()
    assert not reader.feed("")
    assert not reader.feed("load_tensors: loading")
    assert reader.feed(" model\n")
    assert reader.feed("...")


def test_reserved_again_counts_once() -> None:
    line = "sched_reserve:      CUDA0 compute buffer size =   {} MiB\n"
    text = "llama_context: constructing llama_context\nsched_reserve: reserving ...\n" + line.format("300.00")
    text += "sched_reserve: reserving ...\n" + line.format("100.00")
    assert mib(read(text).report) == {("compute", "CUDA0"): 100.00}


def test_pinned_and_repacked_buffers_are_the_hosts() -> None:
    reader = LogReader()
    names = ("CPU", "CPU_Mapped", "CPU_REPACK", "CUDA_Host", "Vulkan_Host", "CUDA1", "MTL0_Mapped", "RPC0[a:1]")
    devices = [reader.device_of(name) for name in names]
    assert devices == ["Host", "Host", "Host", "Host", "Host", "CUDA1", "MTL0", "RPC0[a:1]"]


def test_endless_line_is_not_kept() -> None:
    reader = LogReader()
    for _ in range(100):
        reader.feed("x" * 10_000)
    assert len(reader._rest) <= 4096


CAUSES = {
    "architecture": ("doesn't know the architecture 'zzzzz'", "never"),
    "argument": ("doesn't know the flag --nonsense", "never"),
    "cuda-compute": ("memory ran out for the compute buffers", "back-off"),
    "cuda-weights": ("memory ran out on CUDA1 for the weights", "back-off"),
    "magic": ("not a GGUF model: it begins with 'garb'", "never"),
    "missing-tensor": ("lacks the tensor blk.7.attn_q.weight", "never"),
    "no-file": ("can't be opened: No such file or directory", "never"),
    "port": ("port 18472 on 127.0.0.1 is taken", "at-once"),
    "ram": ("RAM ran out (41.96 MB asked)", "back-off"),
    "rpc-gone": ("the RPC server 127.0.0.1:18601 doesn't answer", "back-off"),
    "truncated": ("cut off: token_embd.weight", "never"),
    "v-cache": ("a quantised V cache needs Flash Attention", "never"),
}


def test_every_captured_failure_has_an_expected_cause() -> None:
    assert CAUSES.keys() == FAILURES.keys()


@pytest.mark.parametrize("name", sorted(CAUSES))
def test_cause_is_the_most_specific_line(name: str) -> None:
    failure = read(FAILURES[name]).failure
    cause, retry = CAUSES[name]
    assert failure is not None
    assert cause in failure.cause
    assert failure.retry.value == retry
    assert failure.line in FAILURES[name]
    assert failure.remedy.endswith((".", ")"))


@pytest.mark.parametrize("name", sorted(LOGS))
def test_successful_load_has_no_failure(name: str) -> None:
    assert read(LOGS[name]).failure is None


def test_last_words_without_their_purpose_still_name_the_device() -> None:
    """Older builds call the function otherwise, and a KV cache is allocated by the same one."""
    line = "alloc_tensor_range: failed to allocate ROCm0 buffer of size 1024\n"
    failure = read(line).failure
    assert failure is not None
    assert failure.cause == "memory ran out on ROCm0 (1024 bytes asked)"
    kv = read(line + "llama_init_from_model: failed to allocate buffer for kv cache\n").failure
    assert kv is not None
    assert "KV cache" in kv.cause


def test_recovered_allocation_is_no_failure_and_a_later_one_is() -> None:
    assert read(RECOVERED).failure is None
    again = read(RECOVERED + "E llama_context: failed to allocate compute pp buffers\n").failure
    assert again is not None


@pytest.mark.parametrize(
    "line",
    [
        "W common_fit_params: failed to fit params to free device memory: n_gpu_layers already set by user to 60",
        "E common_fit_params: encountered an error while trying to fit params to free device memory: failed",
        "W warning: failed to allocate 512.00 MiB of pinned memory: out of memory",
        "W no usable GPU found, --gpu-layers option will be ignored",
    ],
)
def test_lines_that_sound_worse_than_they_are(line: str) -> None:
    assert read(line + "\n").failure is None


def test_text_of_a_model_in_braces_is_quoted_as_it_is() -> None:
    failure = read("error loading model: weird {0} {x} name\n").failure
    assert failure is not None
    assert "weird {0} {x} name" in failure.cause


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    read(text + "\n")


def test_buffers_beside_the_model_are_told_from_its_own() -> None:
    reader = LogReader()
    reader.feed(
        "llama_adapter_lora_init_impl: CPU_Mapped LoRA buffer size =     3.52 MiB\n"
        "reserve_compute_meta:        CPU compute buffer size =     0.86 MiB\n"
        "sched_reserve:        CPU compute buffer size =    16.64 MiB\n"
    )
    found = [(buffer.term, buffer.device) for buffer in reader.report.buffers]
    assert found == [("adapter", "Host"), ("encoder", "Host"), ("compute", "Host")]
