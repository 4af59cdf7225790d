"""The machine as one engine binary sees it: a card that the binary can't use is no card for its plan.

Never a silent fall to the CPU: what is left unused is said, with the remedy.
"""

import dataclasses
import re
from collections.abc import Iterable

from terazi.engines.llama_cpp.binary import Binary, ListedDevice
from terazi.hardware.cards import DEVICE_NAMES, bandwidth_figure, flops_figure, tdp_figure
from terazi.hardware.catalogue import Catalogue
from terazi.hardware.machine import Basis, Device, Figure, Machine

_BACKENDS = {name: backend for backend, name in DEVICE_NAMES.items()}


def as_engine_sees(
    machine: Machine, binary: Binary, listed: Iterable[ListedDevice] | None, catalogue: Catalogue
) -> tuple[Machine, tuple[str, ...]]:
    """*machine* with exactly the devices that *binary* lists, and a sentence for each card that goes unused.

    A listed device that the probe has not read (another backend's name for a card) is taken from the list, with
    the catalogue's figures where its name is known. A binary that can't list its devices is believed to have all.
    """
    if listed is None:
        return machine, ()
    read = {device.id: device for device in machine.devices}
    seen = {}
    for entry in listed:
        seen[entry.id] = read.pop(entry.id) if entry.id in read else _device(entry, catalogue)
    addresses = {d.pci_address for d in seen.values() if d.pci_address}
    unused = [d for d in read.values() if not d.pci_address or d.pci_address not in addresses]
    known_names = " ".join(d.name for d in seen.values())
    notes = tuple(
        f"{device.name} ({device.id}) stays unused: {binary.path} was built without {device.backend.upper()}; "
        f"name a llama-server that has it in TERAZI_LLAMA_SERVER"
        for device in unused
        if device.name not in known_names
    )
    return dataclasses.replace(machine, devices=tuple(seen.values())), notes


def _device(entry: ListedDevice, catalogue: Catalogue) -> Device:
    prefix = re.sub(r"\d+$", "", entry.id)
    # Vulkan drivers add their own name: "AMD Radeon RX 7900 XTX (RADV NAVI31)"
    names = (entry.name, re.sub(r"\s*\([^()]*\)$", "", entry.name))
    record = next((r for name in names if (r := catalogue.find_or_none(name, entry.total_bytes))), None)
    unknown = Figure(value=None, basis=Basis.ASSUMED, note=f"{entry.name} is not in the catalogue")
    return Device(
        id=entry.id,
        name=entry.name,
        vendor=record.vendor if record else "unknown",
        backend=_BACKENDS.get(prefix, prefix.lower()),
        memory_total_bytes=entry.total_bytes,
        memory_free_bytes=entry.free_bytes,
        memory_bandwidth=bandwidth_figure(record) if record else unknown,
        flops_fp16=flops_figure(record) if record else unknown,
        tdp_w=tdp_figure(record) if record else unknown,
        notes=("as the engine lists it",),
    )
