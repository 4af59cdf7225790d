"""The guide and the dashboard name the series that there are."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from serving import StubBackend, StubDirectory
from terazi.gateway.figures import Family, Figure, Kind
from terazi.gateway.metrics import Metrics

DOCS = Path(__file__).parents[3] / "docs"
#: Of the transport, not for graphs; the reference of the endpoints doesn't promise them.
INTERNAL = {
    "terazi_time_to_first_byte_seconds",
    "terazi_stream_bytes_total",
    "terazi_upstream_retries_total",
    "terazi_client_disconnects_total",
    "terazi_in_flight",
}


def series() -> set[str]:
    """All names as Prometheus has them, histograms without their endings."""
    every = [Figure(family, tuple("x" for _ in family.about.labels), 1.0) for family in Family]
    text = Metrics(StubDirectory([StubBackend(1)]), [lambda: every]).text().decode()
    return {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(text)
        if not family.name.endswith("_created") and not family.name.startswith("process_")
    }


def test_the_guide_names_them_all_and_no_others() -> None:
    page = (DOCS / "guides" / "observability.md").read_text()
    named = set(re.findall(r"`(terazi_[a-z0-9_]+)`", page))
    assert named == series() - INTERNAL


def test_the_dashboard_asks_for_what_there_is() -> None:
    board = json.loads((DOCS / "grafana" / "terazi.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = {re.sub(r"_bucket$", "", name) for query in queries for name in re.findall(r"terazi_[a-z0-9_]+", query)}
    assert len(queries) > 12
    assert asked <= series()


def test_counters_are_named_as_prometheus_wants() -> None:
    for family in Family:
        assert not family.series.endswith("_total")
        assert family.about.kind is Kind.COUNTER or "_total" not in family.series
