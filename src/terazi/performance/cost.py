"""Own hardware against hosted alternatives: what a month of the same work costs in each, and where they break even.

In: a month's volume, what the own machine costs and draws, priced alternatives. Out: ``Comparison``. All are given
the same requests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from terazi.performance.energy import HOURS_PER_MONTH
from terazi.performance.prices import ApiOffer, RentOffer

#: A serverless worker is also paid for while it loads and while it waits for the next request (assumed).
SERVERLESS_OVERHEAD: Final = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A month's work: requests, and tokens in and out of each."""

    requests: float
    prompt: float
    output: float

    @property
    def tokens_in(self) -> float:
        """Prompt tokens of the month."""
        return self.requests * self.prompt

    @property
    def tokens_out(self) -> float:
        """Answer tokens of the month."""
        return self.requests * self.output

    @property
    def mtok(self) -> float:
        """Million tokens of the month, in and out together."""
        return (self.tokens_in + self.tokens_out) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The own machine: its price (None: not known), what it loses, and what it draws.

    ``request_s`` is the machine's time for one request when it is fully used; watts are at the wall.
    """

    price: float | None
    residual: float
    months: int
    idle_w: float
    work_w: float
    request_s: float
    per_kwh: float | None

    @property
    def depreciation(self) -> float | None:
        """Of a month, straight-line."""
        return None if self.price is None else self.price * (1 - self.residual) / self.months

    @property
    def idle_cost(self) -> float | None:
        """Electricity of a month without a request."""
        return None if self.per_kwh is None else self.idle_w * HOURS_PER_MONTH / 1000 * self.per_kwh

    @property
    def request_cost(self) -> float | None:
        """Electricity that one request adds."""
        if self.per_kwh is None:
            return None
        return (self.work_w - self.idle_w) * self.request_s / 3.6e6 * self.per_kwh

    def duty(self, volume: Volume) -> float:
        """Share of the month that it works; above 1 it can't."""
        return volume.requests * self.request_s / (HOURS_PER_MONTH * 3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """A rented machine that the model fits: the offer, how many GPUs, and its time for one request."""

    offer: RentOffer
    gpus: int
    request_s: float
    throughput_tok_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to get the month's work done.

    ``fixed`` is owed whatever is asked, ``per_request`` comes on top. ``break_even_mtok`` is the million tokens a
    month from which the own machine is the cheaper one (0: always; None: never), ``payback_months`` the months in
    which the own machine's price is saved at this volume (None: never, or its price isn't known).
    """

    name: str
    kind: str
    monthly: float
    per_mtok: float
    fixed: float
    per_request: float
    duty: float | None
    as_of: str
    source: str
    note: str
    break_even_mtok: float | None = None
    payback_months: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All options for one volume, the own machine first, then by cost. ``own`` is None if its cost isn't known."""

    volume: Volume
    currency: str
    own: Option | None
    hosted: tuple[Option, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def compare(
    volume: Volume,
    own: Own,
    rented: Sequence[Rented],
    apis: Sequence[ApiOffer],
    *,
    currency: str,
    left_out: Sequence[str] = (),
) -> Comparison:
    """Price *volume* in each way; *left_out* says what isn't among them, and why."""
    notes: list[str] = []
    mine = own_option(own, volume, notes)
    options = [_rented_option(r, volume) for r in rented]
    options += [_api_option(a, volume) for a in apis]
    if mine is not None:
        options = [_against(option, mine, own, volume) for option in options]
    return Comparison(
        volume=volume,
        currency=currency,
        own=mine,
        hosted=tuple(sorted(options, key=lambda o: o.monthly)),
        left_out=tuple(left_out),
        notes=tuple(notes),
    )


def own_option(own: Own, volume: Volume, notes: list[str]) -> Option | None:
    """The own machine at *volume*; None, with a note, where its cost can't be known."""
    if own.idle_cost is None or own.request_cost is None:
        notes.append("own hardware has no cost without a tariff: give --price-per-kwh")
        return None
    duty = own.duty(volume)
    if duty > 1:
        notes.append(f"the own machine can't serve this: it would have to work {duty:.1f} months a month")
        return None
    note = f"works {duty:.0%} of the month"
    if own.depreciation is None:
        notes.append("own hardware: electricity alone, since its price isn't known: give --hardware-price")
    else:
        note += f"; {own.depreciation:,.2f} a month of it is the hardware over {own.months} months"
    fixed = (own.depreciation or 0.0) + own.idle_cost
    monthly = fixed + volume.requests * own.request_cost
    return Option(
        name="own hardware",
        kind="own",
        monthly=monthly,
        per_mtok=monthly / volume.mtok,
        fixed=fixed,
        per_request=own.request_cost,
        duty=duty,
        as_of="",
        source="your tariff and prices",
        note=note,
    )


def _rented_option(rented: Rented, volume: Volume) -> Option:
    offer = rented.offer
    per_hour = offer.per_gpu_hour * rented.gpus
    busy_h = volume.requests * rented.request_s / 3600
    serverless = offer.kind == "serverless"
    machines = 1 if serverless else max(1, math.ceil(busy_h / HOURS_PER_MONTH))
    fixed = 0.0 if serverless else machines * per_hour * HOURS_PER_MONTH
    per_request = per_hour * rented.request_s / 3600 * SERVERLESS_OVERHEAD if serverless else 0.0
    monthly = fixed + volume.requests * per_request
    count = f"{rented.gpus} × {offer.card}" if rented.gpus > 1 else offer.card
    notes = [offer.note] if offer.note else []
    if machines > 1:
        notes.insert(0, f"{machines} of them")
    return Option(
        name=f"{offer.provider}, {count}",
        kind=offer.kind,
        monthly=monthly,
        per_mtok=monthly / volume.mtok,
        fixed=fixed,
        per_request=per_request,
        duty=busy_h / HOURS_PER_MONTH / machines,
        as_of=offer.date,
        source=offer.source,
        note="; ".join(notes),
    )


def _api_option(offer: ApiOffer, volume: Volume) -> Option:
    per_request = (volume.prompt * offer.per_mtok_in + volume.output * offer.per_mtok_out) / 1e6
    monthly = volume.requests * per_request
    return Option(
        name=f"{offer.provider}, {offer.match}",
        kind="api",
        monthly=monthly,
        per_mtok=monthly / volume.mtok,
        fixed=0.0,
        per_request=per_request,
        duty=None,
        as_of=offer.date,
        source=offer.source,
        note=offer.note,
    )


def _against(option: Option, mine: Option, own: Own, volume: Volume) -> Option:
    """*option* with its break-even point and the payback of the own machine."""
    return replace(
        option,
        break_even_mtok=break_even_mtok(option, mine, own, volume),
        payback_months=payback_months(option, own, volume),
    )


def break_even_mtok(option: Option, mine: Option, own: Own, volume: Volume) -> float | None:
    """Million tokens a month from which the own machine costs less: (F - A) / (a - e) requests.

    F and e are the own machine's fixed cost and cost of a request, A and a the alternative's. 0 if it always does;
    None if it never does, or only beyond what it can serve.
    """
    gap, gain = mine.fixed - option.fixed, option.per_request - mine.per_request
    if gap <= 0:
        return 0.0
    if gain <= 0:
        return None
    requests = gap / gain
    if requests * own.request_s > HOURS_PER_MONTH * 3600:
        return None
    return requests * (volume.prompt + volume.output) / 1e6


def payback_months(option: Option, own: Own, volume: Volume) -> float | None:
    """Months in which the own machine's price is saved against *option* at this volume."""
    if own.price is None or own.idle_cost is None or own.request_cost is None:
        return None
    saved = option.monthly - own.idle_cost - volume.requests * own.request_cost
    if saved <= 0:
        return None
    return own.price / saved
