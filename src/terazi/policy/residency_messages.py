"""What the keeper of models in memory is told (events, past tense) and what it tells others to do (commands).

Times are monotonic seconds, bytes are per device, by the names that plans use (``CUDA0``, ``Host``). A *unit* is
what is loaded and unloaded as a whole: one replica of one model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitKnown:
    """A unit may be loaded from now on; said again when its terms change.

    Args:
        unit: its name; ``model`` the model's.
        needs: bytes that it will hold on each device, by its bill.
        load_s: how long a load takes, planned or measured: what evicting it costs.
        pinned: it is never evicted, and loaded at once.
        idle_s: it is unloaded after so long without a request; None is never.
        priority: a higher one may push a lower one out sooner.
        ours: False for an engine that somebody else runs: it is never loaded or unloaded.
    """

    unit: str
    model: str
    needs: Mapping[str, int]
    load_s: float
    pinned: bool = False
    idle_s: float | None = None
    priority: int = 0
    ours: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitForgotten:
    """It is served no more: it is unloaded once it is idle, then unknown."""

    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWanted:
    """Requests wait for it. ``since``: the oldest one's arrival; ``waiting`` 0: they are gone."""

    model: str
    waiting: int
    since: float
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitUsed:
    """Its requests in flight are now *in_flight*."""

    unit: str
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitLoaded:
    """It answers. ``took_s`` replaces the planned ``load_s``."""

    unit: str
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRestarting:
    """It died, or stood still, and is being started again: its bytes stay promised to it."""

    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFailed:
    """It could not be loaded, or died and won't be started again; no process of it is left.

    Args:
        unit: which.
        reason: a clause for people.
        for_good: it won't work next time either, e.g. since the file isn't a model; else a cool-down begins.
        no_memory: the engine ran out of memory: with more room it may work.
    """

    unit: str
    reason: str
    for_good: bool = False
    no_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitUnloaded:
    """Its process is gone and its bytes were measured free."""

    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeMeasured:
    """Bytes that may be taken on each device now: what is free as measured, less the reserve for others.

    What a unit that answers was promised counts as taken, touched or not. What a unit that is loading holds already
    counts as free, as far as that can be told: all that it needs is promised to it anyway.
    """

    free: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPressed:
    """The guard wants *need* bytes back on each device named: idle units go, the cheapest to reload first."""

    need: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAsked:
    """Somebody wants it in memory, though no request waits; *evict*: idle units may go for it."""

    unit: str
    evict: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadAsked:
    """Somebody wants it out of memory, once its requests are done."""

    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """The time of a ``WakeAt`` has come."""


Event: TypeAlias = (
    UnitKnown
    | UnitForgotten
    | ModelWanted
    | UnitUsed
    | UnitLoaded
    | UnitRestarting
    | UnitFailed
    | UnitUnloaded
    | FreeMeasured
    | MemoryPressed
    | LoadAsked
    | UnloadAsked
    | Ticked
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Start it. Its bytes are reserved from now on."""

    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Let nothing new into it; its requests go on. ``Unload`` follows when they are done, or ``Open``."""

    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Let requests into it again: its place isn't needed any more."""

    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """Let nothing new in, then stop it; it has no request in flight. ``reason`` is for people."""

    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAgain:
    """As it is planned it won't fit, whoever goes: plan it into *room*; answer ``UnitKnown`` or ``UnitFailed``."""

    unit: str
    room: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseModel:
    """It can't be loaded: turn its requests away, until ``again_at`` (None: until somebody does something)."""

    model: str
    reason: str
    again_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """Its requests may wait again."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Measure what is free and say ``FreeMeasured``: a load waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeAt:
    """Say ``Ticked`` at this moment, instead of at any asked for earlier."""

    at: float


Command: TypeAlias = Load | Close | Open | Unload | PlanAgain | CloseModel | OpenModel | Measure | WakeAt
