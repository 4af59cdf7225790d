"""Shared by all tests: Hypothesis profile, the event loop, and the guard that keeps the core free of I/O."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis.strategies import text

settings.register_profile(
    "terazi", database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60
)
settings.load_profile("terazi")

# A job in the background of a script ignores SIGINT, and so would every process that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The fake engine says ``env python3``. That may be a script which starts further processes before it is Python, and
# each of them would look like an engine: it is this Python.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])

HERE = Path(__file__).parent
#: Tests under these folders are tests of the core: a call that opens anything fails them.
GUARDED = (HERE / "unit", HERE / "property")

_FORBIDDEN = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.listdir",
    "os.scandir",
    "sqlite3.",
    "urllib.",
    "ctypes.dlopen",
)
#: What the import system and tracebacks open on Python's own behalf.
#: (``<unknown>``: a SyntaxError out of ``ast.parse``, which Hypothesis provokes, looks for the line there.)
_SOURCE_SUFFIXES = (".py", ".pyc", ".so", "<unknown>")
#: Where Hypothesis keeps its own notes (the constants of the code under test, a table of Unicode), and where
#: bytecode is written on a first import, under a name that ends with a process's number.
_CACHES = ("/.hypothesis/", "/__pycache__/")

_armed: list[str] = []
_caught: list[str] = []


def _audit(event: str, args: tuple[object, ...]) -> None:
    if not _armed:
        return
    if event == "open":
        path = str(args[0])
        if isinstance(args[0], int) or path.endswith(_SOURCE_SUFFIXES) or any(f in path for f in _CACHES):
            return
    elif event in {"os.listdir", "os.scandir"}:
        if any("importlib" in f for f in _stack_files()):
            return
    elif not event.startswith(_FORBIDDEN):
        return
    _caught.append(f"{event}{args[:1]!r}")
    raise RuntimeError(f"a core test did I/O: {event} {args[:1]!r}")


def _stack_files() -> Generator[str, None, None]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back  # type: ignore[assignment]


sys.addaudithook(_audit)


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of the service; where a module's own protocols meet the loop, that of asyncio too."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if item.path.name == "test_links.py":
        factories["asyncio"] = asyncio.new_event_loop
    return factories


def pytest_collection_finish() -> None:
    """Hypothesis reads its table of characters from disk at the first use of text: now, not in a core test."""
    text().validate()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Arm the audit hook while a core test runs; a swallowed exception still fails the test."""
    guarded = any(folder in item.path.parents for folder in GUARDED)
    if not guarded:
        return (yield)
    _caught.clear()
    _armed.append(item.nodeid)
    try:
        result = yield
    finally:
        _armed.pop()
    if _caught:
        pytest.fail(f"a core test did I/O: {_caught[0]}", pytrace=False)
    return result


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The models that come as packages, by name."""
    from demo_files import gemma3, smollm2

    return {"smollm2": smollm2(), "gemma3": gemma3(tmp_path_factory.mktemp("gemma3"))}
