"""How many engines of one model: one more when its requests keep waiting, one fewer when one stays without work.

``step(state, look, terms) -> (state, change)``, one model at a time. Whether there is memory for one more is the
keeper's question, not this one's; what can't be loaded is asked for again after a pause.
"""

from dataclasses import dataclass, replace
from typing import Final

#: More.
UP: Final = 1
#: Fewer.
DOWN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """When to change, in seconds.

    Args:
        least, most: engines of the model.
        up_after_s: its oldest request has waited so long, at every look in a time as long.
        down_after_s: an engine could have been spared at every look in so long.
        pause_s: from one change to the next one upward.
    """

    least: int
    most: int
    up_after_s: float = 5.0
    down_after_s: float = 120.0
    pause_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is seen of a model.

    Args:
        at: monotonic seconds.
        engines: loaded or loading; ``ready`` of them take requests.
        in_flight: requests in all of them.
        slots: that each of them has.
        oldest_s: how long the oldest waiting request has waited; None if none waits.
    """

    at: float
    engines: int
    ready: int
    in_flight: int
    slots: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Since when requests have waited too long, since when one engine could be spared, when it was changed last."""

    short_since: float | None = None
    spare_since: float | None = None
    changed_at: float = float("-inf")


def step(state: State, look: Look, terms: Terms) -> tuple[State, int]:
    """Take one look; ``UP``, ``DOWN`` or 0. With no engine at all it is the dispatcher who asks for the first."""
    now = look.at
    short = look.oldest_s is not None and look.oldest_s >= terms.up_after_s and look.ready == look.engines > 0
    spare = look.oldest_s is None and look.engines > 1 and look.in_flight <= (look.engines - 1) * look.slots // 2
    state = replace(
        state,
        short_since=(now if state.short_since is None else state.short_since) if short else None,
        spare_since=(now if state.spare_since is None else state.spare_since) if spare else None,
    )
    rested = now - state.changed_at >= terms.pause_s
    if _for(state.short_since, now) >= terms.up_after_s and look.engines < terms.most and rested:
        return State(changed_at=now), UP
    if _for(state.spare_since, now) >= terms.down_after_s and look.engines > max(1, terms.least):
        return State(changed_at=now), DOWN
    return state, 0


def _for(since: float | None, now: float) -> float:
    return float("-inf") if since is None else now - since
