"""Prometheus figures of the gateway, in a registry of its own.

Counters move once a request, never once a chunk. What the backends know themselves (state, in flight) is read
when somebody asks. Labels hold only models that are served, so that a client can't invent series.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from terazi.gateway.backend import Directory

#: The label of a request that named no model which is served.
NO_MODEL: Final = "none"
#: The status of a request whose client left before the answer, as nginx writes it.
CLIENT_GONE: Final = "499"

_FIRST_BYTE_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """All series, and their text."""

    def __init__(self, directory: Directory) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "terazi_requests", "Requests answered.", ["api", "model", "status"], registry=registry
        )
        self.first_byte = Histogram(
            "terazi_time_to_first_byte_seconds",
            "From the whole request to the first byte of its answer.",
            ["api", "model"],
            registry=registry,
            buckets=_FIRST_BYTE_BUCKETS_S,
        )
        self.stream_bytes = Counter(
            "terazi_stream_bytes", "Bytes of streamed answers.", ["model"], registry=registry
        )
        self.retries = Counter(
            "terazi_upstream_retries", "Requests sent again, because no byte had come back.", registry=registry
        )
        self.disconnects = Counter(
            "terazi_client_disconnects", "Clients that left before their answer was complete.", registry=registry
        )
        registry.register(_Engines(directory))

    def text(self) -> bytes:
        """The text format 0.0.4 of all series."""
        return generate_latest(self._registry)


class _Engines(Collector):
    """Figures that the backends hold."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def collect(self) -> Iterator[Metric]:
        """Read by Prometheus's registry on each scrape."""
        state = GaugeMetricFamily(
            "terazi_engine_state", "1 for the lifecycle state that the engine is in.", labels=["model", "state"]
        )
        in_flight = GaugeMetricFamily("terazi_in_flight", "Requests in flight.", labels=["model"])
        for model in self._directory.served():
            state.add_metric([model.card.id, model.state], 1)
            in_flight.add_metric([model.card.id], sum(engine.in_flight for engine in model.engines))
        yield state
        yield in_flight
