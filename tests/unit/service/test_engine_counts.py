"""What is counted of engines, as a scrape shows it."""

from prometheus_client.parser import text_string_to_metric_families

from serving import StubDirectory
from terazi.gateway.metrics import Metrics
from terazi.service.engine_counts import EngineCounts


def test_counts_on_a_scrape() -> None:
    counts = EngineCounts()
    for took_s in (3.0, 2.0):
        counts.loaded("a", took_s)
    counts.load_failed("b")
    for reason in ("room for b", "room for c", "idle for 300 s", "stopped by hand"):
        counts.unloaded("a", reason)
    counts.broke("a", stuck=True)
    counts.broke("a", stuck=False)
    text = Metrics(StubDirectory([]), [counts.figures]).text().decode()
    shown = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(("terazi_model_", "terazi_engine_"))
    }
    assert shown == {
        ("terazi_model_loads_total", "a", "ready"): 2,
        ("terazi_model_loads_total", "b", "failed"): 1,
        ("terazi_model_load_seconds", "a"): 2.0,
        ("terazi_model_evictions_total", "a", "room"): 2,
        ("terazi_model_evictions_total", "a", "idle"): 1,
        ("terazi_model_evictions_total", "a", "asked"): 1,
        ("terazi_model_swaps_total",): 2,
        ("terazi_engine_restarts_total", "a"): 2,
        ("terazi_engine_stuck_total", "a"): 1,
    }
