"""The ``Bill`` noun: lines of bytes, per device, each with its formula and basis."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Term(StrEnum):
    """What the bytes are for."""

    WEIGHTS = "weights"
    KV = "kv"
    STATE = "state"  # recurrent state
    COMPUTE = "compute"
    OVERHEAD = "overhead"  # driver context, output buffer


class LineBasis(StrEnum):
    """How sure a line is."""

    EXACT = "exact"  # the engine's own arithmetic, redone
    MODELLED = "modelled"  # a model of the engine's allocator, within a stated error
    UPPER_BOUND = "upper-bound"  # this family's rules aren't known; it can't be more
    CATALOGUE = "catalogue"  # a figure published for this card or driver
    SEEN = "seen in this build"  # read off running programs of this build, on another machine perhaps
    MEASURED = "measured by the engine"  # the engine was asked, and said this figure


class Memory(StrEnum):
    """What kind of memory the bytes are, which decides who can take them back."""

    DEVICE = "device"  # an accelerator's own
    ANONYMOUS = "anonymous"  # host memory that only swap could take
    PAGE_CACHE = "page cache"  # pages of a mapped file, which the kernel may drop and read again
    PINNED = "pinned"  # host memory locked for transfers, or by mlock


#: Formulas of growth that a setting can cut, so that a plan need not have room for all of it.
ELASTIC = frozenset({"prompt-cache", "context-checkpoints"})

#: The id of host memory in a bill.
HOST = "Host"


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine:
    """One allocation. ``formula`` is an id that the reference page explains; ``note`` is for people.

    File-backed pages (``Memory.PAGE_CACHE``) may be dropped by the kernel; in ``Bill.lines`` they still count in
    the total, because what is read at every token is no spare memory.
    ``part`` says which part of the deployment the bytes are for: empty for the model itself, else the part of a
    ``Companion`` (``draft``, ``mmproj``, ``lora``, ...).
    """

    term: Term
    device: str
    bytes: int
    formula: str
    basis: LineBasis
    memory: Memory
    note: str = ""
    part: str = ""


def line_label(line: BillLine) -> str:
    """The formula, with the part that it is for if that isn't the model itself: ``draft/kv.full``."""
    return f"{line.part}/{line.formula}" if line.part else line.formula


class Held(NamedTuple):
    """Bytes by the kind of memory, of one device or of the host."""

    device_bytes: int
    anonymous_bytes: int
    page_cache_bytes: int
    pinned_bytes: int

    @property
    def unswappable_bytes(self) -> int:
        """What the kernel can't take back without swapping: it must fit the RAM, whatever else does."""
        return self.anonymous_bytes + self.pinned_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBill:
    """The lines of one device, summed by term; ``beside_bytes`` is all that isn't for the model itself."""

    device: str
    weights_bytes: int
    kv_bytes: int
    state_bytes: int
    compute_bytes: int
    overhead_bytes: int
    beside_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Sum of the five terms and of what is beside the model."""
        own = self.weights_bytes + self.kv_bytes + self.state_bytes + self.compute_bytes + self.overhead_bytes
        return own + self.beside_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What an engine will hold after loading (``lines``) and what it may take later (``growth``).

    ``page_cache`` lines are file pages that a mapping spans although nobody reads them after loading (weights that
    were repacked or sent to a card): the kernel drops them as soon as it needs the room, so they are no part of
    ``total_bytes``. The engine's log counts them into its mapped buffer.
    ``loading`` lines are held only while the engine loads (staging buffers, a profile run), beside the weights and
    before caches and compute buffers are made (a part beside the model, such as a draft that the engine lets go
    again: after them); ``peak_bytes`` is what must be free at the worst moment.
    ``process`` lines are what the program itself takes beside the buffers that its log adds up to (code, heap,
    stacks). They are held all the time, but they are no part of ``total_bytes``, which is the engine's own number.
    ``growth`` lines (host prompt cache, context checkpoints, work buffers) are ceilings that an engine reaches only
    under use; they are no part of ``total_bytes`` but a plan leaves room for them. Those of ``ELASTIC`` can be cut
    by a setting; the others come for certain with the first large request.
    ``exact`` is False as soon as a line is an upper bound; ``reasons`` then say why.
    """

    engine: str
    build: str
    lines: tuple[BillLine, ...]
    page_cache: tuple[BillLine, ...] = ()
    loading: tuple[BillLine, ...] = ()
    process: tuple[BillLine, ...] = ()
    growth: tuple[BillLine, ...] = ()
    exact: bool = True
    reasons: tuple[str, ...] = ()
    schema: str = "terazi.bill/1"

    @property
    def total_bytes(self) -> int:
        """Sum of the lines."""
        return sum(line.bytes for line in self.lines)

    def process_bytes(self, device: str) -> int:
        """What the program itself takes on *device*."""
        return sum(line.bytes for line in self.process if line.device == device)

    def peak_bytes(self, device: str) -> int:
        """The most that *device* holds until the engine is ready, the program itself included.

        Either all the lines with what is loaded beside them and let go again, or the weights and the overhead
        together with what is held only while the model loads.
        """
        there = self.on(device)
        staged = sum(line.bytes for line in self.loading if line.device == device and not line.part)
        dropped = sum(line.bytes for line in self.loading if line.device == device and line.part)
        loading = there.weights_bytes + there.overhead_bytes + staged
        return max(there.total_bytes + dropped, loading if staged else 0) + self.process_bytes(device)

    def needed_bytes(self, device: str) -> int:
        """What must be free on *device*: the peak while loading, or what is held once the first requests came."""
        sure = sum(line.bytes for line in self.growth if line.device == device and line.formula not in ELASTIC)
        return max(self.peak_bytes(device), self.on(device).total_bytes + self.process_bytes(device) + sure)

    def held(self, device: str) -> Held:
        """The lines of *device* and its process lines, summed by the kind of memory."""
        sums = dict.fromkeys(Memory, 0)
        for line in (*self.lines, *self.process):
            if line.device == device:
                sums[line.memory] += line.bytes
        return Held(sums[Memory.DEVICE], sums[Memory.ANONYMOUS], sums[Memory.PAGE_CACHE], sums[Memory.PINNED])

    def devices(self) -> tuple[str, ...]:
        """Device ids in order of first mention."""
        return tuple(dict.fromkeys(line.device for line in self.lines))

    def of(self, part: str) -> tuple[BillLine, ...]:
        """The lines of one part of the deployment; empty for the model itself."""
        return tuple(line for line in self.lines if line.part == part)

    def on(self, device: str) -> DeviceBill:
        """The lines of *device*, summed by term (all zero for a device without lines).

        Drafts, projectors and adapters don't mix with the model's own terms: they are ``beside_bytes``.
        """
        return DeviceBill(
            device=device,
            weights_bytes=_sum(self.lines, device, Term.WEIGHTS),
            kv_bytes=_sum(self.lines, device, Term.KV),
            state_bytes=_sum(self.lines, device, Term.STATE),
            compute_bytes=_sum(self.lines, device, Term.COMPUTE),
            overhead_bytes=_sum(self.lines, device, Term.OVERHEAD),
            beside_bytes=sum(line.bytes for line in self.lines if line.device == device and line.part),
        )


def _sum(lines: Iterable[BillLine], device: str, term: Term) -> int:
    return sum(line.bytes for line in lines if line.device == device and line.term is term and not line.part)
