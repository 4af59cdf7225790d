"""A model's waiting requests in bands of priority: strict, but each with a bounded wait.

A band below another is served when nothing above it can be. Besides, once every ``aging_s``, one turn goes to the
band that has gone unserved for longest, if that is ``aging_s`` or more; so the lowest of *n* bands is served at
least every ``(n - 1) aging_s``, and the higher ones lose no more than one turn in ``aging_s``, over however many
bands somebody spreads requests. It is the band that ages and not the request, or else a caller with a long old
queue would overtake the others in its band.
"""

from collections import OrderedDict
from collections.abc import Iterator

from terazi.policy.fairness import Band, Request


class Queue:
    """The waiting requests of one model, in bands.

    Args:
        aging_s: so often a band that is below others has a turn.
    """

    def __init__(self, aging_s: float) -> None:
        self._aging_s = aging_s
        self._bands: dict[int, Band] = {}
        self._aged_at = float("-inf")
        self._due: Band | None = None
        self._turns = 0
        #: All that wait, by id; the oldest arrival first.
        self.waiting: OrderedDict[str, Request] = OrderedDict()

    def add(self, request: Request, weight: float, now: float) -> None:
        """A new one."""
        self.waiting[request.id] = request
        self._band(request).add(request, weight, now)

    def bring_back(self, request: Request, now: float) -> None:
        """One that has lost its engine."""
        self.waiting[request.id] = request
        self.waiting.move_to_end(request.id, last=False)
        self.band_of(request).bring_back(request, now)

    def foresee(self, request: Request) -> int:
        """Its place, from 1, which is noted, to be held against what comes."""
        request.place, request.turns = self.before(request) + 1, self._turns
        return request.place

    def remove(self, request: Request) -> None:
        """It is gone without having been served."""
        del self.waiting[request.id]
        self.band_of(request).remove(request)

    def serve(self, request: Request, now: float) -> None:
        """It goes to an engine."""
        del self.waiting[request.id]
        band = self.band_of(request)
        if band is self._due:
            self._aged_at, self._due = now, None
        self._turns += 1
        band.serve(request, now, self._turns)

    def pass_through(self, request: Request, weight: float, now: float) -> None:
        """It comes while nobody waits, and is served at once: what ``add`` and ``serve`` would leave behind."""
        self._due = None  # as looking for candidates does
        self._turns += 1
        band = self._bands.get(request.priority)
        if band is None:
            band = self._band(request)
        band.pass_through(request, weight, now)

    def band_of(self, request: Request) -> Band:
        """Where it waits, or waited."""
        return self._bands[request.priority]

    def candidates(self, now: float) -> Iterator[Request]:
        """Those that wait, in the order in which they should be served; nothing may be changed meanwhile."""
        bands = [band for band in self._bands.values() if band.waiting]
        self._due = None
        if len(bands) > 1:
            bands.sort(key=lambda band: -band.level)
            oldest = min(bands, key=lambda band: band.served_at)
            if oldest is not bands[0] and now - max(oldest.served_at, self._aged_at) >= self._aging_s:
                self._due = oldest
                yield from oldest.candidates()
        for band in bands:
            if band is not self._due:
                yield from band.candidates()

    def before(self, request: Request) -> int:
        """How many will be served before *request*, as things are, without what aging may change."""
        higher = sum(band.waiting for level, band in self._bands.items() if level > request.priority)
        return higher + self.band_of(request).before(request)

    @property
    def priority(self) -> int:
        """The highest of those that wait."""
        return max((level for level, band in self._bands.items() if band.waiting), default=0)

    def _band(self, request: Request) -> Band:
        return self._bands.get(request.priority) or self._bands.setdefault(request.priority, Band(request.priority))
