"""Replicas: what each still has room for, and which one a request goes to.

A replica has slots, and KV tokens that are either shared by all its requests or divided among its slots. Among
those with room, the one that has most of the prompt's beginning in its cache is taken, unless it is so much busier
than the least busy one that waiting for its compute would cost more than the prompt. (The rule of SGLang's and
vLLM's cache-aware routers: longest match while the load is balanced, shortest queue when it isn't.)
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from terazi.policy.dispatch_messages import ReplicaChanged
from terazi.policy.fairness import Request
from terazi.policy.survey import ReplicaView

#: Blocks that are remembered for each replica; 256 characters each, so this is about half a million tokens.
_BLOCKS_KEPT: Final = 8192


@dataclass(slots=True, eq=False, kw_only=True)
class Replica:
    """One engine. ``held`` are the KV tokens of its requests; ``order`` is its place among its siblings."""

    name: str
    model: str
    order: int
    open: bool = False
    slots: int = 1
    tokens: int | None = None
    tokens_each: int | None = None
    shared: bool = False
    running: int = 0
    held: int = 0
    #: KV tokens that one request may hold when there is no other; None if that isn't known.
    largest: int | None = None
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def change(self, news: ReplicaChanged) -> None:
        """Take over what *news* says; a closed one may come back with an empty cache."""
        self.open, self.slots, self.tokens = news.open, news.slots, news.tokens
        self.tokens_each, self.shared = news.tokens_each, news.shared
        bounds = [self.tokens_each] if self.tokens_each is not None else []
        if self.tokens is not None:
            bounds.append(self.tokens if self.shared else self.tokens // max(1, self.slots))
        self.largest = min(bounds, default=None)
        if not news.open:
            self.blocks.clear()

    def could_hold(self, request: Request) -> bool:
        """Whether it would fit into the empty replica."""
        return self.largest is None or request.tokens <= self.largest

    def fits(self, request: Request) -> bool:
        """Whether there is room for it now."""
        if not self.open or self.running >= self.slots:
            return False
        if self.largest is not None and request.tokens > self.largest:
            return False
        return not self.shared or self.tokens is None or self.held + request.tokens <= self.tokens

    def take(self, request: Request, now: float) -> None:
        """It is sent here."""
        self.running += 1
        self.held += request.tokens
        request.seat, request.seated_at = self, now

    def release(self, request: Request) -> None:
        """It has left."""
        self.running -= 1
        self.held -= request.tokens
        request.seat = None

    def matched(self, prefix: tuple[int, ...]) -> int:
        """How many leading blocks of *prefix* it has seen."""
        for count, block in enumerate(prefix):
            if block not in self.blocks:
                return count
        return len(prefix)

    def remember(self, prefix: tuple[int, ...]) -> None:
        """These blocks will be in its cache."""
        for block in reversed(prefix):  # the first block is the most used one, and forgotten last
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) > _BLOCKS_KEPT:
            self.blocks.popitem(last=False)

    def view(self) -> ReplicaView:
        """What it looks like."""
        tokens = self.tokens
        if tokens is None and self.tokens_each is not None and not self.shared:
            tokens = self.tokens_each * self.slots
        return ReplicaView(
            replica=self.name,
            open=self.open,
            running=self.running,
            slots=self.slots,
            held_tokens=self.held,
            tokens=tokens,
        )


def choose(request: Request, replicas: Iterable[Replica], imbalance: float) -> Replica | None:
    """The replica for *request*; None if none has room.

    Args:
        imbalance: a cached prefix wins as long as its replica has at most so many more requests than the least busy
            one, as a share of its slots (one request more is always allowed).
    """
    free = [replica for replica in replicas if replica.fits(request)]
    if len(free) <= 1:
        return free[0] if free else None
    least = min(free, key=_load)
    if not request.prefix:
        return least
    best, most = least, least.matched(request.prefix)
    for replica in sorted(free, key=_load):
        if replica.running - least.running > max(1.0, imbalance * replica.slots):
            continue
        if (count := replica.matched(request.prefix)) > most:
            best, most = replica, count
    return best


def _load(replica: Replica) -> tuple[int, int, int]:
    return replica.held, replica.running, replica.order
