"""Watts, caps and break-even points hold their laws for every card and volume."""

from hypothesis import given
from hypothesis import strategies as st

from terazi.performance.cost import Own, Volume, compare
from terazi.performance.power import SHAPES, Draw, Load, slowed
from terazi.performance.prices import ApiOffer

SHARE = st.floats(0, 1)
DRAWS = st.builds(
    lambda tdp, idle, cap, shape: Draw(idle_w=idle * tdp, tdp_w=tdp, limit_w=cap * tdp, shape=shape),
    st.floats(30, 1200),
    st.floats(0, 0.3),
    st.floats(0.2, 1.2),
    st.sampled_from(list(SHAPES.values())),
)
LOADS = st.builds(Load, SHARE, SHARE, SHARE)


@given(DRAWS, LOADS)
def test_a_card_draws_between_idle_and_its_limit(draw: Draw, load: Load) -> None:
    watts = draw.drawn_w(load)
    assert draw.idle_w - 1e-9 <= watts <= max(draw.idle_w, min(draw.limit_w, draw.tdp_w)) + 1e-9


@given(DRAWS, LOADS, SHARE, st.floats(0.1, 1), st.floats(1, 3))
def test_a_higher_cap_is_never_slower(draw: Draw, load: Load, core: float, cap: float, more: float) -> None:
    low, high = draw.capped(cap * draw.tdp_w), draw.capped(more * cap * draw.tdp_w)
    assert low.speed_at(load, core) <= high.speed_at(load, core) + 1e-9
    assert 0 < low.speed_at(load, core) <= 1


@given(DRAWS, LOADS, SHARE)
def test_more_work_never_draws_less(draw: Draw, load: Load, more: float) -> None:
    busier = load._replace(memory=max(load.memory, more), compute=max(load.compute, more))
    assert draw.wanted_w(busier) >= draw.wanted_w(load) - 1e-9


@given(st.floats(0, 1), st.floats(0, 1), SHARE)
def test_speed_follows_power(a: float, b: float, core: float) -> None:
    low, high = sorted((a, b))
    assert slowed(low, core) <= slowed(high, core) + 1e-9
    assert slowed(1.0, core) == 1.0


MONEY = st.floats(0.01, 1e4)


OWNS = st.builds(
    lambda price, idle, extra, seconds, tariff: Own(
        price=price, residual=0.2, months=36, idle_w=idle, work_w=idle + extra, request_s=seconds, per_kwh=tariff
    ),
    MONEY,
    st.floats(0, 2000),
    st.floats(0, 2000),
    st.floats(0.01, 100),
    st.floats(0.01, 5),
)


@given(OWNS, MONEY, MONEY)
def test_beyond_the_break_even_point_own_hardware_is_cheaper(own: Own, per_in: float, per_out: float) -> None:
    api = ApiOffer(provider="p", match="m", per_mtok_in=per_in, per_mtok_out=per_out, date="2026", source="s")
    seconds = own.request_s
    most = 730.5 * 3600 / seconds
    volume = Volume(requests=most / 2, prompt=700, output=300)
    option = compare(volume, own, [], [api], currency="USD").hosted[0]
    point = option.break_even_mtok
    if point is None:
        return
    assert point * 1e6 / 1000 <= most * (1 + 1e-9)
    for factor, cheaper in ((0.5, False), (1.5, True)):
        requests = point * 1e6 / 1000 * factor
        if not 0 < requests <= most:
            continue
        there = compare(Volume(requests=requests, prompt=700, output=300), own, [], [api], currency="USD")
        assert there.own is not None
        assert (there.own.monthly <= there.hosted[0].monthly) is cheaper
