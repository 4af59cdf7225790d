"""What may wait, and what may run: bounds of queues, and each caller's own limits.

A caller's tokens per minute are a bucket that holds one minute's worth and fills evenly. A request may run when the
bucket holds what it will probably use (or is full, if it will use more than a minute's worth); what it really used
is put right when it is over, and may leave a debt. A request waits for its rate if that is not long, and is turned
away with the exact time otherwise.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from terazi.policy.dispatch_messages import RequestArrived, Why
from terazi.policy.fairness import Request
from terazi.policy.survey import CallerView

#: Less than this many tokens is rounding.
_NOTHING: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The dispatcher's own terms.

    Args:
        max_queued: requests that may wait, of all callers and models together. A caller that has none waiting is
            let in beyond it, up to twice as many in all, so that others' queues don't lock it out.
        max_queued_each: of one caller, where its key says nothing.
        max_wait_s: a request may wait so long, whatever for; None is for ever.
        rate_wait_s: a request may wait so long for its caller's tokens per minute.
        aging_s: so often a lower priority has a turn, whatever waits above it.
        pass_s: so long smaller requests may pass one that doesn't fit yet; then a replica is kept free for it.
        imbalance: how much busier a replica with a cached prefix may be, as a share of its slots.
    """

    max_queued: int = 512
    max_queued_each: int = 256
    max_wait_s: float | None = None
    rate_wait_s: float = 10.0
    aging_s: float = 30.0
    pass_s: float = 5.0
    imbalance: float = 0.5


@dataclass(slots=True, eq=False, kw_only=True)
class Account:
    """One caller: its terms, and what it has waiting and running over all models."""

    name: str
    weight: float = 1.0
    max_concurrent: int | None = None
    tokens_per_minute: int | None = None
    max_queued: int | None = None
    running: int = 0
    #: Requests that wait, by model, and tokens that they will probably use.
    waiting: Counter[str] = field(default_factory=Counter)
    queued: int = 0
    queued_tokens: float = 0.0
    level: float = 0.0
    filled_at: float = 0.0

    def update(self, terms: RequestArrived, now: float) -> None:
        """Take over what the key says now."""
        self.weight = terms.weight if terms.weight > 0 else 1.0
        self.max_concurrent, self.max_queued = terms.max_concurrent, terms.max_queued
        if terms.tokens_per_minute != self.tokens_per_minute:
            self.tokens_per_minute = terms.tokens_per_minute
            self.level, self.filled_at = float(terms.tokens_per_minute or 0), now

    @property
    def limited(self) -> bool:
        """Whether what it has running may keep its other requests from running."""
        return self.max_concurrent is not None or self.tokens_per_minute is not None

    def forgettable(self, now: float) -> bool:
        """Whether a new account would say the same."""
        if self.queued or self.running:
            return False
        self._fill(now)
        return self.level >= (self.tokens_per_minute or 0)

    def may_run(self, request: Request, now: float) -> bool:
        """Whether its own limits allow one more."""
        if self.max_concurrent is not None and self.running >= self.max_concurrent:
            return False
        return request.paid or self.rate_wait_s(request.charge, now) <= 0

    def rate_wait_s(self, tokens: float, now: float, *, behind: float = 0.0) -> float:
        """Seconds until the bucket has *tokens*, *behind* others; 0 if it has them, or without a limit."""
        if not self.tokens_per_minute:
            return 0.0
        self._fill(now)
        lacking = behind + min(tokens, self.tokens_per_minute) - self.level
        return lacking * 60 / self.tokens_per_minute if lacking > _NOTHING else 0.0

    def queue_wait_s(self, newest: Request, now: float) -> float:
        """Seconds until the bucket has had enough for all that wait, *newest* being one of them."""
        if not self.tokens_per_minute:
            return 0.0
        return self.rate_wait_s(newest.charge, now, behind=self.queued_tokens - newest.charge)

    def pay(self, tokens: float, now: float) -> None:
        """Take *tokens* out of the bucket; negative ones are put back."""
        if self.tokens_per_minute:
            self._fill(now)
            self.level = min(self.level - tokens, float(self.tokens_per_minute))

    def queue(self, request: Request) -> None:
        """It waits."""
        self.waiting[request.model] += 1
        self.queued += 1
        if not request.paid:
            self.queued_tokens += request.charge

    def unqueue(self, request: Request) -> None:
        """It waits no more. To be said before it pays."""
        self.waiting[request.model] -= 1
        if not self.waiting[request.model]:
            del self.waiting[request.model]
        self.queued -= 1
        if not request.paid:
            self.queued_tokens = max(0.0, self.queued_tokens - request.charge) if self.queued else 0.0

    def view(self, now: float) -> CallerView:
        """What it looks like."""
        self._fill(now)
        left = self.level if self.tokens_per_minute else None
        return CallerView(caller=self.name, waiting=self.queued, running=self.running, rate_left=left)

    def _fill(self, now: float) -> None:
        full = float(self.tokens_per_minute or 0)
        self.level = min(full, self.level + (now - self.filled_at) * full / 60)
        self.filled_at = now


def may_wait(
    account: Account, request: Request, waiting: int, limits: Limits, now: float
) -> tuple[Why, str, float | None] | None:
    """Why *request* may not wait, for people too, and when it could run if that is known; None if it may.

    Args:
        request: counted among *waiting*, all that wait, and its account's already.
    """
    bound = limits.max_queued_each if account.max_queued is None else account.max_queued
    if account.queued > bound:
        return Why.KEY_QUEUE_FULL, f"{account.name} has {bound} requests waiting, and may have no more", None
    if waiting > limits.max_queued and (account.queued > 1 or waiting > 2 * limits.max_queued):
        return Why.QUEUE_FULL, f"{waiting - 1} requests are waiting, and no more may", None
    wait_s = account.queue_wait_s(request, now)
    if wait_s > limits.rate_wait_s:
        used = f"{account.name} has used its {account.tokens_per_minute} tokens per minute"
        return Why.RATE, f"{used}; this request could run in {wait_s:.0f} s", wait_s
    return None
