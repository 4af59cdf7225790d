"""The device map's bars are to scale, and what is missing shows."""

import re

from hypothesis import given
from hypothesis import strategies as st

from terazi.cli.render import BAR_WIDTH, render_bill, render_map
from terazi.memory.bill import HOST, Bill, BillLine, LineBasis, Memory, Term
from terazi.placement.plan import DeviceShare

GIB = 1024**3


def share(name: str, capacity: int, **held: int) -> DeviceShare:
    terms = ("weights", "kv", "state", "compute", "overhead")
    bytes_of = {f"{term}_bytes": held.get(term, 0) for term in terms}
    total = sum(bytes_of.values())
    return DeviceShare(
        id=name,
        name=name,
        layers=None,
        **bytes_of,
        total_bytes=total,
        capacity_bytes=capacity,
        headroom_bytes=capacity - total,
    )


def bars(text: str) -> dict[str, str]:
    return {m[1]: m[2] for m in re.finditer(rf"^  (\S+) +\|(.{{{BAR_WIDTH}}})\|", text, re.MULTILINE)}


def test_bars_are_to_one_scale() -> None:
    text = render_map((share("CUDA0", 24 * GIB, weights=12 * GIB, kv=6 * GIB), share(HOST, 48 * GIB)))
    bar = bars(text)["CUDA0"]
    assert (bar.count("█"), bar.count("▓"), bar.count("·")) == (11, 5, 6), "24 of 48 GiB, in halves, quarters"
    assert bars(text)[HOST] == "·" * BAR_WIDTH


def test_a_host_far_larger_than_the_cards_has_its_own_scale() -> None:
    text = render_map((share("CUDA0", 80 * GIB, weights=40 * GIB), share(HOST, 2048 * GIB)))
    assert bars(text)["CUDA0"].count("█") == BAR_WIDTH // 2
    assert "own scale" in text


def test_what_is_missing_shows() -> None:
    text = render_map((share("CUDA0", 12 * GIB, weights=24 * GIB),))
    assert bars(text)["CUDA0"] == "█" * (BAR_WIDTH // 2) + "!" * (BAR_WIDTH // 2)
    assert "MISSING" in text


@given(
    st.integers(0, 2**41),
    st.lists(st.integers(0, 2**40), min_size=5, max_size=5),
    st.integers(0, 2**43),
)
def test_a_bar_is_never_longer_than_its_frame(capacity: int, held: list[int], ram: int) -> None:
    terms = dict(zip(("weights", "kv", "state", "compute", "overhead"), held, strict=True))
    text = render_map((share("CUDA0", capacity, **terms), share(HOST, ram)))
    assert set(bars(text)) == {"CUDA0", HOST}


def test_a_line_says_which_part_it_is_for() -> None:
    lines = tuple(
        BillLine(
            term=Term.WEIGHTS,
            device=HOST,
            bytes=GIB,
            formula="weights.plain",
            basis=LineBasis.EXACT,
            memory=Memory.ANONYMOUS,
            part=part,
        )
        for part in ("", "draft")
    )
    bill = Bill(engine="llama.cpp", build="b11434", lines=lines)
    assert bill.of("draft") == lines[1:]
    rows = [row for row in render_bill(bill, [HOST]).splitlines() if "weights.plain" in row]
    assert ["[draft]" in row for row in rows] == [False, True]
