"""How far forecasts of this machine are off, once it is calibrated: against real llama-server runs.

    python benchmarks/bench_forecast.py MODEL.gguf … [--rounds 3] [--streams 1,4,16] [--prompts 24,128,512]

Each round calibrates and then runs every case, so that what else the machine does meets both alike. Both sides take
the quiet time of their runs (``performance.kernel_fit.quiet``); of several calibrations, the fastest time of each
kernel. A decode step is timed with all streams at work and their prompts in the cache already; the time to the
first token is a whole request for one token, with an empty cache, as its client sees it.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import aiohttp

from terazi.engines.base import LaunchSpec
from terazi.engines.llama_cpp.bench import parse_timings
from terazi.performance.calibration import Calibration, DeviceCalibration, KernelTime
from terazi.performance.efficiency import DECODE_SPREAD
from terazi.performance.forecast import Interval, forecast
from terazi.performance.kernel_fit import quiet
from terazi.performance.saved_calibration import calibration_to_json
from terazi.performance.timing import Timing
from terazi.placement.plan import Plan
from terazi.service.bystanders import look
from terazi.service.calibrate import calibrate
from terazi.service.weigh import find_machine, weigh_command
from terazi.supervisor.asking import stand_ins
from terazi.supervisor.find_engine import find_llama_server
from terazi.supervisor.health import EngineClient

OUTPUT = 24


@dataclasses.dataclass(slots=True)
class Case:
    """One model, number of streams and prompt length, and what was timed so far."""

    model: str
    streams: int
    prompt: int
    steps_s: list[float] = dataclasses.field(default_factory=list)
    firsts_s: list[float] = dataclasses.field(default_factory=list)

    @property
    def argv(self) -> list[str]:
        each = self.prompt + 2 * OUTPUT
        each += -each % 256
        words = ["llama-server", "-m", self.model, "-np", str(self.streams), "-c", str(each * self.streams)]
        return [*words, "-cram", "0"]


async def run_case(case: Case, server: str, repeats: int, *, engine_clock: bool = False) -> None:
    """Add *repeats* times of each kind to *case*."""
    threads = str(find_machine(None).host.cores)  # as `terazi up` starts it

    def launch(port: int) -> LaunchSpec:
        argv = (server, *case.argv[1:], "--host", "127.0.0.1", "--port", str(port), "--no-webui", "-t", threads)
        return LaunchSpec(plan_id="", engine="llama.cpp", model_name="", argv=argv, base_url="", api_key="")

    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with stand_ins(launch, 1) as (address,), aiohttp.ClientSession(connector=connector) as session:
        client = EngineClient(f"http://{address}", "")
        while not await client.healthy("/health"):  # noqa: ASYNC110 - the other end is a process
            await asyncio.sleep(0.05)
        await client.close()

        async def ask(slot: int, output: int, *, cached: bool) -> tuple[str, float]:
            # words differ from slot to slot, and are no special ones
            prompt = [1000 + (slot * 7919 + i * 31) % 20000 for i in range(case.prompt)]
            body = {
                "prompt": prompt, "n_predict": output, "ignore_eos": True, "id_slot": slot, "cache_prompt": cached,
            }  # fmt: skip
            began = time.perf_counter()
            async with session.post(f"http://{address}/completion", json=body) as answer:
                return await answer.text(), time.perf_counter() - began

        await ask(0, 2, cached=False)
        for _ in range(repeats):
            if case.streams == 1:
                text, took_s = await ask(0, 2 if engine_clock else 1, cached=False)
                case.firsts_s.append(parse_timings(text).prompt_s if engine_clock else took_s)
            for slot in range(case.streams):  # one after the other, into the cache
                await ask(slot, 1, cached=True)
            answers = await asyncio.gather(*(ask(s, OUTPUT, cached=True) for s in range(case.streams)))
            took = [parse_timings(text) for text, _ in answers]
            if max(t.prompt_tokens for t in took) <= 16:
                case.steps_s.append(statistics.fmean(t.token_s for t in took))


def fastest(found: Sequence[Calibration]) -> Calibration:
    """Of each figure the fastest: others on the machine only slow it down."""

    def merge(devices: Sequence[DeviceCalibration]) -> DeviceCalibration:
        def rate(name: str) -> float | None:
            return max((v for d in devices if (v := getattr(d, name)) is not None), default=None)

        kernels = tuple(
            KernelTime(
                k.dtype,
                least(d.kernels[i].batches for d in devices),
                least(d.kernels[i].rows for d in devices),
            )
            for i, k in enumerate(devices[0].kernels)
        )
        return dataclasses.replace(
            devices[0],
            kernels=kernels,
            layer_batches=least(d.layer_batches for d in devices),
            attention_flops_per_s=rate("attention_flops_per_s"),
            prefill_attention_flops_per_s=rate("prefill_attention_flops_per_s"),
            step_s=min(d.step_s for d in devices),
            token_s=min(d.token_s for d in devices),
            vocab_s=min(d.vocab_s for d in devices),
        )

    def least(rows: Iterable[tuple[tuple[int, float], ...]]) -> tuple[tuple[int, float], ...]:
        return tuple((at[0][0], min(s for _, s in at)) for at in zip(*rows, strict=True))

    return dataclasses.replace(found[0], devices=tuple(map(merge, zip(*(c.devices for c in found), strict=True))))


def expected(case: Case, calibration: Calibration) -> tuple[Interval, Interval]:
    """Tokens per second of all streams, and seconds to the first token, of exactly the command that was run."""
    machine = find_machine(None)
    weighed = weigh_command(case.argv, machine, prompt=case.prompt, output=OUTPUT)
    assert isinstance(weighed.outcome, Plan)
    workload = dataclasses.replace(weighed.workload, users=1, prompt=case.prompt, output=OUTPUT)
    alone = forecast(weighed.spec, weighed.outcome, machine, workload, calibration=calibration)
    timing = Timing.of(weighed.spec, weighed.outcome, machine, calibration)
    step = timing.step(batch=case.streams, depth=case.prompt + OUTPUT / 2)
    low, high = timing.spread(step.by_device, DECODE_SPREAD)
    mid = case.streams / step.seconds
    return Interval(low=low * mid, mid=mid, high=high * mid), alone.ttft_s


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=4, help="of each case in each round")
    parser.add_argument("--streams", default="1,4,16")
    parser.add_argument("--prompts", default="24,128,512")
    parser.add_argument("--raw", type=Path, help="where all that was measured is kept")
    parser.add_argument(
        "--engine-clock", action="store_true", help="time to the first token as the engine tells it, not its client"
    )
    args = parser.parse_args(argv)
    server = find_llama_server(None, os.environ).path
    cases = [
        Case(model, int(streams), int(prompt))
        for model in args.models
        for streams in args.streams.split(",")
        for prompt in args.prompts.split(",")
    ]
    found = []
    with tempfile.TemporaryDirectory() as home:
        os.environ["TERAZI_HOME"] = home
        for number in range(args.rounds):
            print(f"round {number + 1}: {look().words()}", file=sys.stderr)
            found.append(calibrate(lambda text: print(text, file=sys.stderr), force=True).calibration)
            for case in cases:
                asyncio.run(run_case(case, server, args.repeats, engine_clock=args.engine_clock))
            if args.raw is not None:
                rows = [dataclasses.asdict(c) for c in cases]
                args.raw.write_text(
                    json.dumps({"cases": rows, "calibrations": [calibration_to_json(c) for c in found]})
                )
    print_table(cases, fastest(found))


def print_table(cases: Sequence[Case], calibration: Calibration) -> None:
    """Measured beside forecast, and the median errors."""
    print(
        f"{'model':<34}{'streams':>8}{'prompt':>7}{'what':>12}{'measured':>10}{'forecast':>10}{'error':>8}  quiet"
    )
    errors: dict[str, list[float]] = {"tok/s": [], "TTFT ms": []}
    within = 0
    for case in cases:
        decode, ttft = expected(case, calibration)
        rows = []
        if case.steps_s:
            # streams that came late, so that few ran together, make a round look fast: the middle one then counts
            middle = statistics.median_high(case.steps_s)
            step = quiet(case.steps_s) if case.streams == 1 else quiet([s for s in case.steps_s if s >= middle])
            rows.append(("tok/s", case.streams / step.seconds, decode, step))
        if case.firsts_s:
            first = quiet(case.firsts_s)
            low, mid, high = (1e3 * s for s in (ttft.low, ttft.mid, ttft.high))
            rows.append(
                (
                    "TTFT ms",
                    1e3 * first.seconds,
                    Interval(low=low, mid=mid, high=high),
                    first,
                )
            )
        for what, measured, interval, how in rows:
            error = interval.mid / measured - 1
            errors[what].append(abs(error))
            within += interval.low <= measured <= interval.high
            print(
                f"{Path(case.model).stem[:33]:<34}{case.streams:>8}{case.prompt:>7}{what:>12}{measured:>10.1f}"
                f"{interval.mid:>10.1f}{error:>8.0%}  {how.used}/{how.samples}"
            )
    for what, values in errors.items():
        if values:
            print(f"{what}: median error {statistics.median(values):.1%} of {len(values)}")
    total = sum(map(len, errors.values()))
    print(f"{within} of {total} within their interval")


if __name__ == "__main__":
    main()
