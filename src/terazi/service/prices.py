"""Reads price tables: the packaged one, and a person's own over it."""

import tomllib

from terazi.errors import UsageError
from terazi.performance.prices import Prices, prices_from

_PACKAGED = __file__.rpartition("/")[0] + "/../performance/data/prices.toml"
_LIMIT_BYTES = 1024 * 1024


def load_prices(own: str | None, *, currency: str, exchange_rate: float | None) -> tuple[Prices, tuple[str, ...]]:
    """The rows in *currency*, and notes on what had to be left out.

    Packaged rows are in USD: without an exchange rate, none of them is of use in another currency.

    Raises:
        UsageError: the person's own file can't be read, or has a mistake.
    """
    notes: tuple[str, ...] = ()
    packaged = _read(_PACKAGED, "the packaged prices")
    if currency != packaged.currency:
        if exchange_rate is None:
            cure = f"say what one {packaged.currency} costs in {currency} (--exchange-rate)"
            notes = (f"the packaged prices are in {packaged.currency} and were left out: {cure}",)
            packaged = Prices(currency=currency)
        else:
            packaged = packaged.converted(currency, exchange_rate)
    if own is None:
        return packaged, notes
    mine = _read(own, own)
    if mine.currency != currency and exchange_rate is not None and mine.currency == "USD":
        mine = mine.converted(currency, exchange_rate)
    return packaged.under(mine), notes


def _read(path: str, where: str) -> Prices:
    hint = "a price file is TOML with [[card]], [[rent]] and [[api]] rows: docs/guides/cost.md"
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - the packaged path isn't normalised
            data = file.read(_LIMIT_BYTES + 1)
        if len(data) > _LIMIT_BYTES:
            raise UsageError(f"{where} is too large to be a price file", hint=hint)
        return prices_from(tomllib.loads(data.decode()), where)
    except OSError as error:
        raise UsageError(f"{where} can't be read: {error.strerror}", hint=hint) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{where} is not valid TOML: {error}", hint=hint) from error
