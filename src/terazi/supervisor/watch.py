"""Looks at a running engine as ``policy.progress`` asks, and says when it is stuck.

While answers flow, a look reads two small files of the kernel's; a question over HTTP is asked only when nothing
has moved for a while, and now and then when nothing is in flight.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from terazi.engines.base import LaunchSpec
from terazi.engines.counters import Counters, read_counters
from terazi.policy.progress import Ask, Liveness, Patience, Sample, State, Verdict, expected_step_s, step
from terazi.supervisor.health import EngineClient, ProbeError
from terazi.supervisor.vitals import cpu_s, is_stopped

_MAX_METRICS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is watched, and what is known about it.

    Args:
        look_path: the cheap question; if its answer is metrics, they are read.
        probe_path, probe_body: a request for one token.
        batch_tokens: prompt tokens that it works on between two moves of its counters.
        prefill_tok_s: as forecast; what it is measured at counts if that is less.
        pid, group: its process and control group; None for an engine that others run.
        in_flight: requests of ours in it.
        bytes_seen: of its answers so far, if somebody counts.
    """

    look_path: str = "/metrics"
    probe_path: str
    probe_body: str
    batch_tokens: int = 2048
    prefill_tok_s: float | None = None
    pid: int | None = None
    group: str | None = None
    in_flight: Callable[[], int]
    bytes_seen: Callable[[], int] = lambda: 0


def watched_process(
    spec: LaunchSpec,
    pid: int,
    group: str | None,
    *,
    in_flight: Callable[[], int],
    bytes_seen: Callable[[], int] = lambda: 0,
) -> Watched:
    """An engine of ours: *pid* runs *spec*, in the control group *group* if it has one of its own."""
    return Watched(
        look_path=spec.look_path,
        probe_path=spec.probe_path,
        probe_body=spec.probe_body,
        batch_tokens=spec.batch_tokens,
        prefill_tok_s=spec.prefill_tok_s,
        pid=pid,
        group=group,
        in_flight=in_flight,
        bytes_seen=bytes_seen,
    )


async def watch(
    client: EngineClient, watched: Watched, patience: Callable[[], Patience]
) -> AsyncGenerator[Verdict, None]:
    """Verdicts as they come, without end; of equals in a row the first. For one start of an engine.

    Whoever runs the engine ends it at the first ``STUCK``, and this iterator with it. Whoever only uses it reads
    on: the engine is well when the next verdict says so. *patience* is asked before each look, and may change.
    """
    loop = asyncio.get_running_loop()
    state, last = State(patience=patience()), None
    measured: float | None = None
    verdict = Verdict(liveness=Liveness.IDLE, reason="", ask=Ask.NOTHING, again_s=state.patience.look_s)
    while True:
        await _pause(loop, watched, verdict, state.patience)
        state = replace(state, patience=patience())
        began = loop.time()
        found, token = await _ask(client, watched, verdict.ask, state.patience)
        if found is not None and found.prefill_tok_s is not None:
            measured = found.prefill_tok_s
        rates = [rate for rate in (measured, watched.prefill_tok_s) if rate]
        asked = verdict.ask is not Ask.NOTHING
        now = loop.time()
        state, verdict = step(
            state,
            Sample(
                at=now,
                in_flight=watched.in_flight(),
                bytes_seen=watched.bytes_seen(),
                answered=(found is not None) if asked else None,
                counters=None if found is None else found.moving,
                working=None if found is None else found.working,
                cpu_s=None if watched.pid is None else cpu_s(watched.pid, watched.group),
                stopped=watched.pid is not None and is_stopped(watched.pid),
                expected_s=expected_step_s(watched.batch_tokens, min(rates) if rates else None),
                token=token,
            ),
        )
        if verdict.liveness is not last:
            last = verdict.liveness
            yield verdict
        took = loop.time() - began
        verdict = _sooner(verdict, took)


def _sooner(verdict: Verdict, took_s: float) -> Verdict:
    """The time that a question took counts as a part of the pause before the next one."""
    pause = max(0.05, verdict.again_s - took_s)
    return Verdict(liveness=verdict.liveness, reason=verdict.reason, ask=verdict.ask, again_s=pause)


async def _pause(loop: asyncio.AbstractEventLoop, watched: Watched, verdict: Verdict, patience: Patience) -> None:
    """Wait as long as was asked for; an idle engine's pause ends when a request comes."""
    end = loop.time() + verdict.again_s
    idle = watched.in_flight() == 0
    while (left := end - loop.time()) > 0:
        await asyncio.sleep(min(left, patience.look_s) if idle else left)
        if idle and watched.in_flight() > 0:
            return


async def _ask(
    client: EngineClient, watched: Watched, ask: Ask, patience: Patience
) -> tuple[Counters | None, bool | None]:
    """What the question brought: counters (None: no answer), and whether the token came (None: not asked)."""
    if ask is Ask.NOTHING:
        return None, None
    if ask is Ask.GENERATE:
        token = False
        with suppress(ProbeError, TimeoutError):
            async with asyncio.timeout(patience.silent_s):
                await client.generate(watched.probe_path, watched.probe_body)
                token = True
        return (Counters() if token else None), token
    answered, text = await client.question(watched.look_path, limit_bytes=_MAX_METRICS, timeout_s=patience.look_s)
    if not answered:
        return None, None
    return (Counters() if text is None else read_counters(text)), None
