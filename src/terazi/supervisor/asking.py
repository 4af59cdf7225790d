"""Runs short-lived engine processes that are asked one thing: started, listened to, and gone in every outcome.

Each runs as every engine does (own session, tied to this process's life), so that neither an exception, nor a
cancelled task, nor the death of this program leaves one behind.
"""

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

from terazi.engines.base import LaunchSpec
from terazi.errors import EngineError
from terazi.supervisor.process import EngineProcess, free_port

#: Output that is kept of a process, from its beginning.
MOST_OUTPUT = 8 * 1024 * 1024
LISTENS_WITHIN_S = 20.0
_TRIES = 3
_LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a process said. ``heard`` is True if the listener had heard enough and the process was ended for it."""

    text: str
    heard: bool
    timed_out: bool
    code: int | None
    exit_signal: int | None


async def ask(spec: LaunchSpec, *, within_s: float, listen: Callable[[str], bool] = lambda _: False) -> Answer:
    """Run *spec* until it ends, *listen* (which gets its output as it comes) has heard enough, or time is up.

    Raises:
        EngineError: it can't be started at all.
    """
    kept: list[str] = []
    size = 0
    heard = False
    over = asyncio.Event()

    def output(data: bytes) -> None:
        nonlocal size, heard
        text = data.decode("utf-8", "replace")
        if size < MOST_OUTPUT:
            kept.append(text)
            size += len(text)
        if not heard and listen(text):
            heard = True
            over.set()

    async with _running(spec, output) as process:
        process.gone.add_done_callback(lambda _: over.set())
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await over.wait()
        ended = process.gone.done()
        code, exit_signal = process.gone.result() if ended else (None, None)
    return Answer(
        text="".join(kept), heard=heard, timed_out=not heard and not ended, code=code, exit_signal=exit_signal
    )


@asynccontextmanager
async def stand_ins(make: Callable[[int], LaunchSpec], count: int) -> AsyncIterator[tuple[str, ...]]:
    """*count* listening processes, each made for a free port of 127.0.0.1; yields their addresses.

    Raises:
        EngineError: one doesn't come to listen.
    """
    async with AsyncExitStack() as stack:
        endpoints = [await _start(stack, make) for _ in range(count)]
        yield tuple(endpoints)


async def _start(stack: AsyncExitStack, make: Callable[[int], LaunchSpec]) -> str:
    """A port may be taken between being found free and being bound: then another is tried."""
    said: list[bytes] = []
    spec = make(0)
    for _ in range(_TRIES):
        port = free_port()
        spec = make(port)
        process = await stack.enter_async_context(_running(spec, said.append))
        if await _listens(process, port):
            return f"127.0.0.1:{port}"
    last = b"".join(said).decode("utf-8", "replace").strip().splitlines()[-1:]
    raise EngineError(
        f"{spec.argv[0]} does not come to listen{': ' + last[0][:200] if last else ''}.",
        hint="It stands in for an accelerator; it must be of the same build as the llama-server beside it.",
    )


async def _listens(process: EngineProcess, port: int) -> bool:
    loop = asyncio.get_running_loop()
    end = loop.time() + LISTENS_WITHIN_S
    while loop.time() < end and not process.gone.done():
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            return not process.gone.done()
        await asyncio.sleep(_LOOK_EVERY_S)
    return False


@asynccontextmanager
async def _running(spec: LaunchSpec, output: Callable[[bytes], None]) -> AsyncIterator[EngineProcess]:
    try:
        process = await EngineProcess.spawn(spec, run_id=secrets.token_hex(16), on_output=output)
    except OSError as problem:
        raise EngineError(
            f"{spec.argv[0]} can't be started: {problem.strerror}.", hint="Is it built for this machine?"
        ) from problem
    try:
        yield process
    finally:
        process.signal(signal.SIGKILL)
        await asyncio.shield(process.gone)
