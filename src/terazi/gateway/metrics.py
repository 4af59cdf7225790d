"""Prometheus figures of the gateway, in a registry of its own.

Counters move once a request, when it is over, never once a chunk. What others know (states, queues, memory) is read
when somebody asks. The names behind ``terazi_`` are vLLM's where it has the same thing. Labels hold only models
that are served and keys that are configured, so that a client can't invent series.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from terazi.gateway.account import Entry
from terazi.gateway.backend import Directory
from terazi.gateway.figures import Family, Kind, Source

#: The label of a request that named no model which is served.
NO_MODEL: Final = "none"
#: Names of keys that get series of their own; all others share one.
MOST_KEYS: Final = 100
OTHER_KEYS: Final = "others"
#: The status of a request whose client left before the answer, as nginx writes it.
CLIENT_GONE: Final = "499"

_FIRST_BYTE_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_WHOLE_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800)
_PER_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)

M = TypeVar("M", Counter, Histogram)


class Metrics:
    """All series, and their text. A ``Reader`` of the bookkeeper's entries.

    Args:
        directory: whose models' states are shown.
        sources: of figures that others keep.
        process: whether this process's own are shown too, which the kernel is asked for.
    """

    def __init__(self, directory: Directory, sources: Iterable[Source] = (), *, process: bool = False) -> None:
        self._registry = registry = CollectorRegistry()
        self._sources = list(sources)
        self._keys: set[str] = set()
        self._series: dict[tuple[object, ...], Any] = {}
        self.requests = Counter(
            "terazi_http_requests", "HTTP requests answered.", ["api", "model", "status"], registry=registry
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
        self._calls = Counter(
            "terazi_requests",
            "Requests to models that are over, by how they ended.",
            ["api", "model", "key", "status"],
            registry=registry,
        )
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "From a request's arrival to its answer's first byte.", ["api", "model"]
        )
        self._queue = self._histogram(
            "request_queue_time_seconds", "From a request's arrival until an engine got it.", ["model", "key"]
        )
        self._whole = Histogram(
            "terazi_e2e_request_latency_seconds",
            "From a request's arrival to its answer's end.",
            ["api", "model"],
            registry=registry,
            buckets=_WHOLE_BUCKETS_S,
        )
        self._per_token = Histogram(
            "terazi_time_per_output_token_seconds",
            "Mean time between the tokens of a streamed answer, as its client saw them.",
            ["model"],
            registry=registry,
            buckets=_PER_TOKEN_BUCKETS_S,
        )
        self._prompt = self._tokens("prompt_tokens", "Tokens of prompts, cached ones too.")
        self._cached = self._tokens("prompt_tokens_cached", "Tokens of prompts that an engine had in its cache.")
        self._output = self._tokens("generation_tokens", "Tokens generated.")
        self._lost = Counter(
            "terazi_attempts_lost",
            "Times that an engine broke off in the middle of a request.",
            ["model"],
            registry=registry,
        )
        self._resumed = Counter(
            "terazi_requests_resumed",
            "Times that a request went on after its engine was lost, by how.",
            ["model", "kind"],
            registry=registry,
        )
        self._rejected = Counter(
            "terazi_requests_rejected",
            "Requests that got no engine, by why.",
            ["model", "key", "reason"],
            registry=registry,
        )
        if process:
            ProcessCollector(registry=registry)
        registry.register(_Engines(directory))
        registry.register(_Others(self._sources))

    def _histogram(self, name: str, text: str, labels: list[str]) -> Histogram:
        return Histogram(f"terazi_{name}", text, labels, registry=self._registry, buckets=_FIRST_BYTE_BUCKETS_S)

    def _tokens(self, name: str, text: str) -> Counter:
        return Counter(f"terazi_{name}", text, ["model", "key"], registry=self._registry)

    def add(self, source: Source) -> None:
        """Show the figures of *source* too."""
        self._sources.append(source)

    def of(self, metric: M, *labels: object) -> M:
        """What ``metric.labels(*labels)`` gives, kept: finding it there takes longer than counting does."""
        key = (metric, *labels)
        series: M | None = self._series.get(key)
        if series is None:
            series = self._series[key] = metric.labels(*labels)
        return series

    def noted(self, entry: Entry) -> None:
        """Count one request that is over."""
        call, outcome, usage = entry.call, entry.outcome, entry.usage
        model, key = call.model, self._key(call.caller.name)
        self.of(self._calls, call.api, model, key, outcome.status).inc()
        if not outcome.attempts and outcome.status >= 400 and not entry.client_gone:
            self.of(self._rejected, model, key, outcome.why or outcome.code or "other").inc()
        if outcome.attempts:
            self.of(self._queue, model, key).observe(entry.queued_s)
        lost = sum(attempt.lost is not None for attempt in outcome.attempts)
        if lost:
            self.of(self._lost, model).inc(lost)
        for kind in outcome.resumed:
            self.of(self._resumed, model, kind).inc()
        if entry.ttft_s is not None:
            self.of(self._ttft, call.api, model).observe(entry.ttft_s)
        if outcome.status < 400:
            self.of(self._whole, call.api, model).observe(entry.total_s)
        if entry.time_per_output_token_s is not None:
            self.of(self._per_token, model).observe(entry.time_per_output_token_s)
        for counter, tokens in (
            (self._prompt, usage.prompt_tokens),
            (self._cached, usage.cached_tokens),
            (self._output, usage.output_tokens),
        ):
            if tokens:
                self.of(counter, model, key).inc(tokens)

    def _key(self, name: str) -> str:
        """*name*, as long as there aren't too many: on a service without keys clients name themselves."""
        if name not in self._keys:
            if len(self._keys) >= MOST_KEYS:
                return OTHER_KEYS
            self._keys.add(name)
        return name

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


class _Others(Collector):
    """Figures that the sources hold; a family that nobody has anything of isn't shown."""

    def __init__(self, sources: list[Source]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """Read by Prometheus's registry on each scrape."""
        values: dict[Family, dict[tuple[str, ...], float]] = {}
        for source in self._sources:
            for figure in source():
                of_family = values.setdefault(figure.family, {})
                of_family[figure.labels] = of_family.get(figure.labels, 0.0) + figure.value
        for family, series in values.items():
            about = family.about
            made = CounterMetricFamily if about.kind is Kind.COUNTER else GaugeMetricFamily
            metric = made(family.series, about.help, labels=about.labels)
            for labels, value in series.items():
                metric.add_metric(labels, value)
            yield metric
