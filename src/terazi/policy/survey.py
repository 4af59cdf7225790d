"""What the dispatcher looks like at one moment, for metrics, ``terazi ps`` and the dashboard."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a request for one model may find.

    Args:
        largest: KV tokens that one request may hold; None if that isn't known.
        choice: there are more replicas than one.
    """

    largest: int | None = None
    choice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """One engine: requests in it, and KV tokens promised to them, of all that it has (None if that isn't known)."""

    replica: str
    open: bool
    running: int
    slots: int
    held_tokens: int
    tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineView:
    """One model.

    Args:
        oldest_s: how long the oldest waiting request has waited; None if nobody waits.
        service_s: measured seconds of one request in an engine; None if none has been completed.
        opening_s: measured seconds from the first request to an engine, likewise.
        closed: why it can't be had; None if it can.
    """

    model: str
    waiting: int
    oldest_s: float | None
    service_s: float | None
    opening_s: float | None
    closed: str | None
    replicas: tuple[ReplicaView, ...]

    @property
    def running(self) -> int:
        """Requests in its engines."""
        return sum(replica.running for replica in self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerView:
    """One caller, over all models. ``rate_left`` are tokens that it may use at once; None without a rate."""

    caller: str
    waiting: int
    running: int
    rate_left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """All of it."""

    lines: tuple[LineView, ...]
    callers: tuple[CallerView, ...]
