"""Prometheus figures of the gateway, in a registry of its own.

Counters move once a request, when it is over, never once a chunk. What others know (states, queues, memory) is read
when somebody asks. The names behind ``terazi_`` are vLLM's where it has the same thing. Labels hold only models
that are served and keys that are configured, so that a client can't invent series.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from terazi.gateway.account import Entry
from terazi.gateway.backend import Directory
from terazi.gateway.figures import Family, Kind, Source
from terazi.gateway.series import Count, Counts, Spread, Spreads
from terazi.gateway.wire.errors import Api

#: The label of a request that named no model which is served.
NO_MODEL: Final = "none"
#: Names of keys that get series of their own; all others share one.
MOST_KEYS: Final = 100
OTHER_KEYS: Final = "others"

_FIRST_BYTE_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_WHOLE_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800)
_PER_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)


class _Shelf:
    """The series that the requests of one key to one model over one API are counted in."""

    __slots__ = ("cached", "output", "per_token", "prompt", "queue", "statuses", "ttft", "whole")

    def __init__(
        self, queue: Spread, ttft: Spread, whole: Spread, per_token: Spread, tokens: tuple[Count, Count, Count]
    ) -> None:
        self.statuses: dict[int, Count] = {}
        self.queue = queue
        self.ttft = ttft
        self.whole = whole
        self.per_token = per_token
        self.prompt, self.cached, self.output = tokens


class Metrics:
    """All series, and their text. A ``Reader`` of the bookkeeper's entries.

    Args:
        directory: whose models' states are shown.
        sources: of figures that others keep.
        process: whether this process's own are shown too, which the kernel is asked for.

    Attributes:
        before: called before each scrape, by which what waits to be counted is to be counted.
    """

    def __init__(self, directory: Directory, sources: Iterable[Source] = (), *, process: bool = False) -> None:
        self._registry = registry = CollectorRegistry()
        self._sources = list(sources)
        self._keys: set[str] = set()
        self._shelves: dict[tuple[Api, str, str], _Shelf] = {}
        self._answers: dict[tuple[Api, str, int], tuple[Count, Spread, Count]] = {}
        self.before: Callable[[], None] = lambda: None
        self.requests = self._counts("http_requests", "HTTP requests answered.", ["api", "model", "status"])
        self.first_byte = self._spreads(
            "time_to_first_byte_seconds",
            "From the whole request to the first byte of its answer.",
            ["api", "model"],
            _FIRST_BYTE_BUCKETS_S,
        )
        self.stream_bytes = self._counts("stream_bytes", "Bytes of streamed answers.", ["model"])
        self.retries = self._counts(
            "upstream_retries", "Requests sent again, because no byte had come back."
        ).labels()
        self.disconnects = self._counts(
            "client_disconnects", "Clients that left before their answer was complete."
        ).labels()
        self._calls = self._counts(
            "requests",
            "Requests to models that are over, by how they ended.",
            ["api", "model", "key", "status"],
        )
        self._ttft = self._spreads(
            "time_to_first_token_seconds",
            "From a request's arrival to its answer's first byte.",
            ["api", "model"],
            _FIRST_BYTE_BUCKETS_S,
        )
        self._queue = self._spreads(
            "request_queue_time_seconds",
            "From a request's arrival until an engine got it.",
            ["model", "key"],
            _FIRST_BYTE_BUCKETS_S,
        )
        self._whole = self._spreads(
            "e2e_request_latency_seconds",
            "From a request's arrival to its answer's end.",
            ["api", "model"],
            _WHOLE_BUCKETS_S,
        )
        self._per_token = self._spreads(
            "time_per_output_token_seconds",
            "Mean time between the tokens of a streamed answer, as its client saw them.",
            ["model"],
            _PER_TOKEN_BUCKETS_S,
        )
        by_key = ["model", "key"]
        self._prompt = self._counts("prompt_tokens", "Tokens of prompts, cached ones too.", by_key)
        self._cached = self._counts(
            "prompt_tokens_cached", "Tokens of prompts that an engine had in its cache.", by_key
        )
        self._output = self._counts("generation_tokens", "Tokens generated.", by_key)
        self._lost = self._counts(
            "attempts_lost", "Times that an engine broke off in the middle of a request.", ["model"]
        )
        self._resumed = self._counts(
            "requests_resumed",
            "Times that a request went on after its engine was lost, by how.",
            ["model", "kind"],
        )
        self._rejected = self._counts(
            "requests_rejected", "Requests that got no engine, by why.", ["model", "key", "reason"]
        )
        if process:
            ProcessCollector(registry=registry)
        registry.register(_Engines(directory))
        registry.register(_Others(self._sources))

    def _counts(self, name: str, text: str, labels: Iterable[str] = ()) -> Counts:
        family = Counts(f"terazi_{name}", text, tuple(labels))
        self._registry.register(family)
        return family

    def _spreads(self, name: str, text: str, labels: Iterable[str], bounds_s: tuple[float, ...]) -> Spreads:
        family = Spreads(f"terazi_{name}", text, tuple(labels), bounds=bounds_s)
        self._registry.register(family)
        return family

    def add(self, source: Source) -> None:
        """Show the figures of *source* too."""
        self._sources.append(source)

    def answered(
        self, api: Api, model: str, status: int, *, first_byte_s: float | None = None, stream_bytes: int = 0
    ) -> None:
        """Count one answer of HTTP that is over.

        Args:
            model: its id, or ``NO_MODEL``.
            status: as the client got it; ``account.CLIENT_GONE`` if it left.
            first_byte_s: how long the first byte took; None if there was none.
            stream_bytes: of a stream's events.
        """
        series = self._answers.get((api, model, status))
        if series is None:
            series = self._answers[api, model, status] = (
                self.requests.labels(api, model, status),
                self.first_byte.labels(api, model),
                self.stream_bytes.labels(model),
            )
        requests, first_byte, sent = series
        requests.value += 1
        if first_byte_s is not None:
            first_byte.observe(first_byte_s)
        sent.value += stream_bytes

    def noted(self, entry: Entry) -> None:
        """Count one request that is over."""
        call, outcome, usage = entry.call, entry.outcome, entry.usage
        model, name, status = call.model, call.caller.name, outcome.status
        key = name if name in self._keys else self._key(name)
        shelf = self._shelves.get((call.api, model, key))
        if shelf is None:
            shelf = self._shelves[call.api, model, key] = self._shelf(call.api, model, key)
        count = shelf.statuses.get(status)
        if count is None:
            count = shelf.statuses[status] = self._calls.labels(call.api, model, key, status)
        count.value += 1
        if outcome.attempts:
            shelf.queue.observe(entry.queued_s)
            if len(outcome.attempts) > 1 or outcome.attempts[0].lost is not None:
                lost = sum(attempt.lost is not None for attempt in outcome.attempts)
                self._lost.labels(model).inc(lost)
        elif status >= 400 and not entry.client_gone:
            self._rejected.labels(model, key, outcome.why or outcome.code or "other").inc()
        for kind in outcome.resumed:
            self._resumed.labels(model, kind).inc()
        if entry.ttft_s is not None:
            shelf.ttft.observe(entry.ttft_s)
        if status < 400:
            shelf.whole.observe(entry.total_s)
        if entry.time_per_output_token_s is not None:
            shelf.per_token.observe(entry.time_per_output_token_s)
        shelf.prompt.value += usage.prompt_tokens or 0
        shelf.cached.value += usage.cached_tokens or 0
        shelf.output.value += usage.output_tokens or 0

    def _shelf(self, api: Api, model: str, key: str) -> _Shelf:
        return _Shelf(
            self._queue.labels(model, key),
            self._ttft.labels(api, model),
            self._whole.labels(api, model),
            self._per_token.labels(model),
            (self._prompt.labels(model, key), self._cached.labels(model, key), self._output.labels(model, key)),
        )

    def _key(self, name: str) -> str:
        """*name*, as long as there aren't too many: on a service without keys clients name themselves."""
        if name not in self._keys:
            if len(self._keys) >= MOST_KEYS:
                return OTHER_KEYS
            self._keys.add(name)
        return name

    def text(self) -> bytes:
        """The text format 0.0.4 of all series."""
        self.before()
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
