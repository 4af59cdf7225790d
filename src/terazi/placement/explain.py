"""Says in sentences why the layers are where they are. Each sentence carries the number that decided it."""

from collections.abc import Container

from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST
from terazi.placement.judge import Judged
from terazi.units import format_bytes

#: Settings that say which devices share the layers, and how.
_SPREADING = ("devices", "tensor_split", "split_mode", "main_gpu")


def explain_layout(machine: Machine, judged: Judged, asked: Container[str] = ()) -> list[str]:
    """Sentences about the devices in use, those left out, and what stays in RAM.

    *asked* names the settings that somebody else chose: of what follows from them no other reason is given.
    """
    owners = judged.resolved.layer_devices
    total = len(owners)
    if not machine.devices:
        return [f"All {total} layers on the CPU: the machine has no accelerator."]
    by_id = {d.id: d for d in machine.devices}
    counts = {name: owners.count(name) for name in dict.fromkeys(owners)}
    in_ram = counts.pop(HOST, 0)
    held = {s.id: s for s in judged.shares}
    said: list[str] = []
    if not counts:
        return [f"All {total} layers on the CPU: no accelerator is used."]
    cut = judged.resolved.cut
    if len(cut) > 1:
        parts = ", ".join(f"{d.id} ({format_bytes(held[d.id].total_bytes)})" for d in cut)
        said.append(f"{total - in_ram} layers, each cut over {parts}; {total} in all, the output being one.")
    elif len(counts) == 1 and not in_ram:
        name = next(iter(counts))
        share = held[name]
        experts = " but for some experts" if judged.settings.n_cpu_moe else ""
        said.append(
            f"All {total} layers{experts} on {name} ({_describe(by_id[name])}): it holds them alone,"
            f" {format_bytes(share.total_bytes)} of {format_bytes(share.capacity_bytes)}."
        )
    else:
        parts = ", ".join(
            f"{n} layers on {name} ({format_bytes(held[name].total_bytes)})" for name, n in counts.items()
        )
        chosen = in_ram or any(name in asked for name in _SPREADING)
        lead = "" if chosen else "No card holds all of it: "
        said.append(f"{lead}{parts}; {total} in all, the output being one.")
    if in_ram:
        layers = judged.settings.n_gpu_layers
        why = f"as -ngl {layers} says" if "n_gpu_layers" in asked else "the cards have no room for one more"
        said.append(
            f"{in_ram} of {total} layers stay in RAM: {why}, and the CPU computes them"
            f" ({format_bytes(held[HOST].total_bytes)} of RAM)."
        )
    if judged.settings.n_cpu_moe:
        said.append(
            f"The routed experts of the first {judged.settings.n_cpu_moe} blocks stay in RAM, attention and cache"
            " of all blocks on the cards: a token reads few of the experts."
        )
    unused = [name for name in by_id if name not in counts and all(d.id != name for d in cut)]
    if unused:
        settled = any(name in asked for name in (*_SPREADING, "n_gpu_layers"))
        why = "as asked" if settled else "not needed, and another device would add a hand-over a token"
        said.append(f"{', '.join(unused)} left unused: {why}.")
    return said


def _describe(device: Device) -> str:
    bandwidth = device.memory_bandwidth.value
    return device.name if bandwidth is None else f"{device.name}, {bandwidth / 1e9:.0f} GB/s"
