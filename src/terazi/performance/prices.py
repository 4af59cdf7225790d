"""What hardware and its hosted alternatives cost: dated rows, each with its source.

In: a mapping as TOML gives it (``data/prices.toml``, or a person's own file). Out: ``Prices``. A row without a date
or a source is refused: a price that nobody can check is worse than none.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from terazi.errors import UsageError

KINDS: Final = ("hyperscaler", "gpu cloud", "serverless")
_DATE: Final = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?\Z")
_LIMIT: Final = 1e9

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPrice:
    """One card, bought. ``name`` is the catalogue's."""

    name: str
    price: float
    date: str
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RentOffer:
    """One GPU for an hour; ``gpus`` is the smallest number that comes together."""

    provider: str
    kind: str
    card: str
    per_gpu_hour: float
    date: str
    source: str
    gpus: int = 1
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOffer:
    """A million tokens of one model. ``match`` is words of the model's name, in this order."""

    provider: str
    match: str
    per_mtok_in: float
    per_mtok_out: float
    date: str
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """All rows, in one currency."""

    currency: str
    cards: tuple[CardPrice, ...] = ()
    rents: tuple[RentOffer, ...] = ()
    apis: tuple[ApiOffer, ...] = ()

    def card(self, name: str) -> CardPrice | None:
        """The price of the card of this catalogue name; the last row wins."""
        return next((c for c in reversed(self.cards) if c.name.lower() == name.lower()), None)

    def apis_for(self, *names: str) -> tuple[ApiOffer, ...]:
        """Offers of the model that goes by any of *names* (its own name, its file's, what was asked for)."""
        spoken = [words(name) for name in names]
        return tuple(offer for offer in self.apis if any(_holds(said, words(offer.match)) for said in spoken))

    def converted(self, currency: str, rate: float) -> "Prices":
        """In another *currency*, of which one unit of this one buys *rate*."""
        return Prices(
            currency=currency,
            cards=tuple(replace(c, price=c.price * rate) for c in self.cards),
            rents=tuple(replace(r, per_gpu_hour=r.per_gpu_hour * rate) for r in self.rents),
            apis=tuple(
                replace(a, per_mtok_in=a.per_mtok_in * rate, per_mtok_out=a.per_mtok_out * rate) for a in self.apis
            ),
        )

    def under(self, own: "Prices") -> "Prices":
        """These with a person's *own* rows over them: own rows for the same thing replace these.

        Raises:
            UsageError: the two are in different currencies.
        """
        if own.currency != self.currency:
            raise UsageError(
                f"the prices are in {own.currency} and {self.currency}",
                hint=f"give your rows in {self.currency}, or say currency and exchange_rate for both",
            )
        cards = {c.name.lower() for c in own.cards}
        rents = {(r.provider.lower(), r.card.lower()) for r in own.rents}
        apis = {(a.provider.lower(), a.match.lower()) for a in own.apis}
        return Prices(
            currency=self.currency,
            cards=(*(c for c in self.cards if c.name.lower() not in cards), *own.cards),
            rents=(
                *(r for r in self.rents if (r.provider.lower(), r.card.lower()) not in rents),
                *own.rents,
            ),
            apis=(*(a for a in self.apis if (a.provider.lower(), a.match.lower()) not in apis), *own.apis),
        )


def words(name: str) -> tuple[str, ...]:
    """A name as lower-case words and numbers: ``Llama-3.3-70B`` → llama, 3.3, 70b."""
    return tuple(re.findall(r"\d+(?:\.\d+)*[a-z]*|[a-z]+", name.lower()))


def prices_from(document: Mapping[str, object], where: str) -> Prices:
    """The rows of a document as TOML gives it; *where* names it in errors.

    Raises:
        UsageError: naming the row and what is wrong with it.
    """
    currency = document.get("currency", "USD")
    if not isinstance(currency, str) or not currency.strip():
        raise _wrong(where, "currency", "is no text")
    unknown = sorted(set(document) - {"schema", "currency", "card", "rent", "api"})
    if unknown:
        raise _wrong(where, unknown[0], "is no table of a price file: card, rent, api")
    return Prices(
        currency=currency,
        cards=tuple(
            _Reader(CardPrice, row, where, f"card {i}").read() for i, row in _rows(document, "card", where)
        ),
        rents=tuple(
            _Reader(RentOffer, row, where, f"rent {i}").read() for i, row in _rows(document, "rent", where)
        ),
        apis=tuple(_Reader(ApiOffer, row, where, f"api {i}").read() for i, row in _rows(document, "api", where)),
    )


def _rows(document: Mapping[str, object], table: str, where: str) -> list[tuple[int, Mapping[str, object]]]:
    rows = document.get(table, [])
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise _wrong(where, table, f"must be a list of tables: [[{table}]]")
    return list(enumerate(rows, 1))


class _Reader(Generic[_T]):
    """One row into its noun, checked field by field."""

    def __init__(self, noun: type[_T], row: Mapping[str, object], where: str, place: str) -> None:
        self.noun, self.row, self.where, self.place = noun, row, where, place

    def read(self) -> _T:
        """The noun.

        Raises:
            UsageError: a field is missing, unknown, or out of range.
        """
        fields: dict[str, type] = {
            name: {"str": str, "int": int}.get(str(kind).strip("'\""), float)
            if not isinstance(kind, type)
            else kind
            for name, kind in self.noun.__annotations__.items()
        }
        for name in self.row:
            if name not in fields:
                raise _wrong(self.where, f"{self.place}: {name}", "is not known here")
        values: dict[str, object] = {}
        for name, kind in fields.items():
            if name not in self.row:
                if name in {"note", "gpus"}:
                    continue
                raise _wrong(self.where, f"{self.place}: {name}", "is missing")
            values[name] = self._value(name, kind)
        return self.noun(**values)

    def _value(self, name: str, kind: type) -> object:
        value = self.row[name]
        place = f"{self.place}: {name}"
        if kind is str:
            if not isinstance(value, str) or (not value.strip() and name != "note") or len(value) > 500:
                raise _wrong(self.where, place, "must be a text")
            if name == "date" and not _DATE.match(value):
                raise _wrong(self.where, place, "must be a date: 2026-11-30, or 2026-11")
            if name == "kind" and value not in KINDS:
                raise _wrong(self.where, place, f"must be one of {', '.join(KINDS)}")
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LIMIT:
            raise _wrong(self.where, place, "must be a number, 0 or more")
        if kind is int and (not isinstance(value, int) or not 1 <= value <= 64):
            raise _wrong(self.where, place, "must be a whole number from 1 to 64")
        return value


def _holds(said: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether *wanted* stands in *said*, its words in order and nothing but versions of words between."""
    n = len(wanted)
    return bool(n) and any(said[i : i + n] == wanted for i in range(len(said) - n + 1))


def _wrong(where: str, place: str, why: str) -> UsageError:
    return UsageError(
        f"{where}: {place} {why}", hint="each row needs a price, a date and a source: docs/guides/cost.md"
    )
