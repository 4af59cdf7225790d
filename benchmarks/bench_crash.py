"""Kill the engine again and again under streams that are being answered, and look at every character they got.

    PYTHONPATH=tests python benchmarks/bench_crash.py [--streams 32] [--kills 10] [--every 4] [--signal KILL|STOP]

A real llama-server with the demo model, started and started again by ``terazi up``; greedy streams of 100 to 200
tokens. What is checked of each stream, against things that Terazi has no part in:

- it is complete, under one id, with one event for the role, and its usage says as many tokens as were asked for;
- at each seam the comment's number of characters is exactly what this client had received by then;
- after each seam comes what the engine itself writes after exactly that beginning: asked directly, at rest, at
  temperature 0. Greedy decoding isn't bit-stable over the shapes of batches, so a share may differ from some token
  on; how large that share is without any crash is measured too: two uncrashed runs under the same load.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from running import Up, engines_of, up

TOPICS = ("the sea", "a mountain", "bread", "winter", "a clock", "the moon", "a river", "books", "rain", "music")
SEAM = ": resumed after "


@dataclass
class Stream:
    """One stream, as its client saw it."""

    body: dict[str, Any]
    text: str = ""
    #: (characters received until then, characters that the comment says)
    seams: list[tuple[int, int]] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    roles: int = 0
    finish: str | None = None
    usage: dict[str, Any] | None = None
    marked: int = 0
    done: bool = False
    error: str | None = None
    header: str | None = None

    @property
    def faults(self) -> list[str]:
        """What is wrong with it by itself."""
        found = []
        if self.error is not None or not self.done or self.finish is None:
            found.append(f"lost or cut: {self.error}")
        if len(self.ids) != 1 or self.roles != 1:
            found.append(f"{len(self.ids)} ids, {self.roles} roles")
        if any(had != said for had, said in self.seams):
            found.append(f"a seam says another length: {self.seams}")
        if self.marked != len(self.seams):
            found.append(f"{len(self.seams)} seams, and the last event says {self.marked}")
        if self.usage is None or self.usage["completion_tokens"] > self.body["max_tokens"]:
            found.append(f"usage {self.usage}")
        return found


def question(number: int, tokens: int) -> dict[str, Any]:
    """The body of stream *number*."""
    text = f"Tell me a long story about {TOPICS[number % len(TOPICS)]}, part {number}."
    return {
        "model": "demo",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def read(client: aiohttp.ClientSession, url: str, body: dict[str, Any], **headers: str) -> Stream:
    """Ask, and note all that comes."""
    stream = Stream(body)
    try:
        async with client.post(f"{url}/v1/chat/completions", json=body, headers=headers) as reply:
            stream.header = reply.headers.get("x-terazi-resumed")
            if reply.status != 200:
                stream.error = await reply.text()
                return stream
            async for raw in reply.content:
                note(stream, raw.decode().rstrip("\n"))
    except aiohttp.ClientError as problem:
        stream.error = f"{type(problem).__name__}: {problem}"
    return stream


def note(stream: Stream, line: str) -> None:
    """One line of the stream."""
    if line.startswith(SEAM):
        stream.seams.append((len(stream.text), int(line.removeprefix(SEAM).split()[0])))
    elif line == "data: [DONE]":
        stream.done = True
    elif line.startswith("data: "):
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            stream.error = str(event["error"])
            return
        stream.ids.add(event["id"])
        stream.usage = event.get("usage") or stream.usage
        stream.marked = event.get("terazi", {}).get("resumed", stream.marked)
        for choice in event["choices"]:
            stream.roles += "role" in choice["delta"]
            stream.text += choice["delta"].get("content") or ""
            stream.finish = choice["finish_reason"] or stream.finish


async def kill_often(running: Up, kills: int, every_s: float, number: int, asked: "asyncio.Task[object]") -> int:
    """Send the signal to the engine *kills* times, each time once it answers again; how often that was possible."""
    count = 0
    killed: set[int] = set()
    while count < kills and not asked.done():
        await asyncio.sleep(every_s)
        engine = next((p for p in ready_engines(running.home) if p.pid not in killed), None)
        if engine is not None:
            killed.add(engine.pid)
            os.kill(engine.pid, number)
            count += 1
    return count


def ready_engines(home: Path) -> list[psutil.Process]:
    """Engines that listen."""
    found = []
    for process in engines_of(home):
        try:
            if any(c.status == psutil.CONN_LISTEN for c in process.net_connections("tcp")):
                found.append(process)
        except psutil.Error:
            continue
    return found


def direct(engine: psutil.Process) -> tuple[str, str]:
    """The engine's own address and key."""
    argv = engine.cmdline()
    key = engine.environ().get("LLAMA_API_KEY") or Path(argv[argv.index("--api-key-file") + 1]).read_text().strip()
    return f"http://127.0.0.1:{argv[argv.index('--port') + 1]}", key


Pairs = list[tuple[str, str]]


async def after_seams(client: aiohttp.ClientSession, engine: tuple[str, str], stream: Stream) -> Pairs:
    """For each part behind a seam: what the client got, and what the engine writes there by itself."""
    url, key = engine
    pairs = []
    ends = [had for had, _ in stream.seams[1:]] + [len(stream.text)] if stream.seams else []
    for (begin, _), end in zip(stream.seams, ends, strict=True):
        got = stream.text[begin:end]
        body = {
            **stream.body,
            "messages": [*stream.body["messages"], {"role": "assistant", "content": stream.text[:begin]}],
            "continue_final_message": True,
            "add_generation_prompt": False,
            "cache_prompt": False,
        }
        again = await read(client, url, body, Authorization=f"Bearer {key}")
        assert again.done, again.error
        pairs.append((got, again.text[: len(got)]))
    return pairs


async def run(options: argparse.Namespace, running: Up) -> dict[str, Any]:
    """All of it; the figures."""
    url = running.url()
    sizes = [options.tokens + (options.tokens * i) // max(options.streams - 1, 1) for i in range(options.streams)]
    bodies = [question(i, size) for i, size in enumerate(sizes)]
    timeout = aiohttp.ClientTimeout(total=None, sock_read=300)
    # the engine closes a connection after each stream, whatever it says
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:

        async def all_streams() -> list[Stream]:
            return list(await asyncio.gather(*(read(client, url, body) for body in bodies)))

        calm = [await all_streams() for _ in range(options.calm)]
        began = time.monotonic()
        asked = asyncio.ensure_future(all_streams())
        number = signal.SIGSTOP if options.signal == "STOP" else signal.SIGKILL
        kills = await kill_often(running, options.kills, options.every, number, asked)
        streams = await asked
        took_s = time.monotonic() - began
        engine = direct(await one_engine(running))
        pairs = [pair for stream in streams for pair in await after_seams(client, engine, stream)]
    faults = [f"stream {i}: {fault}" for i, stream in enumerate(streams) for fault in stream.faults]
    equal = [got == again for got, again in pairs]
    return {
        "streams": len(streams),
        "kills": kills,
        "took_s": round(took_s, 1),
        "lost_or_cut": sum(s.error is not None or not s.done for s in streams),
        "faults": faults,
        "resumed_streams": sum(bool(s.seams) for s in streams),
        "run_again": sum(s.header is not None for s in streams),
        "seams": len(pairs),
        "seams_as_the_engine_continues": sum(equal),
        "common_beginning_of_the_others": common(pairs),
        "equal_to_an_uncrashed_run": share(streams, calm[0]) if calm else None,
        "two_uncrashed_runs_equal": share(calm[0], calm[1]) if len(calm) > 1 else None,
        "first_that_differ": [pair for pair in pairs if pair[0] != pair[1]][:2],
        "tokens_asked_for": sum(sizes),
        "tokens_by_usage": sum(s.usage["completion_tokens"] for s in streams if s.usage),
    }


async def one_engine(running: Up) -> psutil.Process:
    """The engine, once it is there again."""
    while True:
        found = ready_engines(running.home)
        if found:
            return found[0]
        await asyncio.sleep(0.2)


def share(some: list[Stream], others: list[Stream]) -> str:
    """How many are equal."""
    return f"{sum(a.text == b.text for a, b in zip(some, others, strict=True))} of {len(some)}"


def common(pairs: Pairs) -> float | None:
    """Of those that differ, the mean share that is equal until then."""
    shares = [alike(got, again) / max(len(got), 1) for got, again in pairs if got != again]
    return round(statistics.mean(shares), 2) if shares else None


def alike(one: str, other: str) -> int:
    """Characters until they differ."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def main() -> int:
    """Run it and print the figures; 1 if a stream was not whole."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--every", type=float, default=4.0, help="seconds between kills")
    parser.add_argument("--tokens", type=int, default=100, help="of the shortest; the longest has twice as many")
    parser.add_argument("--users", type=int, default=8, help="slots of the engine")
    parser.add_argument("--calm", type=int, default=2, help="runs without kills, to compare with")
    parser.add_argument("--signal", choices=["KILL", "STOP"], default="KILL")
    parser.add_argument("--cpus", type=int, default=1, help="that all of it may use")
    options = parser.parse_args()
    # llama.cpp's threads wait for each other in a loop: where others work too, fewer are several times faster
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.cpus :])
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with up(home, "demo", "--context", "1024", "--users", str(options.users)) as running:
            figures = asyncio.run(run(options, running))
    print(json.dumps(figures, indent=2))
    return 1 if figures["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
