"""What the gateway adds: the same request direct and through it in turn, at several numbers of streams.

Each of N clients asks the fake engine for a stream, then for the same through the gateway, and so on. Printed are
the times to first byte both ways (p50 and p99), the median and p99 of what the gateway added (pair by pair), and
the gateway's CPU time per event. Run it on an idle machine:

    PYTHONPATH=src:tests python benchmarks/bench_gateway.py [--rounds 20] [--streams 1,16,64] [--api ollama]

The gateway runs in a process of its own, as its CPU time is to be its own. Ollama's API has no event before
the first token, so there "added" holds one token's time of the fake engine (20 ms) too.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from serving import CARD, ENGINE_KEY, EngineProcess, StubBackend, StubDirectory, fake_engine, running
from terazi.gateway.app import create_app
from terazi.gateway.server import Gateway

TOKENS = 32
TOKEN_DELAY_S = 0.02
READY_LINE = "gateway at "


@dataclass(slots=True)
class Samples:
    """Times to first byte and events of one way."""

    first_byte_s: list[float] = field(default_factory=list)
    events: int = 0


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, object], into: Samples) -> float:
    """One stream, read to its end; its time to first byte in seconds."""
    started = time.perf_counter()
    async with session.post(url, json=body, headers={"Authorization": f"Bearer {ENGINE_KEY}"}) as reply:
        reply.raise_for_status()
        chunk = await reply.content.readany()
        first_byte_s = time.perf_counter() - started
        into.first_byte_s.append(first_byte_s)
        while chunk:
            into.events += chunk.count(b"\n\n") or chunk.count(b"\n")
            chunk = await reply.content.readany()
    return first_byte_s


def cpu_s(pid: int) -> float:
    """User and system time of a process, from ``/proc/PID/stat`` (fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def quantile(values: list[float], share: float) -> float:
    """The value below which *share* of *values* lie, in milliseconds."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1000


async def measure(*, direct: str, through: str, pid: int, streams: int, rounds: int) -> str:
    """One row of the table."""
    body: dict[str, object] = {"model": CARD.id, "messages": [{"role": "user", "content": "x"}], "stream": True}
    own, other, added = Samples(), Samples(), list[float]()

    async def client(number: int) -> None:
        # Spread over the time of an answer: requests that start at one instant would measure a queue.
        await asyncio.sleep(number / streams * TOKENS * TOKEN_DELAY_S)
        for _ in range(rounds):
            pair = [await ask(session, direct, body, own), await ask(session, through, body, other)]
            added.append(pair[1] - pair[0])

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for url in (direct, through):  # warm up
            await ask(session, url, body, Samples())
        before = cpu_s(pid)
        await asyncio.gather(*(client(n) for n in range(streams)))
        cpu = cpu_s(pid) - before
    quantiles = [quantile(v, q) for v in (own.first_byte_s, other.first_byte_s, added) for q in (0.5, 0.99)]
    return f"{streams:>7}" + "".join(f"{q:>9.2f}" for q in quantiles) + f"{cpu / other.events * 1e6:>11.0f}"


async def serve(engine_port: int) -> None:
    """The gateway alone, until SIGTERM."""
    app = create_app(StubDirectory([StubBackend(engine_port)]), api_key=ENGINE_KEY)
    gateway = Gateway(app, "127.0.0.1", 0)
    await gateway.start()
    print(READY_LINE + gateway.address, file=sys.stderr, flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await gateway.stop()


async def main(streams: list[int], rounds: int, api: str) -> None:
    """Start engine and gateway, print the table."""
    most = str(max(streams))
    flags = ("-np", most, "--fake-tokens", str(TOKENS), "--fake-token-delay-s", str(TOKEN_DELAY_S))
    async with running(fake_engine(*flags)) as engine:
        argv = [sys.executable, __file__, "--serve", str(engine.port)]
        gateway = EngineProcess(argv=argv, port=0)
        try:
            await gateway.start(wait_for=READY_LINE)
            assert gateway.process is not None
            address = gateway.log[-1].partition(READY_LINE)[2].strip()
            path = "/v1/chat/completions" if api == "openai" else "/api/chat"
            direct = f"http://127.0.0.1:{engine.port}/v1/chat/completions"
            print(f"{api}, {TOKENS} tokens an answer, {rounds} pairs a client; milliseconds, and CPU µs per event")
            print("streams   direct      p99  gateway      p99    added      p99  CPU/event")
            for n in streams:
                pid = gateway.process.pid
                row = measure(direct=direct, through=address + path, pid=pid, streams=n, rounds=rounds)
                print(await row, flush=True)
        finally:
            await gateway.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--api", choices=["openai", "ollama"], default="openai")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        if given.serve:
            asyncio.run(serve(given.serve))
        else:
            asyncio.run(main([int(n) for n in given.streams.split(",")], given.rounds, given.api))
