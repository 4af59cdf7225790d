"""Tells an engine that is busy from one that is stuck: ``step(state, sample) -> (state, verdict)``.

``/health`` says little: llama-server answers it, ``/slots`` and ``/metrics`` within a millisecond while one batch
of 2,048 prompt tokens keeps it busy for ten seconds, during which no counter of its own moves (measured at b11434;
the batch is decoded outside the loop that answers). Another engine answers nothing while it works hard. So four
signs are weighed against each other, the strongest first:

- it *moves*: a byte of an answer came, one of its counters changed, a request was finished;
- it is *active*: its processes use CPU or its accelerator works;
- it *answers* a question;
- the kernel has *stopped* it, which leaves none of the others.

While requests are in flight, each combination has a patience of its own, and patience grows with the time that one
batch of the prompt is expected to take. With nothing in flight it is asked a cheap question now and then, and only
after doubt for a token. Time during which nobody looked, since this program itself was kept from running, doesn't
count against the engine.
"""

from dataclasses import dataclass, replace
from enum import StrEnum


class Liveness(StrEnum):
    """What an engine is doing."""

    IDLE = "idle"
    BUSY = "busy"
    SUSPECT = "suspect"  # nothing moves, and its patience is half used up
    STUCK = "stuck"


class Ask(StrEnum):
    """What the next sample shall bring beside what costs nothing."""

    NOTHING = "nothing"
    LOOK = "look"  # one cheap GET
    GENERATE = "generate"  # a generation of one token


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds, unless said otherwise.

    Args:
        look_s: between two samples while requests are in flight.
        silent_s: without any sign of life at all, requests in flight: then it is stuck.
        active_s: it is active, and nothing moves: as long as that is believed, or four times ``slack`` times the
            expected time of a batch if that is longer. (Encoding an image moves no counter. A processor may also
            turn in a loop that waits for an accelerator that is gone, hence a limit.)
        busy_s: the same while nothing is known of what to expect.
        slack: times the expected time that a batch may take.
        idle_look_s: between two questions while nothing is in flight; 0 asks none.
        doubt_s: until the next question after one without an answer.
        doubts: questions in a row without an answer until a token is asked for.
        active_share: of one CPU, or of an accelerator, that counts as being active.
    """

    look_s: float = 3.0
    silent_s: float = 15.0
    active_s: float = 120.0
    busy_s: float = 600.0
    slack: float = 4.0
    idle_look_s: float = 30.0
    doubt_s: float = 2.0
    doubts: int = 3
    active_share: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look. None is what wasn't asked, or can't be known.

    Args:
        at: monotonic seconds.
        in_flight: requests that the gateway has in the engine.
        bytes_seen: of its answers so far.
        answered: whether the question was answered.
        counters: the engine's own, any of which only changes when it has done something.
        working: requests that the engine itself says it works on or lets wait.
        cpu_s: that its processes have used so far.
        accelerator_share: 0 to 1, of the accelerator that works for it most.
        stopped: the kernel lets it do nothing (SIGSTOP).
        expected_s: the longest that it should take between two moves at what it is doing.
        token: whether the token that was asked for came.
    """

    at: float
    in_flight: int
    bytes_seen: int = 0
    answered: bool | None = None
    counters: tuple[float, ...] | None = None
    working: int | None = None
    cpu_s: float | None = None
    accelerator_share: float | None = None
    stopped: bool = False
    expected_s: float | None = None
    token: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found: ``reason`` is one clause; ``ask`` and ``again_s`` are for the next sample."""

    liveness: Liveness
    reason: str
    ask: Ask
    again_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is remembered of one start of one engine.

    Args:
        last: the sample before.
        counters: the last that were read.
        moved_at, active_at, answered_at: when each sign was last seen; ``moved_at`` is set when work begins.
        working: what the engine last said about itself.
        unanswered: questions in a row.
        stuck: a verdict that only a token takes back (an engine that isn't ours to end).
    """

    patience: Patience = Patience()
    last: Sample | None = None
    counters: tuple[float, ...] | None = None
    moved_at: float = 0.0
    active_at: float = 0.0
    answered_at: float = 0.0
    working: int = 0
    unanswered: int = 0
    stuck: bool = False


def expected_step_s(batch_tokens: int, prefill_tok_s: float | None) -> float | None:
    """The longest between two moves: a whole batch of a prompt; None if no rate is known.

    llama-server counts prompt tokens when the whole logical batch (``-b``) has been decoded, not each micro-batch
    (``server-context.cpp:metrics_post_decode``, b11434).
    """
    return batch_tokens / prefill_tok_s if prefill_tok_s else None


def step(state: State, sample: Sample) -> tuple[State, Verdict]:
    """Take in one sample."""
    state = _remember(_excuse(state, sample), sample)
    if state.stuck:
        return _still_stuck(state, sample)
    if sample.in_flight > 0 or state.working > 0:
        return _at_work(state, sample)
    return _at_rest(state, sample)


# --- what was seen ------------------------------------------------------------------------------------


def _excuse(state: State, sample: Sample) -> State:
    """Shift all moments by the time in which nobody looked."""
    if state.last is None:
        return replace(state, moved_at=sample.at, active_at=sample.at, answered_at=sample.at)
    most = 2 * max(state.patience.look_s, state.patience.silent_s / 4)
    idle = state.last.in_flight == 0 and state.working == 0
    excess = sample.at - state.last.at - most
    if excess <= 0 or idle:
        return state
    return replace(
        state,
        moved_at=state.moved_at + excess,
        active_at=state.active_at + excess,
        answered_at=state.answered_at + excess,
    )


def _remember(state: State, sample: Sample) -> State:
    last = state.last
    moved, active = last is None, False
    if last is not None:
        moved = (
            sample.bytes_seen != last.bytes_seen
            or (sample.counters is not None and sample.counters != state.counters)
            or sample.in_flight < last.in_flight
            or (sample.in_flight > 0 and last.in_flight == 0)
            or sample.token is True
        )
        if sample.cpu_s is not None and last.cpu_s is not None and sample.at > last.at:
            # a child that has ended takes its time with it, so less is no activity either
            active = (sample.cpu_s - last.cpu_s) / (sample.at - last.at) >= state.patience.active_share
        active = active or (sample.accelerator_share or 0.0) >= state.patience.active_share
    unanswered = state.unanswered
    if sample.answered is not None:
        unanswered = 0 if sample.answered else unanswered + 1
    return replace(
        state,
        last=sample,
        counters=state.counters if sample.counters is None else sample.counters,
        moved_at=sample.at if moved else state.moved_at,
        active_at=sample.at if active and not sample.stopped else state.active_at,
        answered_at=sample.at if sample.answered else state.answered_at,
        working=state.working if sample.working is None else sample.working,
        unanswered=unanswered,
    )


# --- verdicts -----------------------------------------------------------------------------------------


def _at_work(state: State, sample: Sample) -> tuple[State, Verdict]:
    patience, now = state.patience, sample.at
    since, allowed, why = _allowance(state, sample)
    quiet, left = now - state.moved_at, allowed - (now - since)
    if left <= 0:
        reason = f"{_flight(sample, state)} and nothing has moved for {quiet:.0f} s; {why}"
        return replace(state, stuck=True), Verdict(
            liveness=Liveness.STUCK,
            reason=reason,
            ask=Ask.GENERATE,
            again_s=patience.idle_look_s or patience.look_s,
        )
    if quiet < patience.look_s:  # its bytes flow: no need to ask
        return state, Verdict(
            liveness=Liveness.BUSY, reason=_flight(sample, state), ask=Ask.NOTHING, again_s=patience.look_s
        )
    return state, Verdict(
        liveness=Liveness.SUSPECT if left < allowed / 2 else Liveness.BUSY,
        reason=f"{_flight(sample, state)}, nothing has moved for {quiet:.0f} s; {why}",
        ask=Ask.LOOK,
        again_s=min(patience.look_s, max(0.05, left)),
    )


def _allowance(state: State, sample: Sample) -> tuple[float, float, str]:
    """Since when it has given no sign, how long it may go on so, and what that rests on."""
    patience, moved = state.patience, state.moved_at
    expected = None if sample.expected_s is None else patience.slack * sample.expected_s
    believed = patience.busy_s if expected is None else max(patience.active_s, 4 * expected)
    sign = max(moved, state.active_at)
    if sample.stopped:
        return sign, patience.silent_s, "the system has stopped its process"
    if state.active_at > moved and sample.at - state.active_at < 2 * patience.look_s:
        return moved, believed, "it works, as its use of the processors shows"
    if sample.cpu_s is not None or sample.accelerator_share is not None:
        if state.unanswered:
            return sign, patience.silent_s, "it uses no processor and answers no question"
        # an accelerator may work for it unseen: another machine's, or one that is waited for without a loop
        unseen = 4 * patience.silent_s if expected is None else max(patience.silent_s, expected)
        return sign, unseen, "it answers questions and uses no processor"
    if state.unanswered < patience.doubts:
        how = "has missed a question" if state.unanswered else "answers questions"
        return moved, believed, f"it {how}, and what it works on can't be seen from here"
    return (
        max(moved, state.answered_at),
        max(2 * patience.silent_s, expected or 0.0),
        "it answers no question",
    )


def _at_rest(state: State, sample: Sample) -> tuple[State, Verdict]:
    patience = state.patience
    state = replace(state, moved_at=sample.at)
    if patience.idle_look_s <= 0:
        return state, Verdict(
            liveness=Liveness.IDLE, reason="nothing is in flight", ask=Ask.NOTHING, again_s=patience.look_s
        )
    if sample.token is False and state.unanswered >= patience.doubts:
        reason = f"idle, {state.unanswered} questions and a request for one token went unanswered"
        reason += ": the system has stopped its process" if sample.stopped else ""
        return replace(state, stuck=True), Verdict(
            liveness=Liveness.STUCK, reason=reason, ask=Ask.GENERATE, again_s=patience.idle_look_s
        )
    if sample.token:
        state = replace(state, unanswered=0)
    if state.unanswered:
        doubtful = state.unanswered >= patience.doubts
        return state, Verdict(
            liveness=Liveness.SUSPECT,
            reason=f"idle, {state.unanswered} questions in a row went unanswered",
            ask=Ask.GENERATE if doubtful else Ask.LOOK,
            again_s=patience.doubt_s,
        )
    return state, Verdict(
        liveness=Liveness.IDLE, reason="nothing is in flight", ask=Ask.LOOK, again_s=patience.idle_look_s
    )


def _still_stuck(state: State, sample: Sample) -> tuple[State, Verdict]:
    """Whose engine it is ends it; one that we only use is asked for a token until it gives one."""
    patience = state.patience
    if sample.token:
        well = replace(state, stuck=False, unanswered=0, moved_at=sample.at)
        return well, Verdict(
            liveness=Liveness.IDLE, reason="it generates again", ask=Ask.LOOK, again_s=patience.look_s
        )
    return state, Verdict(
        liveness=Liveness.STUCK,
        reason="it has given no token since",
        ask=Ask.GENERATE,
        again_s=patience.idle_look_s or patience.look_s,
    )


def _flight(sample: Sample, state: State) -> str:
    n = max(sample.in_flight, state.working)
    return f"{n} request{'s' if n != 1 else ''} in flight"
