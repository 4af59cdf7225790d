"""The kinds of host memory that a bill tells, against what the kernel says of the real process.

Linux only: /proc/PID/smaps_rollup splits what a process holds into anonymous pages and pages of files.
"""

import contextlib
import json
import re
import subprocess
import urllib.request
from collections.abc import Generator
from pathlib import Path

import pytest

import family_twins
import llama_engine
from bill_log import stand_ins
from terazi.engines.llama_cpp.commands import parse_command
from terazi.hardware.probe import read_machine
from terazi.memory.bill import HOST, Bill, Memory
from terazi.memory.llama_cpp.bill import weigh
from terazi.models.sources import load_model
from terazi.supervisor.process import free_port

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024
#: The heap is a straight line through measurements, and a compute buffer is touched only as far as it is used.
TOLERANCE = 8 * MIB
#: More than a micro-batch, so that the buffers are touched.
PROMPT = 520


def bill_of(command: list[str]) -> Bill:
    parsed = parse_command(command)
    assert parsed.model_path is not None
    devices = stand_ins(len(parsed.settings.rpc))
    return weigh(load_model(parsed.model_path), parsed.settings, devices, llama_engine.isa())


@contextlib.contextmanager
def used_server(arguments: list[str]) -> Generator[int, None, None]:
    """A server that has answered one prompt; yields its pid."""
    port = free_port()
    command = [str(llama_engine.SERVER), "--host", "127.0.0.1", "--port", str(port), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            lines, loaded = llama_engine.read_until(process, "listening on", 60.0)
            assert loaded, "\n".join(lines[-30:])
            body = json.dumps({"prompt": [100 + i % 50 for i in range(PROMPT)], "n_predict": 2}).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", body)
            with urllib.request.urlopen(request, timeout=120) as answer:
                assert answer.status == 200
            yield process.pid
        finally:
            process.kill()


def held(pid: int, name: str) -> int:
    """Bytes of ``Rss``, ``Anonymous``, ``Locked``, ... of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


def promised(bill: Bill, *kinds: Memory) -> int:
    """What a used process holds of *kinds*: lines, mapped gaps, itself, and the work buffer of its first batch."""
    work = [line for line in bill.growth if line.formula == "cpu-work"]
    lines = (*bill.lines, *bill.page_cache, *bill.process, *work)
    return sum(line.bytes for line in lines if line.device == HOST and line.memory in kinds)


@pytest.mark.parametrize(
    ("model", "mode"),
    [*(("smollm2", mode) for mode in ("auto", "none", "mlock", "mmap+mlock", "dio")), ("gemma3", "auto")],
)
def test_kinds_of_memory_are_what_the_kernel_says(model: str, mode: str, models: dict[str, Path]) -> None:
    # no checkpoints: they are growth
    options = ["-c", "2048", "-np", "1", "-fit", "off", "--load-mode", mode, "-ctxcp", "0"]
    command = ["llama-server", "-m", str(models[model]), *options]
    bill = bill_of(command)
    with used_server(command[1:]) as pid:
        anonymous, every = held(pid, "Anonymous"), held(pid, "Rss")
        locked = int(re.findall(r"VmLck:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) * 1024
    mapped = mode in {"auto", "mmap+mlock"}
    # locked pages of the file are no anonymous ones
    kinds = (Memory.ANONYMOUS,) if mapped else (Memory.ANONYMOUS, Memory.PINNED)
    expected, untouched = promised(bill, *kinds), bill.on(HOST).compute_bytes
    assert expected - untouched - TOLERANCE < anonymous < expected + TOLERANCE
    assert every - anonymous == pytest.approx(promised(bill, *Memory) - expected, abs=TOLERANCE / 2)
    assert (every - anonymous > load_model(str(models[model])).weights_bytes / 2) is mapped
    if locked:  # else the kernel's limit forbids it, and the engine goes on without
        assert locked == pytest.approx(pinned_weights(bill), abs=MIB)
    elif "mlock" in mode:
        limit = read_machine().host.memlock_limit_bytes
        assert limit is not None
        assert limit < pinned_weights(bill)


def pinned_weights(bill: Bill) -> int:
    return sum(line.bytes for line in bill.lines if line.memory is Memory.PINNED)


def test_a_server_of_a_device_and_its_client(models: dict[str, Path]) -> None:
    """The device's share is held by the RPC server; the client keeps the input table, and drops what it sent."""
    with llama_engine.rpc_processes(1) as servers:
        ((endpoint, server),) = servers.items()
        options = ["-c", "2048", "-np", "1", "-fit", "off", "--rpc", endpoint, "-ngl", "99"]
        command = ["llama-server", "-m", str(models["smollm2"]), *options]
        bill = bill_of(command)
        idle = held(server, "Rss")
        rpc_process = bill.process_bytes("RPC0")
        assert idle < rpc_process + 4 * MIB
        with used_server(command[1:]) as pid:
            client = held(pid, "Anonymous")
            remote = held(server, "Rss")
    expected, untouched = promised(bill, Memory.ANONYMOUS), bill.on(HOST).compute_bytes
    # the allocator of the C library may keep the last messages, at both ends
    assert expected - untouched - TOLERANCE < client < expected + largest(bill, HOST) + TOLERANCE
    share = bill.on("RPC0").total_bytes + rpc_process
    assert share - bill.on("RPC0").compute_bytes - TOLERANCE < remote < share + largest(bill, "RPC0") + TOLERANCE


def largest(bill: Bill, device: str) -> int:
    return sum(line.bytes for line in bill.loading if line.device == device)


@pytest.mark.parametrize("lazy", ["on", "off"])
@pytest.mark.parametrize("mode", ["mmap", "none"])
def test_a_lazily_read_table_has_a_mapping_of_its_own(lazy: str, mode: str, tmp_path: Path) -> None:
    twin = family_twins.write_twin(tmp_path, "gemma4")
    options = ["-c", "512", "-np", "1", "-fit", "off", "-lzm", lazy, "-lm", mode, "--no-repack"]
    log = llama_engine.run_server(["-m", str(twin), *options])
    bill = bill_of(["llama-server", "-m", str(twin), *options])
    lines = {line.formula: line.bytes for line in bill.lines if line.formula.startswith("weights.")}
    table = lines.get("weights.lazy", 0)
    assert bool(table) is (lazy == "on")
    assert len(log.weights[HOST]) == len(lines)
    # the log counts the table in the mapping around it too, which the bill doesn't
    again = table if mode == "mmap" else 0
    gap = sum(line.bytes for line in bill.page_cache)
    assert sum(log.weights[HOST]) == pytest.approx((sum(lines.values()) + gap + again) / MIB, abs=0.02)
