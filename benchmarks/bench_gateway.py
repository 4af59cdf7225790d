"""What the gateway adds and costs: the same streams direct, through nginx and through the gateway, in turn.

    PYTHONPATH=src:tests:benchmarks python benchmarks/bench_gateway.py [--streams 1,16,64,256] [--rounds 6]
        [--events 64]
        [--peer NAME=PORT,PID] [--skip idle]

All targets are measured in one run, call by call in turn, so that whatever else the machine does meets each of
them; compare ratios within a run, not figures of two runs. Printed are

- for each number of streams: the time that a target adds to the first event (p50 and p99 of all its calls less the
  direct ones' p50 or p99), and its CPU time per streamed event;
- the same taken apart: what a request costs that gets one event, and what each further event does;
- flat out, 64 streams without a pace: events per second;
- idle: what it holds in memory with 10,000 streams that are open and wait for their next token.

nginx runs with proxy_buffering off and one worker; *floor* passes bytes on unseen, the least that Python on uvloop
can do; LiteLLM joins in where it is installed.
"""

import argparse
import asyncio
import resource
import tempfile
import time
from pathlib import Path

import uvloop

from gateway_client import Caller, connect
from gateway_targets import (
    Target,
    given_peer,
    request_bytes,
    start_engine,
    start_floor,
    start_litellm,
    start_nginx,
    start_ours,
    until_it_answers,
)

EVENTS = 64
EVERY_MS = 20
FLAT_EVENTS = 1500
IDLE_STREAMS = 10_000


def quantile(values: list[float], share: float) -> float:
    """The value below which *share* of *values* lie, in milliseconds."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1000


async def paced(targets: list[Target], streams: int, rounds: int, length: int) -> None:
    """*streams* clients, each calling all targets in turn, spread over the length of a stream."""
    request = request_bytes(events=length, every_ms=EVERY_MS)
    firsts: dict[str, list[float]] = {t.name: [] for t in targets}
    events = dict.fromkeys(firsts, 0)

    async def client(number: int) -> None:
        caller = Caller()
        # requests that all start at one instant would measure a queue
        await asyncio.sleep(number / streams * length * EVERY_MS / 1000)
        for turn in range(rounds):
            for step in range(len(targets)):
                target = targets[(number + turn + step) % len(targets)]
                first_s, got = await caller.call(target, request)
                if turn or rounds == 1:  # the first round warms up
                    firsts[target.name].append(first_s)
                events[target.name] += got
        caller.close()

    before = {t.name: t.cpu_s() for t in targets}
    await asyncio.gather(*(client(n) for n in range(streams)))
    direct = firsts["direct"]
    for target in targets:
        mine = firsts[target.name]
        cpu_us = (target.cpu_s() - before[target.name]) / events[target.name] * 1e6
        p50, p99 = quantile(mine, 0.5), quantile(mine, 0.99)
        added = "" if mine is direct else f"{p50 - quantile(direct, 0.5):>9.2f}{p99 - quantile(direct, 0.99):>9.2f}"
        cpu = "" if target.pid is None or mine is direct else f"{cpu_us:>11.1f}"
        print(f"{streams:>7}  {target.name:<10}{p50:>9.2f}{p99:>9.2f}{added:>18}{cpu}", flush=True)


async def split(targets: list[Target], streams: int, rounds: int) -> None:
    """What a request costs that gets one event, and what each further event does; the middle of the rounds."""
    requests: dict[str, list[float]] = {t.name: [] for t in targets}
    further: dict[str, list[float]] = {t.name: [] for t in targets}

    async def cost_us(target: Target, events: int, calls: int) -> float:
        request = request_bytes(events=events, every_ms=EVERY_MS)

        async def client(number: int) -> None:
            caller = Caller()
            await asyncio.sleep(number / streams * events * EVERY_MS / 1000)
            for _ in range(calls):
                await caller.call(target, request)
            caller.close()

        before = target.cpu_s()
        await asyncio.gather(*(client(n) for n in range(streams)))
        return (target.cpu_s() - before) / (streams * calls) * 1e6

    for turn in range(rounds):
        for step in range(len(targets)):
            target = targets[(turn + step) % len(targets)]
            short = await cost_us(target, 1, max(3, 100 // streams))
            requests[target.name].append(short)
            further[target.name].append((await cost_us(target, EVENTS, 1) - short) / (EVENTS - 1))
    for target in targets:
        one, more = (sorted(of[target.name])[rounds // 2] for of in (requests, further))
        print(f"{streams:>7}  {target.name:<10}{one:>12.0f}{more:>14.1f}", flush=True)


async def flat_out(targets: list[Target], streams: int, rounds: int) -> None:
    """As many events as go through, target after target."""
    request = request_bytes(events=FLAT_EVENTS, every_ms=0)
    rates: dict[str, list[float]] = {t.name: [] for t in targets}
    costs: dict[str, list[float]] = {t.name: [] for t in targets}
    for turn in range(rounds):
        for step in range(len(targets)):
            target = targets[(turn + step) % len(targets)]
            callers = [Caller() for _ in range(streams)]
            began, cpu = time.perf_counter(), target.cpu_s()
            got = await asyncio.gather(*(caller.call(target, request) for caller in callers))
            events = sum(n for _, n in got)
            rates[target.name].append(events / (time.perf_counter() - began))
            costs[target.name].append((target.cpu_s() - cpu) / events * 1e6)
            for caller in callers:
                caller.close()
    for target in targets:
        best, cost = max(rates[target.name]), min(costs[target.name])
        middle = sorted(rates[target.name])[len(rates[target.name]) // 2]
        print(f"{streams:>7}  {target.name:<10}{middle:>12.0f}{best:>12.0f}{cost:>12.1f}", flush=True)


async def idle(target: Target, streams: int) -> None:
    """Open *streams* that get one event and then wait."""
    request = request_bytes(events=1, every_ms=0, hold=True)
    before = target.rss_mib()
    clients = []
    for _ in range(0, streams, 100):
        some = await asyncio.gather(*(connect(target) for _ in range(100)))
        for client in some:
            client.ask(request)
        await asyncio.gather(*(client.begun for client in some if client.begun is not None))
        clients += some
    await asyncio.sleep(1)
    after, cpu = target.rss_mib(), target.cpu_s()
    await asyncio.sleep(2)
    busy = (target.cpu_s() - cpu) / 2 * 100
    print(f"{len(clients):>7}  {target.name:<10}{before:>9.0f}{after:>9.0f}{busy:>9.1f}", flush=True)
    for client in clients:
        if client.transport is not None:
            client.transport.abort()
    await asyncio.sleep(2)


async def measure(args: argparse.Namespace, folder: Path) -> None:
    """Start everything, print the tables, stop everything."""
    engine = start_engine()
    targets = [engine]
    try:
        for found in (
            start_nginx(engine.port, folder),
            start_floor(engine.port),
            start_ours(engine.port),
            start_litellm(engine.port, folder),
        ):
            if isinstance(found, str):
                print(found)
            else:
                targets.append(found)
        targets += [given_peer(text) for text in args.peer]
        for target in targets:
            await until_it_answers(target)
        if "paced" not in args.skip:
            print(f"\n{args.events} events, one every {EVERY_MS} ms; time to the first in ms, CPU in µs per event")
            print("streams  target          p50      p99    added      p99  CPU/event")
            for streams in args.streams:
                await paced(targets, streams, args.rounds, args.events)
        if "split" not in args.skip:
            print("\nCPU in µs of a request that gets one event, and of each further event")
            print("streams  target       a request   a further event")
            for streams in args.streams:
                await split(targets[1:], streams, args.rounds)
        if "flat" not in args.skip:
            print("\nflat out; events per second, middle and best of the rounds, and CPU in µs per event")
            print("streams  target          middle        best   CPU/event")
            await flat_out(targets, 64, args.rounds)
        if "idle" not in args.skip:
            print("\nidle streams; MiB before and with them, and CPU in % of a core")
            print("streams  target       before    after      CPU")
            # a proxy needs two descriptors for each, and some for itself
            streams = min(IDLE_STREAMS, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 200 - 1) * 100)
            for target in targets[1:]:
                await idle(target, streams)
    finally:
        for target in reversed(targets):
            target.stop()


def main() -> None:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--streams", type=lambda text: [int(n) for n in text.split(",")], default=[1, 16, 64, 256])
    parser.add_argument("--events", type=int, default=EVENTS, help="of a stream in the first table")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PORT,PID", type=str)
    parser.add_argument("--skip", default="", help="paced, split, flat, idle: any of them, with commas")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(args, Path(folder)))


if __name__ == "__main__":
    main()
