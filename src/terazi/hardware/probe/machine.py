"""Puts this machine together: host, NVIDIA cards from the driver, AMD and Intel cards from sysfs, links."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from terazi.hardware.machine import Basis, Device, Host, Link, Machine
from terazi.hardware.probe.files import Tree
from terazi.hardware.probe.host import read_host
from terazi.hardware.probe.nvml import ask_driver, driver_present

if TYPE_CHECKING:
    from terazi.hardware.catalogue import Catalogue


def read_machine(
    root: str = "/",
    *,
    nvml_deadline_s: float = 5.0,
    catalogue: "Catalogue | None" = None,
    visible: str | None = None,
) -> Machine:
    """Read the machine below *root*. Never raises for what it finds: what can't be read is said in the notes.

    Args:
        root: a folder that holds ``proc`` and ``sys``; with any but ``/`` nothing else of this process is asked.
        nvml_deadline_s: how long the NVIDIA driver may take to answer, in all.
        catalogue: the table of cards; the packaged one is read if there is a card and none is given.
        visible: ``CUDA_VISIBLE_DEVICES`` as the engine will see it; None shows all cards.

    Device ids are llama.cpp's for a build with the vendor's own backend: ``CUDA0``, ``ROCm0``, ``SYCL0``. CUDA's
    are in PCI order, so an engine must be started with ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` for them to be true.
    """
    tree = Tree(root)
    host = read_host(tree)
    notes: list[str] = []
    cached = catalogue

    def table() -> "Catalogue":
        nonlocal cached
        if cached is None:
            from terazi.hardware.probe.catalogue import load_catalogue

            cached = load_catalogue()
        return cached

    nvidia, links = _read_nvidia(tree, host, table, notes, deadline_s=nvml_deadline_s, visible=visible)
    others = _read_others(tree, table, notes)
    return Machine(
        name="this machine" if tree.live else root,
        host=host,
        devices=(*nvidia, *others),
        links=links if not others else _link_all(nvidia, links, others),
        notes=tuple(notes),
    )


def _read_nvidia(
    tree: Tree,
    host: Host,
    table: Callable[[], "Catalogue"],
    notes: list[str],
    *,
    deadline_s: float,
    visible: str | None,
) -> tuple[tuple[Device, ...], tuple[Link, ...]]:
    from terazi.hardware.probe.pci import find_nvidia, read_link

    on_bus = find_nvidia(tree)
    if not driver_present(tree.root):
        if on_bus:
            notes.append(f"NVIDIA card at {', '.join(on_bus)}, but no NVIDIA driver is loaded")
        return (), ()
    from terazi.hardware.links import link_all
    from terazi.hardware.parse_nvml import nvml_device, nvml_port, parse_nvml, select_visible

    answer = ask_driver(deadline_s)
    report = parse_nvml(answer.text)
    notes.extend(report.notes)
    if answer.failure is not None:
        told = (
            f"{len(report.gpus)} of its cards had been read" if report.gpus else "none of its cards could be read"
        )
        notes.append(f"{answer.failure}: {told}")
    missing = len(on_bus) - len(report.gpus)
    if report.complete and report.gpus and missing > 0:
        notes.append(f"{missing} NVIDIA card(s) on the PCI bus are not among those that the driver lists")
    devices: list[Device] = []
    ports = []
    for gpu in select_visible(report.gpus, visible):
        made = nvml_device(
            f"CUDA{len(devices)}",
            gpu,
            table(),
            slot=None if gpu.address is None else read_link(tree, gpu.address),
            ram_bytes=(host.ram_total_bytes, host.ram_available_bytes),
        )
        if isinstance(made, str):
            notes.append(made)
            continue
        devices.append(made)
        ports.append(nvml_port(gpu, report, table()))
    if len({d.name for d in devices}) > 1:
        notes.append(
            "CUDA ids are in PCI order: start engines with CUDA_DEVICE_ORDER=PCI_BUS_ID, since the default differs"
        )
    return tuple(devices), link_all(devices, ports, basis=Basis.READ)


def _read_others(tree: Tree, table: Callable[[], "Catalogue"], notes: list[str]) -> tuple[Device, ...]:
    from terazi.hardware.probe.pci import read_drm_cards, read_link

    found = read_drm_cards(tree)
    if not found:
        return ()
    from terazi.hardware.cards import BACKENDS, DEVICE_NAMES
    from terazi.hardware.parse_drm import drm_device

    devices: list[Device] = []
    for vendor in ("amd", "intel"):
        prefix, count = DEVICE_NAMES[BACKENDS[vendor]], 0
        for card in found:
            if card.vendor != vendor:
                continue
            made = drm_device(f"{prefix}{count}", card, table(), read_link(tree, card.address))
            if isinstance(made, str):
                notes.append(made)
            else:
                devices.append(made)
                count += 1
    return tuple(devices)


def _link_all(nvidia: tuple[Device, ...], links: tuple[Link, ...], others: tuple[Device, ...]) -> tuple[Link, ...]:
    """All pairs: those between NVIDIA cards as the driver told, the rest through host memory."""
    from terazi.hardware.links import Port, link_all

    devices = (*nvidia, *others)
    told = {(link.a, link.b): link for link in links}
    rest = link_all(devices, [Port()] * len(devices), basis=Basis.READ)
    return tuple(told.get((link.a, link.b), link) for link in rest)
