"""What happened to engines since the service began, and what they hold, as figures for the metrics."""

from collections import Counter
from collections.abc import Iterable, Iterator

from terazi.gateway.figures import Family, Figure
from terazi.service.deployment import Deployment

#: How the keeper's words for an unload begin, and the label that they get; all others are ``asked``.
_REASONS = (("room for", "room"), ("idle for", "idle"))


class EngineCounts:
    """Told by the fleet, read on a scrape."""

    def __init__(self) -> None:
        self._loads: Counter[tuple[str, str]] = Counter()
        self._load_s: dict[str, float] = {}
        self._unloads: Counter[tuple[str, str]] = Counter()
        self._restarts: Counter[str] = Counter()
        self._stuck: Counter[str] = Counter()

    def loaded(self, model: str, took_s: float) -> None:
        """An engine of *model* answers; the load took so long."""
        self._loads[model, "ready"] += 1
        self._load_s[model] = took_s

    def load_failed(self, model: str) -> None:
        """An engine of *model* could not be loaded, or died for good."""
        self._loads[model, "failed"] += 1

    def unloaded(self, model: str, reason: str) -> None:
        """An engine of *model* is being unloaded, for the keeper's *reason*."""
        self._unloads[model, next((word for start, word in _REASONS if reason.startswith(start)), "asked")] += 1

    def broke(self, model: str, *, stuck: bool) -> None:
        """An engine of *model* that answered is started again, since it died, or was stuck."""
        self._restarts[model] += 1
        if stuck:
            self._stuck[model] += 1

    def figures(self) -> Iterator[Figure]:
        """All of it. A swap is an unload that made room for another model."""
        for labels, n in self._loads.items():
            yield Figure(Family.LOADS, labels, n)
        for model, seconds in self._load_s.items():
            yield Figure(Family.LOAD_SECONDS, (model,), seconds)
        for labels, n in self._unloads.items():
            yield Figure(Family.EVICTIONS, labels, n)
        yield Figure(Family.SWAPS, (), sum(n for (_, why), n in self._unloads.items() if why == "room"))
        for family, counts in ((Family.RESTARTS, self._restarts), (Family.STUCK, self._stuck)):
            for model, n in counts.items():
                yield Figure(family, (model,), n)


def memory_figures(deployments: Iterable[Deployment]) -> Iterator[Figure]:
    """Bytes on each device of the engines that run: by their plans, and by their own logs where those say."""
    for deployment in deployments:
        if deployment.runner.pid is None:
            continue
        for share in deployment.plan.devices:
            yield Figure(Family.MEMORY, (share.id, "planned"), share.total_bytes)
        report = deployment.runner.report
        for buffer in () if report is None else report.buffers:
            yield Figure(Family.MEMORY, (buffer.device, "measured"), buffer.bytes)
