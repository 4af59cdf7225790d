"""Runs llama-bench and llama-server on a model and gives back how long things took, without disturbances."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from terazi.engines.base import LaunchSpec
from terazi.engines.llama_cpp.bench import (
    TOOL,
    Timings,
    bench_launch,
    completion_body,
    parse_bench,
    parse_timings,
    sampling_launch,
)
from terazi.engines.llama_cpp.binary import Binary
from terazi.errors import EngineError
from terazi.performance.kernel_fit import Quiet, quiet
from terazi.supervisor.asking import ask, stand_ins
from terazi.supervisor.health import EngineClient

#: One run of either tool; a machine on which it takes longer is too busy, or too small.
WITHIN_S = 120.0
_MOST_ANSWER = 1024 * 1024
_BUSY_HINT = "Is the machine busy? Try again when it is idle."


class Stopwatch:
    """Timed runs of one engine.

    Args:
        binary: the llama-server; llama-bench lies beside it.
        threads: of the CPU, as the engine will be started with.
        rpc: addresses of stand-in devices.

    Raises:
        EngineError: there is no llama-bench.
    """

    def __init__(self, binary: Binary, *, threads: int, rpc: Sequence[str] = ()) -> None:
        self._binary = binary
        self._threads = threads
        self._rpc = tuple(rpc)
        self._bench = _beside(binary)
        self.found: list[Quiet] = []

    async def bench(
        self,
        model: str,
        *,
        prompts: Sequence[int],
        generate: int = 0,
        depths: Sequence[int] = (0,),
        micro_batch: int = 512,
        repeats: int,
        device: str | None = None,
    ) -> Mapping[tuple[int, int, int], float]:
        """Seconds by (prompt, generated, depth).

        Raises:
            EngineError: it failed, or took far too long.
        """
        launch = bench_launch(
            self._bench,
            model,
            prompts=prompts,
            generate=generate,
            depths=depths,
            micro_batches=(micro_batch,),
            repeats=repeats,
            threads=self._threads,
            device=device,
            rpc=self._rpc,
        )
        answer = await ask(launch, within_s=WITHIN_S)
        rows = {(r.prompt, r.generated, r.depth): quiet(r.samples_s) for r in parse_bench(answer.text)}
        wanted = len(depths) * (len(prompts) + bool(generate))
        if len(rows) < wanted:
            if answer.timed_out:
                raise EngineError(f"{TOOL} took longer than {WITHIN_S:g} s.", hint=_BUSY_HINT)
            last = next((line for line in reversed(answer.text.splitlines()) if line.strip()), "it said nothing")
            raise EngineError(
                f"{TOOL} failed: {last.strip()[:200]}", hint=f"Try it by hand: {' '.join(launch.argv)[:300]}"
            )
        self.found.extend(rows.values())
        return {key: row.seconds for key, row in rows.items()}

    @asynccontextmanager
    async def server(self, model: str, *, slots: int, context: int) -> AsyncIterator["ServedModel"]:
        """A llama-server with *slots* caches of *context* tokens each, gone when left.

        Raises:
            EngineError: it doesn't come to serve.
        """

        def launch(port: int) -> LaunchSpec:
            return sampling_launch(
                self._binary, model, port=port, slots=slots, context=context, threads=self._threads
            )

        async with stand_ins(launch, 1) as (address,):
            served = ServedModel(f"http://{address}", self.found)
            try:
                await served.loaded()
                yield served
            finally:
                await served.close()


class ServedModel:
    """A server to be asked. ``found`` gets each time that was taken."""

    def __init__(self, url: str, found: list[Quiet]) -> None:
        self._url = url
        self._found = found
        self._client = EngineClient(url, "")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            timeout=aiohttp.ClientTimeout(total=WITHIN_S),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
        await self._session.close()

    async def loaded(self) -> None:
        """Wait until the model is there.

        Raises:
            EngineError: it isn't within the time that anything may take.
        """
        try:
            async with asyncio.timeout(WITHIN_S):
                while not await self._client.healthy("/health"):  # noqa: ASYNC110 - the other end is a process
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise EngineError("llama-server doesn't come to serve the model.", hint=_BUSY_HINT) from None

    async def ask(self, prompt: Sequence[int], output: int) -> Timings:
        """One answer of *output* tokens.

        Raises:
            EngineError: it gave none.
        """
        try:
            async with self._session.post(
                f"{self._url}/completion", data=completion_body(prompt, output).encode()
            ) as answer:
                text = (await answer.content.read(_MOST_ANSWER)).decode("utf-8", "replace")
            return parse_timings(text)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise EngineError(f"llama-server gave no answer: {error}", hint=_BUSY_HINT) from error

    async def step_s(self, *, streams: int, prompt: Sequence[int], output: int, rounds: int) -> float:
        """Seconds of a step with *streams* streams, the quiet one of *rounds* rounds.

        Raises:
            EngineError: an answer is missing.
        """
        samples = []
        for _ in range(rounds):
            answers = await asyncio.gather(*(self.ask(prompt, output) for _ in range(streams)))
            samples.append(sum(a.token_s for a in answers) / streams)
        self._found.append(quiet(samples))
        return self._found[-1].seconds


def _beside(binary: Binary) -> str:
    for folder in (Path(binary.path).parent, Path(binary.path).resolve().parent):
        if os.access(folder / TOOL, os.X_OK):
            return str(folder / TOOL)
    raise EngineError(
        f"There is no {TOOL} beside {binary.path}.",
        hint="Install llama.cpp with its tools, or name a llama-server that has them in TERAZI_LLAMA_SERVER.",
    )
