"""The ``Plan`` and ``Refusal`` nouns."""

from dataclasses import dataclass
from enum import StrEnum

from terazi.memory.bill import Bill
from terazi.memory.settings import EngineSettings
from terazi.memory.workload import Workload


class Verdict(StrEnum):
    """How it fits."""

    FITS = "fits"
    FITS_OFFLOADED = "fits-offloaded"  # there are accelerators, and some layers had to stay in RAM
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """What one device holds. ``layers`` is the inclusive range (first, last); index ``block_count`` is the output.

    ``beside_bytes`` is for a draft, a projector or adapters beside the model, all terms of theirs together.
    ``capacity_bytes`` is what the plan may use there (free memory less the reserve for others),
    ``headroom_bytes`` what the bill's lines leave of it. ``process_bytes`` is what the program itself takes
    besides, ``loading_bytes`` what is missing from both to the peak while loading. The last three say what kind of
    memory lines and process hold on the host, or in a mapped device buffer; an accelerator's own is none of them.
    """

    id: str
    name: str
    layers: tuple[int, int] | None
    weights_bytes: int
    kv_bytes: int
    state_bytes: int
    compute_bytes: int
    overhead_bytes: int
    total_bytes: int
    capacity_bytes: int
    headroom_bytes: int
    beside_bytes: int = 0
    process_bytes: int = 0
    loading_bytes: int = 0
    anonymous_bytes: int = 0
    page_cache_bytes: int = 0
    pinned_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """The most that is held there until the engine is ready."""
        return self.total_bytes + self.process_bytes + self.loading_bytes

    @property
    def room_bytes(self) -> int:
        """What is left for growth once the engine is ready; negative if it doesn't fit."""
        return self.headroom_bytes - self.process_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """What was weighed or considered and not taken, with the figure that decided it."""

    option: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A placement that fits. ``id`` is a hash of model, machine and settings, and rides on every record.

    ``rejected`` are the layouts, settings and engines that were not taken.
    """

    id: str
    engine: str
    settings: EngineSettings
    workload: Workload
    verdict: Verdict
    devices: tuple[DeviceShare, ...]
    bill: Bill
    reasons: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    schema: str = "terazi.plan/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """How much is missing on one device. ``why`` says what needs it, where that isn't simply all of it."""

    device: str
    needed_bytes: int
    capacity_bytes: int
    why: str = ""

    @property
    def missing_bytes(self) -> int:
        """What would have to be freed or added."""
        return max(0, self.needed_bytes - self.capacity_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The nearest thing that fits: its settings as flags, what it gives up, and what it would hold."""

    settings: EngineSettings
    change: str
    gives_up: str
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why it doesn't fit, per device, and what would. ``closest`` is the placement that came nearest."""

    reason: str
    shortfall: tuple[Shortfall, ...]
    alternatives: tuple[Alternative, ...]
    closest: tuple[DeviceShare, ...]
    bill: Bill
    settings: EngineSettings
    workload: Workload
    schema: str = "terazi.refusal/1"
