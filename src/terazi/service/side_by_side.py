"""The ``Row`` noun: one of several weighings that stand side by side, and how it differs from the first."""

from dataclasses import dataclass

from terazi.memory.bill import HOST
from terazi.performance.forecast import Interval
from terazi.placement.plan import Refusal, Verdict
from terazi.service.weighing import Weighing


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """*label* says what it is. Without a weighing, *why_not* says why; beside one it may say what is special."""

    label: str
    weighing: Weighing | None
    why_not: str = ""

    @property
    def fits(self) -> bool:
        """Whether there is a plan."""
        return self.weighing is not None and self.weighing.plan is not None

    @property
    def verdict(self) -> str:
        """``fits``, ``fits-offloaded``, ``refused`` or, if it could not even be weighed, ``impossible``."""
        if self.weighing is None:
            return "impossible"
        plan = self.weighing.plan
        return Verdict.REFUSED.value if plan is None else plan.verdict.value

    @property
    def reason(self) -> str:
        """Why there is no plan, or the first reason of the one there is."""
        if self.weighing is None:
            return self.why_not
        outcome = self.weighing.outcome
        if isinstance(outcome, Refusal):
            return outcome.reason
        return self.why_not or next(iter(outcome.reasons), "")

    @property
    def total_bytes(self) -> int | None:
        """What it holds in all."""
        return None if self.weighing is None else self.weighing.outcome.bill.total_bytes

    @property
    def headroom_bytes(self) -> int | None:
        """What is left on the fullest device in use; negative if that much is missing."""
        if self.weighing is None:
            return None
        used = [s for s in self.weighing.shares if s.total_bytes]
        cards = [s for s in used if s.id != HOST] or used
        # a host that lacks room decides as well
        return min((s.headroom_bytes for s in (*cards, *(s for s in used if s.headroom_bytes < 0))), default=None)

    def figure(self, name: str) -> Interval | None:
        """A field of the forecast, if there is one."""
        forecast = None if self.weighing is None else self.weighing.forecast
        value = None if forecast is None else getattr(forecast, name)
        return value if isinstance(value, Interval) else None


def difference(row: Row, first: Row) -> str:
    """What *row* changes beside *first*: memory, speed and watts, or the verdict."""
    if not row.fits or not first.fits:
        return "" if row.verdict == first.verdict else f"{first.verdict} → {row.verdict}"
    said = []
    if row.verdict != first.verdict:
        said.append(f"{first.verdict} → {row.verdict}")
    for name, unit in (("decode_tok_s", "tok/s"), ("throughput_tok_s", "in all")):
        now, before = row.figure(name), first.figure(name)
        if now is not None and before is not None and before.mid:
            said.append(f"{100 * (now.mid / before.mid - 1):+.0f} % {unit}")
    now, before = row.figure("power_w"), first.figure("power_w")
    if now is not None and before is not None and abs(now.mid - before.mid) >= 1:
        said.append(f"{now.mid - before.mid:+.0f} W")
    return ", ".join(said)


def to_json(row: Row, first: Row) -> dict[str, object]:
    """The row as part of a document: bytes, seconds, watts, tokens per second."""
    figures = ("decode_tok_s", "throughput_tok_s", "prefill_tok_s", "ttft_s", "itl_s", "power_w", "cost_per_mtok")
    outcome = None if row.weighing is None else row.weighing.outcome
    return {
        "label": row.label,
        "engine": None if outcome is None else outcome.bill.engine,
        "verdict": row.verdict,
        "total_bytes": row.total_bytes,
        "headroom_bytes": row.headroom_bytes,
        "exact": None if outcome is None else outcome.bill.exact,
        "forecast": {
            name: None
            if (value := row.figure(name)) is None
            else {"low": value.low, "mid": value.mid, "high": value.high}
            for name in figures
        },
        "reason": row.reason,
        "difference": difference(row, first),
    }
