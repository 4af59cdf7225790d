"""Break-even arithmetic against sums done by hand, and prices that may not be guessed."""

import pytest

from terazi.errors import UsageError
from terazi.performance.cost import Own, Rented, Volume, compare
from terazi.performance.energy import HOURS_PER_MONTH
from terazi.performance.prices import ApiOffer, CardPrice, Prices, RentOffer, prices_from, words

ROW = {"price": 700, "date": "2026-11-30", "source": "paid"}
VOLUME = Volume(requests=100_000, prompt=1000, output=500)
#: 1800 written off to nothing in 36 months is 50 a month; 100 W idle at 0.30 is 21.9 a month.
OWN = Own(price=1800, residual=0.0, months=36, idle_w=100, work_w=400, request_s=5, per_kwh=0.30)
API = ApiOffer(provider="X", match="m", per_mtok_in=1.0, per_mtok_out=2.0, date="2026-11", source="s")


def _rent(kind: str, per_hour: float) -> Rented:
    offer = RentOffer(provider="R", kind=kind, card="C", per_gpu_hour=per_hour, date="2026-11", source="s")
    return Rented(offer=offer, gpus=2, request_s=3.6, throughput_tok_s=100)


def test_own_hardware_by_hand() -> None:
    found = compare(VOLUME, OWN, [], [], currency="EUR").own
    assert found is not None
    idle = 100 * HOURS_PER_MONTH / 1000 * 0.30
    work = 100_000 * 300 * 5 / 3.6e6 * 0.30
    assert found.monthly == pytest.approx(50 + idle + work)
    assert found.per_mtok == pytest.approx(found.monthly / 150)
    assert found.duty == pytest.approx(500_000 / (HOURS_PER_MONTH * 3600))


def test_an_api_by_hand_and_where_it_breaks_even() -> None:
    result = compare(VOLUME, OWN, [], [API], currency="EUR")
    api, own = result.hosted[0], result.own
    assert own is not None
    assert api.monthly == pytest.approx(100 * 1.0 + 50 * 2.0)
    assert api.break_even_mtok is not None
    # at the break-even volume both cost the same
    requests = api.break_even_mtok * 1e6 / 1500
    assert own.fixed + requests * own.per_request == pytest.approx(requests * api.per_request)
    assert api.payback_months == pytest.approx(1800 / (200 - (own.monthly - 50)))


def test_a_rented_machine_is_paid_by_the_month_and_serverless_by_the_second() -> None:
    result = compare(VOLUME, OWN, [_rent("gpu cloud", 1.5), _rent("serverless", 1.5)], [], currency="USD")
    by_kind = {o.kind: o for o in result.hosted}
    assert by_kind["gpu cloud"].monthly == pytest.approx(3.0 * HOURS_PER_MONTH)
    assert by_kind["serverless"].monthly == pytest.approx(3.0 * 100 * 1.15)
    assert by_kind["gpu cloud"].break_even_mtok == 0
    assert [o.monthly for o in result.hosted] == sorted(o.monthly for o in result.hosted)


def test_more_than_one_rented_machine_where_one_is_too_slow() -> None:
    busy = Volume(requests=1_000_000, prompt=1000, output=500)
    rented = compare(busy, OWN, [_rent("hyperscaler", 1.0)], [], currency="USD").hosted[0]
    assert rented.monthly == pytest.approx(2 * 2 * HOURS_PER_MONTH)


def test_own_hardware_that_can_not_serve_it_has_no_price() -> None:
    result = compare(Volume(requests=1e6, prompt=1, output=1), OWN, [], [API], currency="USD")
    assert result.own is None
    assert any("can't serve" in note for note in result.notes)
    assert result.hosted[0].break_even_mtok is None


def test_without_a_tariff_or_a_price_it_is_said() -> None:
    free = Own(price=1800, residual=0.2, months=36, idle_w=1, work_w=2, request_s=1, per_kwh=None)
    assert compare(VOLUME, free, [], [API], currency="USD").own is None
    unpriced = Own(price=None, residual=0.2, months=36, idle_w=1, work_w=2, request_s=1, per_kwh=0.3)
    result = compare(VOLUME, unpriced, [], [API], currency="USD")
    assert result.own is not None
    assert any("--hardware-price" in note for note in result.notes)
    assert result.hosted[0].payback_months is None


def test_a_cheap_api_is_never_beaten() -> None:
    cheap = ApiOffer(provider="X", match="m", per_mtok_in=0.001, per_mtok_out=0.001, date="2026", source="s")
    assert compare(VOLUME, OWN, [], [cheap], currency="USD").hosted[0].break_even_mtok is None


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({"name": "A", "price": 1, "date": "2026-11"}, "source is missing"),
        ({"name": "A", "price": 1, "source": "s"}, "date is missing"),
        ({"name": "A", "price": 1, "source": "s", "date": "last week"}, "date"),
        ({"name": "A", "price": -1, "source": "s", "date": "2026"}, "price"),
        ({"name": "A", "price": True, "source": "s", "date": "2026"}, "price"),
        ({"name": "A", "price": "700", "source": "s", "date": "2026"}, "price"),
        ({"name": "A", "price": 1, "source": "", "date": "2026"}, "source"),
        ({"name": "A", "price": 1, "source": "s", "date": "2026", "colour": "red"}, "colour"),
        ({"name": "A", "price": float("nan"), "source": "s", "date": "2026"}, "price"),
    ],
)
def test_a_row_that_can_not_be_checked_is_refused(row: dict[str, object], place: str) -> None:
    with pytest.raises(UsageError, match=r"mine\.toml: card 1") as caught:
        prices_from({"card": [row]}, "mine.toml")
    assert place in caught.value.message


def test_other_mistakes_of_a_price_file() -> None:
    rent = {"provider": "P", "kind": "cloud", "card": "C", "per_gpu_hour": 1, "date": "2026", "source": "s"}
    with pytest.raises(UsageError, match="kind"):
        prices_from({"rent": [rent]}, "f")
    with pytest.raises(UsageError, match="gpus"):
        prices_from({"rent": [{**rent, "kind": "serverless", "gpus": 0}]}, "f")
    with pytest.raises(UsageError, match="list of tables"):
        prices_from({"card": {"name": "A"}}, "f")
    with pytest.raises(UsageError, match="cars"):
        prices_from({"cars": []}, "f")


def test_own_rows_win_over_packaged_ones() -> None:
    packaged = prices_from({"card": [{"name": "GeForce RTX 3090", **ROW, "price": 1499}]}, "p")
    mine = prices_from({"card": [{"name": "geforce rtx 3090", **ROW}]}, "m")
    found = packaged.under(mine).card("GeForce RTX 3090")
    assert isinstance(found, CardPrice)
    assert found.price == 700
    with pytest.raises(UsageError, match="EUR"):
        packaged.under(Prices(currency="EUR"))


def test_conversion() -> None:
    packaged = prices_from({"card": [{"name": "A", **ROW}]}, "p").converted("EUR", 0.5)
    found = packaged.card("A")
    assert found is not None
    assert (packaged.currency, found.price) == ("EUR", 350)


@pytest.mark.parametrize(
    ("name", "matches"),
    [
        ("Llama-3.3-70B-Instruct-Q4_K_M.gguf", True),
        ("hf:bartowski/Llama-3.3-70B-Instruct-GGUF", True),
        ("llama3.3:70b", True),
        ("Llama-3.1-70B-Instruct", False),
        ("Llama-3.3-7B", False),
    ],
)
def test_which_model_a_price_is_for(name: str, matches: bool) -> None:
    offer = ApiOffer(provider="D", match="llama 3.3 70b", per_mtok_in=1, per_mtok_out=1, date="2026", source="s")
    assert bool(Prices(currency="USD", apis=(offer,)).apis_for(name)) is matches


def test_words_of_a_name() -> None:
    assert words("Qwen3.8-27B_v2") == ("qwen", "3.8", "27b", "v", "2")
