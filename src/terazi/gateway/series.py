"""Counters and histograms that cost next to nothing to count with, shown in Prometheus's format by its own library.

``prometheus_client``'s take a lock for each number, since threads may share them, and walk a histogram's buckets.
These belong to one thread: whoever counts and whoever scrapes run on the event loop. Find a series once, with
``labels``, and keep it; to count is then an addition. One with labels in which nothing was counted isn't shown.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

#: Whether it shows when a series began, for its users may tell it not to (``PROMETHEUS_DISABLE_CREATED_SERIES``).
_CREATED: Final = any(
    sample.name.endswith("_created")
    for metric in Counter("terazi", "Only looked at.", registry=None).collect()
    for sample in metric.samples
)


class Count:
    """One series of a counter. ``value`` only grows; ``created`` is when it began, in Unix seconds."""

    __slots__ = ("created", "value")

    def __init__(self) -> None:
        self.value: float = 0
        self.created = time.time()

    @property
    def used(self) -> bool:
        """Whether anything was counted."""
        return self.value != 0

    def inc(self, amount: float = 1) -> None:
        """Add *amount*, which isn't negative."""
        self.value += amount


class Spread:
    """One series of a histogram.

    Args:
        bounds: of the buckets, upwards; each belongs to the bucket below it.
    """

    __slots__ = ("_bounds", "counts", "created", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        #: One more than there are bounds: what is above the last.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.created = time.time()

    @property
    def used(self) -> bool:
        """Whether anything was observed."""
        return any(self.counts)

    def observe(self, value: float) -> None:
        """Take *value* in."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class _Series(Protocol):
    @property
    def used(self) -> bool: ...


S = TypeVar("S", bound=_Series)


class _Family(Collector, Generic[S]):
    """All series of one name, by the values of its labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str], make: Callable[[], S]) -> None:
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._make = make
        self._known: dict[tuple[object, ...], S] = {}  # by what was asked for: 404 and "404" are one series
        self._series: dict[tuple[str, ...], S] = {}

    def labels(self, *values: object) -> S:
        """The series with *values*, one for each label, in their order; a new one if there was none."""
        series = self._known.get(values)
        if series is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self._name} has {len(self._labels)} labels, not {len(values)}")
            series = self._series.setdefault(tuple(map(str, values)), self._make())
            self._known[values] = series
        return series

    def _shown(self) -> Iterator[tuple[dict[str, str], S]]:
        for values, series in self._series.items():
            if series.used or not values:
                yield dict(zip(self._labels, values, strict=True)), series


class Counts(_Family[Count]):
    """A counter. *name* is without the ``_total`` that Prometheus gives it."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels, Count)

    def collect(self) -> Iterable[Metric]:
        """Read by Prometheus's registry on each scrape."""
        metric = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, series in self._shown():
            metric.add_metric(tuple(labels.values()), series.value, series.created if _CREATED else None)
        yield metric


class Spreads(_Family[Spread]):
    """A histogram. *bounds* as ``Spread`` has them."""

    def __init__(self, name: str, text: str, labels: Sequence[str], *, bounds: Sequence[float]) -> None:
        super().__init__(name, text, labels, lambda: Spread(bounds))
        self._ends: Final = (*(repr(float(bound)) for bound in bounds), "+Inf")  # as Go writes them, up to 1e6

    def collect(self) -> Iterable[Metric]:
        """Read by Prometheus's registry on each scrape."""
        metric = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, series in self._shown():
            so_far = 0
            for end, count in zip(self._ends, series.counts, strict=True):
                so_far += count
                metric.add_sample(f"{self._name}_bucket", {**labels, "le": end}, so_far)
            metric.add_sample(f"{self._name}_count", labels, so_far)
            metric.add_sample(f"{self._name}_sum", labels, series.total)
            if _CREATED:
                metric.add_sample(f"{self._name}_created", labels, series.created)
        yield metric
