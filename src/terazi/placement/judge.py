"""Judges one complete configuration: the real bill against the real budget.

In: ``ModelSpec``, ``Machine``, complete settings. Out: ``Judged``. Search and command lines both end here, so
nothing else decides whether something fits.
"""

from typing import TYPE_CHECKING, NamedTuple

from terazi.hardware.machine import Machine
from terazi.memory.bill import HOST, Bill, Memory, Term
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.resolve import Resolved, resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weights import place_tensors
from terazi.models.spec import ModelSpec
from terazi.placement.capacity import Capacity
from terazi.placement.plan import DeviceShare, Shortfall, Verdict
from terazi.units import MIB, format_bytes

if TYPE_CHECKING:
    from terazi.memory.llama_cpp.scale import Scale


class Judged(NamedTuple):
    """One configuration, weighed."""

    settings: LlamaCppSettings
    bill: Bill
    resolved: Resolved
    shares: tuple[DeviceShare, ...]
    shortfall: tuple[Shortfall, ...]
    verdict: Verdict

    @property
    def missing_bytes(self) -> int:
        """What is missing on all devices together."""
        return sum(s.missing_bytes for s in self.shortfall)

    @property
    def growth_bytes(self) -> int:
        """What the host may take later, under use."""
        return sum(line.bytes for line in self.bill.growth if line.device == HOST)

    @property
    def host(self) -> DeviceShare:
        """The host's row, always the last."""
        return self.shares[-1]


def judge(
    spec: ModelSpec,
    machine: Machine,
    settings: LlamaCppSettings,
    capacity: Capacity,
    companions: tuple[Companion, ...] = (),
    *,
    scale: "Scale | None" = None,
) -> Judged:
    """Weigh *settings*, with what is loaded beside the model, and hold them against *capacity*.

    A search hands its *scale* of this model on this machine.

    Raises:
        UsageError: for settings that llama.cpp itself refuses.
    """
    resolved = resolve(spec, settings, machine.devices)
    if scale:
        bill = scale.weigh(settings, companions)
    else:
        bill = weigh(spec, settings, machine.devices, machine.host.isa, companions)
    names = {d.id: d.name for d in machine.devices}
    # the bill may name a device that the machine hasn't (an override's buffer): nothing fits there
    strangers = [d for d in bill.devices() if d != HOST and d not in names]
    shares = tuple(
        _share(device, names.get(device, machine.host.cpu_name or "CPU and RAM"), bill, resolved, capacity)
        for device in (*names, *strangers, HOST)
    )
    shortfall = tuple(lack for s in shares if (lack := _shortfall(s, bill)) is not None)
    if shortfall:
        verdict = Verdict.REFUSED
    elif machine.devices and _stays_in_ram(spec, machine, settings, resolved, bill):
        verdict = Verdict.FITS_OFFLOADED
    else:
        verdict = Verdict.FITS
    return Judged(
        settings=settings, bill=bill, resolved=resolved, shares=shares, shortfall=shortfall, verdict=verdict
    )


def growth_reason(judged: Judged) -> str | None:
    """A warning when what may grow later has no room, or None."""
    growth, room = judged.growth_bytes, judged.host.room_bytes
    if growth <= max(0, room):
        return None
    return (
        f"Prompt cache, checkpoints and work buffers may grow to {growth // MIB} MiB of RAM,"
        f" but {max(0, room) // MIB} MiB are left: lower --cache-ram."
    )


def memlock_reason(judged: Judged, machine: Machine) -> str | None:
    """A warning when the memory that ``--load-mode mlock`` is to lock is more than this process may lock, or None.

    The engine then says so and goes on without (``llama_mlock::impl::raw_lock``, b11434).
    """
    limit = machine.host.memlock_limit_bytes
    pinned = sum(
        line.bytes for line in judged.bill.lines if line.memory is Memory.PINNED and line.term is Term.WEIGHTS
    )
    if limit is None or not judged.settings.mlock or pinned <= limit:
        return None
    return (
        f"The weights won't be locked: {format_bytes(pinned)} are to be, and this process may lock"
        f" {format_bytes(limit)} (ulimit -l). They may then be swapped or dropped like other memory."
    )


def _shortfall(share: DeviceShare, bill: Bill) -> Shortfall | None:
    """Whether *share* fits: all that it holds at the worst moment, and what it is sure to take under use.

    On the host that is memory which only swap could take, and file pages beside it that are read at every token.
    """
    needed = bill.needed_bytes(share.id)
    if needed <= share.capacity_bytes:
        return None
    why = ""
    if share.id == HOST and share.page_cache_bytes:
        hard = needed - share.page_cache_bytes
        if hard > share.capacity_bytes:
            why = f"{format_bytes(hard)} of it can't be dropped by the kernel"
        else:
            why = f"{format_bytes(share.page_cache_bytes)} of it are file pages that are read at every token"
    elif share.total_bytes <= share.capacity_bytes:
        why = "at its peak"
    return Shortfall(device=share.id, needed_bytes=needed, capacity_bytes=share.capacity_bytes, why=why)


def _share(device: str, name: str, bill: Bill, resolved: Resolved, capacity: Capacity) -> DeviceShare:
    held, kinds = bill.on(device), bill.held(device)
    process = bill.process_bytes(device)
    # of a layer that is cut, each of the devices holds a slice
    owner_id = resolved.devices[0].id if any(d.id == device for d in resolved.cut) else device
    indices = [i for i, owner in enumerate(resolved.layer_devices) if owner == owner_id]
    limit = capacity.of(device, bill)
    return DeviceShare(
        id=device,
        name=name,
        layers=(indices[0], indices[-1]) if indices else None,
        weights_bytes=held.weights_bytes,
        kv_bytes=held.kv_bytes,
        state_bytes=held.state_bytes,
        compute_bytes=held.compute_bytes,
        overhead_bytes=held.overhead_bytes,
        total_bytes=held.total_bytes,
        capacity_bytes=limit,
        headroom_bytes=limit - held.total_bytes,
        beside_bytes=held.beside_bytes,
        process_bytes=process,
        loading_bytes=bill.peak_bytes(device) - held.total_bytes - process,
        anonymous_bytes=kinds.anonymous_bytes,
        page_cache_bytes=kinds.page_cache_bytes,
        pinned_bytes=kinds.pinned_bytes,
    )


def _stays_in_ram(
    spec: ModelSpec, machine: Machine, settings: LlamaCppSettings, resolved: Resolved, bill: Bill
) -> bool:
    """Repeating layers, or parts of them, or their cache, on the host."""
    if HOST in resolved.layer_devices[:-1]:
        return True
    if any(line.device == HOST and line.term in {Term.KV, Term.STATE} and line.bytes for line in bill.of("")):
        return True
    if not (settings.override_tensor or settings.cpu_moe or settings.n_cpu_moe):
        return False
    placed = place_tensors(spec, settings, resolved, machine.host.isa)
    return any(p.device == HOST and p.tensor.block is not None for p in placed)
