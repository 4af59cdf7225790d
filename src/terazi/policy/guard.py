"""Acts on pressure before the kernel's killer or swap does: ``step(state, sample) -> (state, commands)``.

    open ─▶ paused ─▶ shedding ─▶ shrinking
      ◀────────◀──────────◀───────────┘

Each stage takes the ones before it along: *paused* lets no new request in, *shedding* has idle models unloaded,
*shrinking* has the largest model drained and started smaller. Stages are entered one at a time and in order, and
each is given time to work before the next (``step_s``); they are left one at a time too, and only when everything
that led into them has been clearly better (``ease``) for ``settle_s``. A figure that isn't measured says nothing.

Heat and a full disk are answered by pausing alone: what is idle makes no heat, and unloading frees no disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from terazi.policy.guard_messages import (
    Announce,
    Command,
    Limits,
    PauseAdmission,
    ResumeAdmission,
    Sample,
    ShedIdle,
    Shrink,
    Stage,
    Terms,
)
from terazi.policy.pressure import figures, gauges, need


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is remembered.

    Args:
        since: when the stage was entered.
        worst_at: when the present stage's own limits were last not clearly passed.
        shed_at, shrunk_at: when idle models were last unloaded, a model last started smaller.
        throttled_since: by device, since when without a break.
        oom_kills: as last counted.
    """

    terms: Terms = field(default_factory=Terms)
    stage: Stage = Stage.OPEN
    since: float = 0.0
    worst_at: float = 0.0
    shed_at: float = 0.0
    shrunk_at: float = 0.0
    throttled_since: Mapping[str, float] = field(default_factory=dict)
    oom_kills: int | None = None


def step(state: State, sample: Sample) -> tuple[State, tuple[Command, ...]]:
    """Take in one look."""
    now = sample.at
    throttled = {
        device: state.throttled_since.get(device, now) for device, card in sample.cards.items() if card.throttled
    }
    killed = state.oom_kills is not None and sample.oom_kills is not None and sample.oom_kills > state.oom_kills
    state = replace(
        state,
        throttled_since=throttled,
        oom_kills=state.oom_kills if sample.oom_kills is None else sample.oom_kills,
    )
    if state.stage is not Stage.OPEN and (killed or _breaches(state, sample, state.stage, eased=True)):
        state = replace(state, worst_at=now)
    if state.stage < Stage.SHRINKING:
        above = Stage(state.stage + 1)
        worse = _breaches(state, sample, above, eased=False)
        if killed and above is not Stage.SHRINKING:
            worse = ["the kernel has killed a process for want of memory", *worse]
        worked = state.stage is Stage.OPEN or now - state.since >= state.terms.step_s
        if worse and worked:
            return _enter(state, sample, above, worse)
    if state.stage is Stage.OPEN:
        return state, ()
    if now - state.worst_at >= state.terms.settle_s and now - state.since >= state.terms.settle_s:
        return _leave(state, sample)
    return _insist(state, sample)


def _enter(state: State, sample: Sample, stage: Stage, why: list[str]) -> tuple[State, tuple[Command, ...]]:
    now, reason = sample.at, "; ".join(why)
    entered = replace(state, stage=stage, since=now, worst_at=now)
    commands: list[Command] = [Announce(stage=stage, reason=reason)]
    if stage is Stage.PAUSED:
        commands.append(PauseAdmission(reason=reason))
    elif stage is Stage.SHEDDING:
        entered = replace(entered, shed_at=now)
        commands.append(ShedIdle(need=_need(state, sample), reason=reason))
    else:
        entered = replace(entered, shrunk_at=now)
        commands.append(Shrink(need=_need(state, sample), reason=reason))
    return entered, tuple(commands)


def _leave(state: State, sample: Sample) -> tuple[State, tuple[Command, ...]]:
    below = Stage(state.stage - 1)
    reason = (
        f"better for {state.terms.settle_s:g} s: {figures(state.terms.stages.get(Stage.PAUSED, Limits()), sample)}"
    )
    commands: tuple[Command, ...] = (Announce(stage=below, reason=reason),)
    if below is Stage.OPEN:
        commands += (ResumeAdmission(),)
    # the stage below has limits of its own to settle by, and counts from now
    return replace(state, stage=below, since=sample.at, worst_at=sample.at), commands


def _insist(state: State, sample: Sample) -> tuple[State, tuple[Command, ...]]:
    """Still as bad after a while: what has become idle meanwhile goes too, and the last stage acts once more."""
    terms, now = state.terms, sample.at
    commands: list[Command] = []
    if state.stage >= Stage.SHEDDING and now - state.shed_at >= terms.settle_s:
        worse = _breaches(state, sample, Stage.SHEDDING, eased=False)
        if worse:
            state = replace(state, shed_at=now)
            commands.append(ShedIdle(need=_need(state, sample), reason="; ".join(worse)))
    if state.stage is Stage.SHRINKING and now - state.shrunk_at >= terms.shrink_again_s:
        worse = _breaches(state, sample, Stage.SHRINKING, eased=False)
        if worse:
            state = replace(state, shrunk_at=now)
            commands.append(Shrink(need=_need(state, sample), reason="; ".join(worse)))
    return state, tuple(commands)


def _breaches(state: State, sample: Sample, stage: Stage, *, eased: bool) -> list[str]:
    """Which limits of *stage* or a later one are passed; ``eased``: those that aren't clearly met again, too."""
    terms = state.terms
    found = [
        gauge.text
        for each, limits in sorted(terms.stages.items())
        if each >= stage
        for gauge in gauges(limits, sample, terms.ease)
        if gauge.short(eased=eased)
    ][:4]
    if stage is Stage.PAUSED and terms.throttled_s is not None:
        for device, since in state.throttled_since.items():
            if eased or sample.at - since >= terms.throttled_s:
                found.append(f"the driver has slowed {device} for {sample.at - since:.0f} s")
    return found


def _need(state: State, sample: Sample) -> dict[str, int]:
    return need(state.terms.stages.get(Stage.PAUSED, Limits()), sample, state.terms.ease)
