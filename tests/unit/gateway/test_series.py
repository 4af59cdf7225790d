"""Our counters and histograms beside those of Prometheus's own library: the same text for the same events."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from terazi.gateway.series import Counts, Spreads
from terazi.gateway.wire.errors import Api

BOUNDS = (0.001, 0.0025, 0.01, 0.5, 1, 2.5, 1800)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(Api),
        st.sampled_from(['a "model"', "b\\c", "d\ne", "é"]),
        st.sampled_from(BOUNDS) | st.floats(0, 4000),
    ),
    max_size=30,
)


def text_of(*families: Counts | Spreads) -> str:
    registry = CollectorRegistry()
    for family in families:
        registry.register(family)
    return plain(generate_latest(registry))


def plain(text: bytes) -> str:
    """*text* without the moments at which its series began."""
    return re.sub(r"(_created(?:\{.*\})?) 1\.\d+e\+09", r"\1 then", text.decode())


@given(EVENTS)
def test_the_text_is_the_librarys(events: list[tuple[Api, str, float]]) -> None:
    registry = CollectorRegistry()
    counter = Counter("t_things", 'Things,\n"counted".', ["api", "model"], registry=registry)
    bare = Counter("t_bare", "Without labels.", registry=registry)
    histogram = Histogram("t_seconds", "How long.", ["api", "model"], registry=registry, buckets=BOUNDS)
    counts, alone = Counts("t_things", 'Things,\n"counted".', ["api", "model"]), Counts("t_bare", "Without labels.")
    spreads = Spreads("t_seconds", "How long.", ["api", "model"], bounds=BOUNDS)
    nothing = alone.labels()
    for api, model, seconds in events:
        histogram.labels(api, model).observe(seconds)
        spreads.labels(api, model).observe(seconds)
        if seconds:
            counter.labels(api, model).inc(seconds)
            counts.labels(api, model).inc(seconds)
            bare.inc()
            nothing.inc()
    assert text_of(counts, alone, spreads) == plain(generate_latest(registry))


def test_a_status_is_one_series_however_it_is_written() -> None:
    counts = Counts("t_things", "Things.", ["status"])
    counts.labels(499).inc()
    counts.labels("499").inc()
    assert 't_things_total{status="499"} 2.0' in text_of(counts)


def test_a_series_that_was_only_asked_for_is_not_shown() -> None:
    counts, spreads = Counts("t_things", "Things.", ["a"]), Spreads("t_seconds", "How long.", ["a"], bounds=BOUNDS)
    counts.labels("x")
    spreads.labels("x")
    assert "{" not in text_of(counts, spreads)


def test_values_for_other_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="t_things has 2 labels, not 1"):
        Counts("t_things", "Things.", ["a", "b"]).labels("x")
