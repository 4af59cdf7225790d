"""A service under load for a long time: does it stay level, and does anybody get less than a whole answer?

    PYTHONPATH=tests python benchmarks/bench_soak.py [--minutes 20] [--load 0.8] [--seed 1]

Runs ``terazi up`` with the real llama-server: the demo model under three names, memory for two of them, three keys
of different weights. How much the machine can answer is measured first; then requests come at random, so many that
it is busy for the given share of the time: OpenAI's, Anthropic's and Ollama's API, streams and whole answers. One
in ten clients leaves in the middle of its answer, one request in thirty is for the model that isn't in memory, and
halfway through an engine is killed. Each answer must be whole by its own API's rules.

Meanwhile the gateway's process is looked at: resident memory, open files, asyncio tasks, threads. *Level* is said
of the second half: the slope of the line through it (least squares, its standard error widened for samples that
follow each other) is not above zero by more than two standard errors, or comes to less than one percent in all;
what goes along with the number of clients that are waiting just then is taken out before.
Files and tasks must besides be back where they were before the load once all is quiet again. Threads are shown
only: a pool of them grows to its bound as it is used.

``TERAZI_LLAMA_SERVER=tests/fakes/engine.py`` takes the engine's work away, and shows in minutes what the gateway
does in many thousand requests.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from bench_swap import model_file, need_of
from running import engines_of, environment, up

NAMES = ("ada", "bo", "cy")
KEYS = {"alice": 3.0, "bob": 1.0, "batch": 0.5}
SAMPLE_S = 2.0
QUIET_S = 12.0
#: More than these wait for nobody: the machine is slower than it was when it was measured.
MOST_OPEN = 32


@dataclass
class Api:
    """How one API is asked, and how the end of its streams looks."""

    path: str
    limit: str
    end: re.Pattern[bytes]

    def body(self, model: str, text: str, tokens: int, *, stream: bool) -> dict[str, Any]:
        """One request."""
        asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}], "stream": stream}
        return asked | ({"options": {self.limit: tokens}} if self.limit == "num_predict" else {self.limit: tokens})


APIS = {
    "openai": Api("/v1/chat/completions", "max_tokens", re.compile(rb"data: \[DONE\]\s*$")),
    "anthropic": Api("/v1/messages", "max_tokens", re.compile(rb'"message_stop"\}\s*$')),
    "ollama": Api("/api/chat", "num_predict", re.compile(rb'"done":\s*true[^\n]*\}\s*$')),
}


@dataclass
class Tally:
    """What became of all requests."""

    answered: Counter[str] = field(default_factory=Counter)
    left: int = 0
    skipped: int = 0
    errors: list[str] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)


class Load:
    """Clients, as many as come."""

    def __init__(self, client: aiohttp.ClientSession, url: str, seed: int) -> None:
        self.client, self.url = client, url
        self.chance = random.Random(seed)  # noqa: S311 - a load, not a secret
        self.tally = Tally()
        self.open: set[asyncio.Task[None]] = set()

    def one(self, *, third: float = 1 / 30) -> None:
        """A client comes; it wants the model that isn't in memory with a chance of *third*."""
        chance = self.chance
        task = asyncio.create_task(
            self._ask(
                chance.choice(list(APIS)),
                "cy" if chance.random() < third else chance.choice(NAMES[:2]),
                chance.choice(list(KEYS)),
                tokens=chance.randint(2, 20),
                stream=chance.random() < 0.7,
                leaves=chance.uniform(0.0, 2.0) if chance.random() < 0.1 else None,
            )
        )
        self.open.add(task)
        task.add_done_callback(self.open.discard)

    async def _ask(
        self, name: str, model: str, key: str, *, tokens: int, stream: bool, leaves: float | None
    ) -> None:
        kind = f"{name} {'stream' if stream else 'whole'}"
        began = time.monotonic()
        try:
            async with asyncio.timeout(leaves):
                wrong = await self._wrong(APIS[name], model, key, tokens=tokens, stream=stream)
        except TimeoutError:
            self.tally.left += 1
            return
        except aiohttp.ClientError as problem:
            wrong = f"{type(problem).__name__}: {problem}"
        self.tally.took_s.append(time.monotonic() - began)
        self.tally.answered[kind] += 1
        if wrong is not None:
            self.tally.errors.append(f"{kind} of {model}: {wrong}")

    async def _wrong(self, api: Api, model: str, key: str, *, tokens: int, stream: bool) -> str | None:
        """What is wrong with an answer."""
        text = f"Tell me something about {self.chance.randrange(10**6)}."
        body = api.body(model, text, tokens, stream=stream)
        headers = {"x-api-key": secret(key), "anthropic-version": "2023-06-01"}
        if api is not APIS["anthropic"]:
            headers = {"Authorization": f"Bearer {secret(key)}"}
        async with self.client.post(self.url + api.path, json=body, headers=headers) as reply:
            data = await reply.read()
            if reply.status != 200:
                return f"{reply.status} {data[:200]!r}"
        if stream:
            whole = api.end.search(data) is not None and b'"error"' not in data
        else:
            whole = "error" not in json.loads(data)
        return None if whole else repr(data[-300:])

    async def closed(self, seconds: float, at_once: int) -> float:
        """Requests a second that the machine can answer: *at_once* clients, each asking again at once."""
        end, before = time.monotonic() + seconds, sum(self.tally.answered.values())
        while time.monotonic() < end:
            while len(self.open) < at_once:
                self.one(third=0)
            await asyncio.sleep(0.02)
        return (sum(self.tally.answered.values()) - before) / seconds

    async def poisson(self, seconds: float, per_s: float) -> None:
        """Requests at random moments."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if len(self.open) < MOST_OPEN:
                self.one()
            else:
                self.tally.skipped += 1
            await asyncio.sleep(self.chance.expovariate(per_s))

    async def quiet(self) -> None:
        """Until nobody is left."""
        while self.open:
            await asyncio.wait(self.open)


def secret(name: str) -> str:
    """The key of *name*."""
    return f"a key for {name} only".replace(" ", "-")


def configuration(home: Path, need: int) -> Path:
    """Three models, room for two, three keys."""
    tables = [f"[memory]\nbudget = {{RAM = {2 * need + need // 2}}}", "[guard]\nenabled = false"]
    for name in NAMES:
        (home / f"{name}.gguf").symlink_to(model_file())
        settings = "settings = {context = 1024, users = 2}"
        tables.append(f'[[models]]\nname = "{name}"\nsource = "{home / name}.gguf"\n{settings}')
    tables += [f'[[keys]]\nname = "{n}"\nkey = "{secret(n)}"\nweight = {weight}' for n, weight in KEYS.items()]
    path = home / "terazi.toml"
    path.write_text("\n".join(tables))
    return path


@dataclass
class Samples:
    """The gateway's process, again and again."""

    at: list[float] = field(default_factory=list)
    #: Clients that were waiting for an answer.
    open: list[float] = field(default_factory=list)
    of: dict[str, list[float]] = field(default_factory=dict)

    async def look(self, load: Load, process: psutil.Process) -> dict[str, float]:
        """Once."""
        async with load.client.get(
            f"{load.url}/metrics", headers={"Authorization": f"Bearer {secret('bob')}"}
        ) as reply:
            found = re.search(r"^terazi_asyncio_tasks (\S+)", await reply.text(), re.MULTILINE)
        return {
            "rss_mib": process.memory_info().rss / (1 << 20),
            "open_files": float(process.num_fds()),
            "threads": float(process.num_threads()),
            "tasks": float(found[1]) if found else math.nan,
        }

    async def least(self, load: Load, process: psutil.Process) -> dict[str, float]:
        """The least of several looks: engines are asked how they are now and then, over a connection each."""
        looks = []
        for _ in range(8):
            looks.append(await self.look(load, process))
            await asyncio.sleep(0.7)
        return {name: min(look[name] for look in looks) for name in looks[0]}

    @staticmethod
    def files(process: psutil.Process) -> Counter[str]:
        """What its descriptors are, without numbers."""
        folder = Path(f"/proc/{process.pid}/fd")
        links = []
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                links.append(re.sub(r"\d+", "N", str(entry.readlink())))
        return Counter(links)

    async def run(self, load: Load, process: psutil.Process) -> None:
        """Without end."""
        while True:
            self.at.append(time.monotonic())
            self.open.append(float(len(load.open)))
            for name, value in (await self.look(load, process)).items():
                self.of.setdefault(name, []).append(value)
            await asyncio.sleep(SAMPLE_S)

    def judged(self) -> dict[str, dict[str, object]]:
        """Each figure's course, and whether its second half is level."""
        half = len(self.at) // 2
        return {
            name: judge(self.at[half:], self._without_clients(values)[half:], values)
            for name, values in self.of.items()
        }

    def _without_clients(self, values: list[float]) -> list[float]:
        """*values* as they would have been with the usual number of clients: a queue is no leak."""
        usual = statistics.fmean(self.open)
        if statistics.pstdev(self.open) == 0:
            return values
        each = statistics.linear_regression(self.open, values).slope
        return [value - each * (count - usual) for value, count in zip(values, self.open, strict=True)]


def judge(at: Sequence[float], half: Sequence[float], values: Sequence[float]) -> dict[str, object]:
    """The slope of *half*, an hour; the standard error allows for neighbours that are alike (lag-one, AR(1))."""
    slope, intercept = statistics.linear_regression(at, half)
    rests = [y - (intercept + slope * x) for x, y in zip(at, half, strict=True)]
    spread = math.sqrt(sum((x - statistics.fmean(at)) ** 2 for x in at))
    variance = sum(r * r for r in rests)
    alike = sum(a * b for a, b in pairwise(rests)) / variance if variance else 0.0
    widened = math.sqrt((1 + max(0.0, alike)) / (1 - min(0.95, max(0.0, alike))))
    error = widened * math.sqrt(variance / max(1, len(at) - 2)) / spread
    rise = slope * (at[-1] - at[0])
    level = slope <= 2 * error or rise < 0.01 * statistics.fmean(half)
    return {
        "first": round(values[0], 2),
        "median_of_first_half": round(statistics.median(values[: len(values) // 2]), 2),
        "median_of_second_half": round(statistics.median(half), 2),
        "highest": round(max(values), 2),
        "slope_per_hour": round(slope * 3600, 2),
        "two_standard_errors": round(2 * error * 3600, 2),
        "rise_in_second_half": round(rise, 2),
        "level": level,
    }


async def kill_one(home: Path, after_s: float) -> int:
    """An engine dies for no reason."""
    await asyncio.sleep(after_s)
    engine = max(engines_of(home), key=lambda p: p.cpu_times().user)
    os.kill(engine.pid, signal.SIGKILL)
    return engine.pid


async def soak(home: Path, url: str, pid: int, options: argparse.Namespace) -> dict[str, object]:
    """All of it; the figures."""
    process, seconds = psutil.Process(pid), options.minutes * 60
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=5)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_read=300)
    ) as client:
        load, samples = Load(client, url, options.seed), Samples()
        capacity = await load.closed(options.measure, 6)
        await load.quiet()
        await asyncio.sleep(QUIET_S)
        before, files = await samples.least(load, process), samples.files(process)
        load.tally, loads_before = Tally(), await loads(load)
        watching = asyncio.create_task(samples.run(load, process))
        killing = asyncio.create_task(kill_one(home, seconds / 2))
        began = time.monotonic()
        await load.poisson(seconds, options.load * capacity)
        await load.quiet()
        lasted = time.monotonic() - began
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        await killing
        await asyncio.sleep(QUIET_S)
        after = await samples.least(load, process)
        tally, took = load.tally, sorted(load.tally.took_s)
        answered = sum(tally.answered.values())
        judged = samples.judged()
        return {
            "minutes": round(lasted / 60, 1),
            "capacity_per_s": round(capacity, 2),
            "answered_per_s": round(answered / lasted, 2),
            "answered": dict(tally.answered),
            "clients_that_left": tally.left,
            "not_sent_since_too_many_waited": tally.skipped,
            "errors": len(tally.errors),
            "first_errors": tally.errors[:10],
            "answer_s": {"p50": round(statistics.median(took), 2), "p95": round(took[int(0.95 * len(took))], 2)},
            "loads": await loads(load) - loads_before,
            "engines_killed": 1,
            "gateway": judged,
            "quiet_before": {name: round(value, 2) for name, value in before.items()},
            "quiet_after": {name: round(value, 2) for name, value in after.items()},
            "files_that_came": dict(samples.files(process) - files),
            "level": all(judged[name]["level"] for name in ("rss_mib", "open_files", "tasks"))
            and all(after[name] <= before[name] for name in ("open_files", "tasks")),
        }


async def loads(load: Load) -> int:
    """How many loads there have been."""
    async with load.client.get(
        f"{load.url}/metrics", headers={"Authorization": f"Bearer {secret('bob')}"}
    ) as reply:
        return int(
            sum(map(float, re.findall(r"^terazi_model_loads_total\{.*\} (\S+)", await reply.text(), re.MULTILINE)))
        )


def main() -> int:
    """Print the figures; 1 if it isn't level, or anybody got an error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--load", type=float, default=0.8, help="share of what the machine can answer")
    parser.add_argument("--measure", type=float, default=30, help="seconds in which that is measured")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        path = configuration(home, asyncio.run(need_of(environment(home), model_file())))
        with up(home, "--config", str(path)) as running:
            url = running.url()
            result = asyncio.run(soak(home, url, running.process.pid, options))
            result["exit_code"] = running.end(within_s=60)
            result["engines_left"] = len(engines_of(home))
    print(json.dumps(result, indent=1))
    return 0 if result["level"] and not result["errors"] else 1


if __name__ == "__main__":
    sys.exit(main())
