"""The search against brute force: every way to share few layers over few devices."""

from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.placement.layout import Role, Room, alone, spread

LAYERS = 6


def _compositions(devices: int, layers: int) -> Iterator[tuple[int, ...]]:
    for counts in product(range(layers + 1), repeat=devices):
        if sum(counts) == layers and sum(1 for c in counts if c) > 1:
            yield counts


def _fits(rooms: Sequence[Room], counts: tuple[int, ...], start: int) -> bool:
    used = [i for i, c in enumerate(counts) if c]
    at = start
    for i in used:
        role = Role.FIRST if i == used[0] else Role.LAST if i == used[-1] else Role.MIDDLE
        end = at + counts[i]
        if rooms[i].prefix[end] - rooms[i].prefix[at] > rooms[i].room[role]:
            return False
        at = end
    return True


@st.composite
def _rooms(draw: st.DrawFn) -> list[Room]:
    sizes = draw(st.lists(st.integers(1, 9), min_size=LAYERS, max_size=LAYERS))
    prefix = [sum(sizes[:i]) for i in range(LAYERS + 1)]
    count = draw(st.integers(2, 4))
    out = []
    for _ in range(count):
        room = draw(st.tuples(*[st.integers(-2, 25)] * 4))
        out.append(Room(prefix=prefix, room=room, seconds_per_byte=draw(st.sampled_from([1.0, 2.0, 5.0]))))
    return out


@given(_rooms(), st.integers(0, 3))
def test_spread_finds_a_layout_exactly_when_there_is_one_and_with_the_fewest_devices(
    rooms: list[Room], start: int
) -> None:
    feasible = [c for c in _compositions(len(rooms), LAYERS - start) if _fits(rooms, c, start)]
    found = spread(rooms, LAYERS, [start])
    if not feasible:
        assert found is None
        return
    assert found is not None
    counts = found[0]
    assert counts in feasible
    assert sum(1 for c in counts if c) == min(sum(1 for c in f if c) for f in feasible)


@given(_rooms())
def test_spread_takes_the_first_start_that_is_feasible(rooms: list[Room]) -> None:
    singly = [s for s in range(LAYERS - 1) if spread(rooms, LAYERS, [s]) is not None]
    found = spread(rooms, LAYERS, range(LAYERS - 1))
    if not singly:
        assert found is None
    else:
        assert found is not None
        assert sum(found[0]) == LAYERS - singly[0]


def test_equal_cards_are_evened_out_and_the_faster_card_takes_more() -> None:
    prefix = [10 * i for i in range(11)]
    even = Room(prefix=prefix, room=(90, 90, 90, 90), seconds_per_byte=1.0)
    assert spread([even, even], 10, [0]) == ((5, 5), pytest.approx(spread([even, even], 10, [0])[1]))  # type: ignore[index]
    slow = Room(prefix=prefix, room=(90, 90, 90, 90), seconds_per_byte=3.0)
    found = spread([slow, even], 10, [0])
    assert found is not None
    assert found[0] == (1, 9)


def test_alone_lists_the_cards_that_hold_it_fastest_first() -> None:
    prefix = [0, 10, 20]
    rooms = [
        Room(prefix=prefix, room=(20, 0, 0, 0), seconds_per_byte=3.0),
        Room(prefix=prefix, room=(19, 0, 0, 0), seconds_per_byte=1.0),
        Room(prefix=prefix, room=(25, 0, 0, 0), seconds_per_byte=2.0),
    ]
    assert alone(rooms, 0, 2) == [2, 0]
    assert alone(rooms, 1, 2) == [1, 2, 0]
