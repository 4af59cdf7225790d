"""Asking llama.cpp itself what a configuration takes: which commands to run, and how to read their answers.

Two oracles, build b11434. A real load of ``llama-server`` is the truth for the server; it takes the memory for a
moment. ``llama-fit-params`` allocates nothing and prints whole MiB; its figures are compared with the bill of *that
tool*, mistakes included (``memory.llama_cpp.estimate``).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from terazi.engines.base import LaunchSpec
from terazi.engines.llama_cpp.arguments import FIT_OFF, Flag, memory_flags
from terazi.engines.llama_cpp.binary import UPDATE_HINT, Binary
from terazi.engines.llama_cpp.flags import flag_values
from terazi.engines.llama_cpp.launch import DEVICE_ORDER, LOG_VERBOSITY, QUICK_DEATH, UNSET_ENV
from terazi.errors import EngineError
from terazi.memory.llama_cpp.estimate import DeviceEstimate
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.speculation import NO_SPECULATION
from terazi.telemetry.reconciliation import BufferRow, Verdict
from terazi.units import MIB

SERVER, ESTIMATOR = "llama-server", "llama-fit-params"
#: The stand-in's program, under its names of today and of before.
STAND_IN_PROGRAMS = ("ggml-rpc-server", "rpc-server")
_TABLE_ROW = re.compile(r"(\S+) (\d+) (\d+) (\d+) ?", re.ASCII)


def stand_in_launch(program: str, port: int) -> LaunchSpec:
    """One stand-in accelerator, reachable from this host only."""
    return _spec((program, "-H", "127.0.0.1", "-p", str(port)), f"tcp://127.0.0.1:{port}")


def server_settings(settings: LlamaCppSettings, resolved: Resolved) -> LlamaCppSettings:
    """*settings* for a llama-server, which is what llama-cli runs inside itself."""
    if settings.tool == SERVER:
        return settings
    return replace(settings, tool=SERVER, n_parallel=resolved.n_seq_max)


def estimator_settings(settings: LlamaCppSettings, resolved: Resolved) -> LlamaCppSettings:
    """*settings* as far as llama-fit-params can be told them: its ``-np`` always means separate caches."""
    if settings.tool == ESTIMATOR:
        return settings
    return replace(
        settings,
        tool=ESTIMATOR,
        n_parallel=resolved.n_stream,
        kv_unified=None,
        embedding=False,
        speculation=NO_SPECULATION,
        cache_ram_mib=None,
        ctx_checkpoints=None,
    )


def server_launch(
    binary: Binary,
    settings: LlamaCppSettings,
    model_path: str,
    *,
    port: int,
    beside: Sequence[tuple[str, ...]] = (),
    warmup: bool = False,
) -> LaunchSpec:
    """A server that loads and does nothing else; it is ended as soon as its log says that it has loaded.

    Args:
        binary: the server.
        settings: what it is asked about.
        model_path: the model, or its twin.
        port: where it would listen.
        beside: the words that name further files.
        warmup: whether it runs a first batch: projectors and adapters are reserved for only then.

    Raises:
        EngineError: if *binary* lacks a flag that the settings need.
    """
    argv = [binary.path]
    own = (
        Flag(names=("--model", "-m"), value=model_path),
        Flag(names=("--host",), value="127.0.0.1"),
        Flag(names=("--port",), value=str(port)),
        Flag(names=("--verbosity", "-lv", "--log-verbosity"), value=str(LOG_VERBOSITY)),
        Flag(names=("--log-colors",), value="off", needed=False),
        Flag(names=("--no-ui", "--no-webui"), needed=False),
        Flag(names=("--offline",), needed=False),
    )
    argv += [] if warmup else [binary.spelling("--no-warmup") or ""]
    for flag in (*own, *memory_flags(settings), FIT_OFF):
        name = binary.spelling(*flag.names)
        if name is not None:
            argv += [name] if flag.value is None else [name, flag.value]
        elif flag.needed:
            raise EngineError(
                f"{binary.path} ({binary.label}) has no {flag.names[0]}, so it can't be asked.", hint=UPDATE_HINT
            )
    if any(settings.vector_range):
        argv += ["--control-vector-layer-range", *map(str, settings.vector_range)]
    argv += [word for words in beside for word in words]
    return _spec(tuple(word for word in argv if word), f"http://127.0.0.1:{port}")


def estimator_launch(program: str, settings: LlamaCppSettings, model_path: str) -> LaunchSpec:
    """The estimator's command; flags that only a server has are left out."""
    known = flag_values(ESTIMATOR)
    argv = [program, "-m", model_path, "--fit-print", "on"]
    for flag in memory_flags(settings):
        name = next((name for name in flag.names if name in known), None)
        if name is not None:
            argv += [name] if flag.value is None else [name, flag.value]
    return _spec(tuple(argv), "")


def _spec(argv: tuple[str, ...], address: str) -> LaunchSpec:
    return LaunchSpec(
        plan_id="",
        engine="llama.cpp",
        model_name="",
        argv=argv,
        env=(QUICK_DEATH, DEVICE_ORDER),
        unset_env=UNSET_ENV,
        base_url=address,
        api_key="",
    )


def read_table(text: str) -> dict[str, tuple[int, int, int]]:
    """``llama-fit-params --fit-print on``: whole MiB of model, context and compute, by device."""
    found = (_TABLE_ROW.fullmatch(line) for line in text.splitlines())
    return {row[1]: (int(row[2]), int(row[3]), int(row[4])) for row in found if row}


def compare_table(
    estimates: Mapping[str, DeviceEstimate], printed: Mapping[str, tuple[int, int, int]]
) -> tuple[BufferRow, ...]:
    """A row for each figure of the table; the tool cuts off what is less than a MiB."""
    return tuple(_compare(estimates, printed))


def _compare(
    estimates: Mapping[str, DeviceEstimate], printed: Mapping[str, tuple[int, int, int]]
) -> Iterable[BufferRow]:
    for device in dict.fromkeys((*estimates, *printed)):
        expected = estimates.get(device, DeviceEstimate((), (), (), bound=False))
        figures = printed.get(device, (0, 0, 0))
        for term, parts, mib in (
            ("weights", expected.model, figures[0]),
            ("context", expected.context, figures[1]),
            ("compute", expected.compute, figures[2]),
        ):
            planned = sum(n for _, n in parts)
            if planned == 0 and mib == 0:
                continue
            verdict = Verdict.HELD if planned // MIB == mib else Verdict.DIFFERS
            if verdict is Verdict.DIFFERS and expected.bound and mib < planned // MIB:
                verdict = Verdict.WITHIN
            yield BufferRow(
                device=device,
                term=term,
                parts=parts,
                actual_bytes=mib * MIB,
                precision_bytes=MIB,
                verdict=verdict,
            )
