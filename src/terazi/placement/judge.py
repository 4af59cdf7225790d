"""Judges one complete configuration: the real bill against the real budget.

In: ``ModelSpec``, ``Machine``, complete settings. Out: ``Judged``. Search and command lines both end here, so
nothing else decides whether something fits.
"""

from typing import NamedTuple

from terazi.hardware.machine import Machine
from terazi.memory.bill import HOST, Bill, Term
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.resolve import Resolved, resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weights import place_tensors
from terazi.models.spec import ModelSpec
from terazi.placement.capacity import Capacity
from terazi.placement.plan import DeviceShare, Shortfall, Verdict
from terazi.units import MIB


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
) -> Judged:
    """Weigh *settings*, with what is loaded beside the model, and hold them against *capacity*.

    Raises:
        UsageError: for settings that llama.cpp itself refuses.
    """
    resolved = resolve(spec, settings, machine.devices)
    bill = weigh(spec, settings, machine.devices, machine.host.isa, companions)
    names = {d.id: d.name for d in machine.devices}
    # the bill may name a device that the machine hasn't (an override's buffer): nothing fits there
    strangers = [d for d in bill.devices() if d != HOST and d not in names]
    shares = tuple(
        _share(device, names.get(device, machine.host.cpu_name or "CPU and RAM"), bill, resolved, capacity)
        for device in (*names, *strangers, HOST)
    )
    shortfall = tuple(
        Shortfall(device=s.id, needed_bytes=s.total_bytes, capacity_bytes=s.capacity_bytes)
        for s in shares
        if s.total_bytes > s.capacity_bytes
    )
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
    growth, room = judged.growth_bytes, judged.host.headroom_bytes
    if growth <= max(0, room):
        return None
    return (
        f"Prompt cache and checkpoints may grow to {growth // MIB} MiB of RAM,"
        f" but {max(0, room) // MIB} MiB are left: lower --cache-ram."
    )


def _share(device: str, name: str, bill: Bill, resolved: Resolved, capacity: Capacity) -> DeviceShare:
    held = bill.on(device)
    indices = [i for i, owner in enumerate(resolved.layer_devices) if owner == device]
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
    )


def _stays_in_ram(
    spec: ModelSpec, machine: Machine, settings: LlamaCppSettings, resolved: Resolved, bill: Bill
) -> bool:
    """Repeating layers, or parts of them, or their cache, on the host."""
    if HOST in resolved.layer_devices[:-1]:
        return True
    if any(line.device == HOST and line.term in {Term.KV, Term.STATE} and line.bytes for line in bill.lines):
        return True
    if not (settings.override_tensor or settings.cpu_moe or settings.n_cpu_moe):
        return False
    placed = place_tensors(spec, settings, resolved, machine.host.isa)
    return any(p.device == HOST and p.tensor.block is not None for p in placed)
