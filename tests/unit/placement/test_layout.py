"""The search against brute force: every way to share few layers over few devices."""

from collections.abc import Iterator, Sequence
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from terazi.placement.layout import Role, Room, alone, cost_of, holds, spread

LAYERS = 6
Counts = tuple[int, ...]


def _shares(devices: int) -> Iterator[Counts]:
    """Every way to give at most all layers to the devices."""
    for counts in product(range(LAYERS + 1), repeat=devices):
        if 0 < sum(counts) <= LAYERS:
            yield counts


def _fits(rooms: Sequence[Room], counts: Counts) -> bool:
    used = [i for i, c in enumerate(counts) if c]
    at = LAYERS - sum(counts)
    for i in used:
        role = Role.FIRST if i == used[0] else Role.LAST if i == used[-1] else Role.MIDDLE
        role = Role.ALONE if len(used) == 1 else role
        end = at + counts[i]
        room = rooms[i].room_for_one if counts[i] == 1 else rooms[i].room
        if rooms[i].prefix[end] - rooms[i].prefix[at] > room[role]:
            return False
        at = end
    return True


def _time(rooms: Sequence[Room], counts: Counts) -> int:
    """Written anew, layer by layer."""
    at = LAYERS - sum(counts)
    total = 0
    for position, i in enumerate(i for i, c in enumerate(counts) if c):
        total += 0 if position else rooms[i].host[at]
        for layer in range(at, at + counts[i]):
            total += rooms[i].cost[layer + 1] - rooms[i].cost[layer]
        at += counts[i]
        total += rooms[i].entry if position else 0
    return total


def _sums(values: Sequence[int]) -> list[int]:
    return [sum(values[:i]) for i in range(len(values) + 1)]


@st.composite
def _rooms(draw: st.DrawFn) -> list[Room]:
    sizes = draw(st.lists(st.integers(1, 9), min_size=LAYERS, max_size=LAYERS))
    out = []
    for _ in range(draw(st.integers(2, 4))):
        room = draw(st.tuples(*[st.integers(-2, 25)] * 4))
        less = draw(st.sampled_from([0, 3]))  # one layer alone needs less beside it
        a, b, c, d = (r + less for r in room)
        kept = draw(st.integers(0, 30_000))
        speed = draw(st.sampled_from([1000, 2000, 5000]))
        entry = draw(st.sampled_from([0, 700, 20_000]))
        cost, host = _sums([speed * s for s in sizes]), [kept * i for i in range(LAYERS + 1)]
        out.append(Room(_sums(sizes), room, (a, b, c, d), cost, entry, host))
    return out


starts = st.sets(st.integers(0, LAYERS - 1), min_size=1).map(sorted)


@settings(max_examples=500)
@given(_rooms(), starts)
def test_no_layout_over_several_devices_is_faster(rooms: list[Room], at: list[int]) -> None:
    feasible = [
        c for c in _shares(len(rooms)) if sum(1 for n in c if n) > 1 and LAYERS - sum(c) in at and _fits(rooms, c)
    ]
    found = spread(rooms, LAYERS, at)
    if not feasible:
        assert found is None
        return
    assert found is not None
    assert found.counts in feasible
    assert found.cost == _time(rooms, found.counts)
    assert found.cost == min(_time(rooms, c) for c in feasible)


@given(_rooms(), starts)
def test_each_card_alone_begins_where_it_is_fastest(rooms: list[Room], at: list[int]) -> None:
    found = alone(rooms, LAYERS, at)
    assert [f.cost for f in found] == sorted(f.cost for f in found)
    for i in range(len(rooms)):
        mine = [f for f in found if f.counts[i]]
        options = [
            _time(rooms, c)
            for c in _shares(len(rooms))
            if sum(c) == c[i] and LAYERS - c[i] in at and _fits(rooms, c)
        ]
        assert [f.cost for f in mine] == ([min(options)] if options else [])


@given(_rooms(), st.integers(0, LAYERS - 1))
def test_whether_it_holds_is_whether_there_is_a_layout(rooms: list[Room], start: int) -> None:
    some = any(LAYERS - sum(c) == start and _fits(rooms, c) for c in _shares(len(rooms)))
    assert holds(rooms, LAYERS, start) == some


@given(_rooms())
def test_an_even_layout_is_one_that_fits(rooms: list[Room]) -> None:
    found = spread(rooms, LAYERS, [0], evenly=True)
    assert (found is None) == (spread(rooms, LAYERS, [0]) is None)
    if found is not None:
        assert _fits(rooms, found.counts)
        assert found.cost == cost_of(rooms, found.counts, LAYERS) == _time(rooms, found.counts)


def _room(speed: int, *, room: int = 90, entry: int = 1, host: int = 0) -> Room:
    kept = [host * i for i in range(11)]
    return Room(_sums([10] * 10), (room,) * 4, (room,) * 4, _sums([10_000 * speed] * 10), entry, kept)


def test_equal_cards_are_evened_out_and_the_faster_card_takes_more() -> None:
    even = spread([_room(1), _room(1)], 10, [0])
    assert even is not None
    assert even.counts == (5, 5)
    uneven = spread([_room(3), _room(1)], 10, [0])
    assert uneven is not None
    assert uneven.counts == (1, 9)
    shared = spread([_room(3), _room(1)], 10, [0], evenly=True)
    assert shared is not None
    assert shared.counts == (2, 8)


def test_a_card_that_is_slower_than_the_host_stays_unused() -> None:
    rooms = [_room(9, host=20_000), _room(1, room=50, host=20_000)]
    assert alone(rooms, 10, range(10))[0].counts == (0, 5)
    both = spread(rooms, 10, range(10))
    assert both is not None
    assert both.counts == (1, 5)  # two are asked for, so the slow one gets the least
    assert both.cost > alone(rooms, 10, range(10))[0].cost


def test_a_slow_link_is_entered_only_if_it_must_be() -> None:
    rooms = [_room(1, room=60), _room(1, room=60, entry=10**9), _room(2, room=60)]
    found = spread(rooms, 10, [0])
    assert found is not None
    assert found.counts == (6, 0, 4)
