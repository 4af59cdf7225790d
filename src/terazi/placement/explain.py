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
        experts = " but for some experts" if judged.settings.n_cpu_moe or judged.settings.override_tensor else ""
        said.append(
            f"All {total} layers{experts} on {name} ({_describe(by_id[name])}): it holds them alone,"
            f" {format_bytes(share.total_bytes)} of {format_bytes(share.capacity_bytes)}."
        )
    else:
        parts = ", ".join(
            f"{n} layer{'s' * (n > 1)} on {name} ({format_bytes(held[name].total_bytes)})"
            for name, n in counts.items()
        )
        chosen = in_ram or any(name in asked for name in _SPREADING)
        lead = "" if chosen else "No card holds all of it: "
        said.append(f"{lead}{parts}; {total} in all, the output being one.")
    if in_ram:
        layers = judged.settings.n_gpu_layers
        each = (held[HOST].weights_bytes + held[HOST].kv_bytes) / in_ram
        room = max(held[name].room_bytes for name in counts)
        why = "the cards have no room for one more" if room < 2 * each else "on the cards they would be slower"
        why = f"as -ngl {layers} says" if "n_gpu_layers" in asked else why
        said.append(
            f"{in_ram} of {total} layers stay in RAM: {why}, and the CPU computes them"
            f" ({format_bytes(held[HOST].total_bytes)} of RAM)."
        )
    said += _explain_experts(judged)
    unused = [name for name in by_id if name not in counts and all(d.id != name for d in cut)]
    if unused:
        settled = any(name in asked for name in (*_SPREADING, "n_gpu_layers"))
        them = "it" if len(unused) == 1 else "them"
        why = "as asked" if settled else f"the plan would be slower with {them}, or no faster"
        said.append(f"{', '.join(unused)} left unused: {why}.")
    return said


def _explain_experts(judged: Judged) -> list[str]:
    """Whose routed experts lie elsewhere than the rest of their block; who pinned patterns knows why."""
    settings = judged.settings
    if not settings.n_cpu_moe and not settings.override_tensor:
        return []
    from terazi.placement.overflow import CPU, read_part

    said = []
    parts = tuple(part for part in map(read_part, settings.override_tensor) if part is not None)
    stay = [p for p in parts if p.where == CPU]
    if settings.n_cpu_moe or stay:
        whose = [f"the routed experts of the first {settings.n_cpu_moe} blocks"] if settings.n_cpu_moe else []
        whose += [p.words for p in stay]
        listed = " and ".join(whose)
        said.append(
            f"{listed[0].upper()}{listed[1:]} stay in RAM, attention and cache"
            " of all blocks on the cards: a token reads few of the experts."
        )
    moved = [p for p in parts if p.where != CPU]
    if moved:
        words = ", ".join(f"{p.words} on {p.where}" for p in moved)
        said.append(
            f"Experts that their block's own card has no room for lie on the next: {words}; so fewer stay in RAM."
        )
    return said


def name_option(judged: Judged, beside: Judged) -> str:
    """What *judged* is, in the words that tell it from *beside*."""
    owners = judged.resolved.layer_devices
    counts = {name: owners.count(name) for name in dict.fromkeys(owners)}
    in_ram = counts.pop(HOST, 0)
    words = []
    if len(judged.resolved.cut) > 1:
        words.append(f"each layer cut over {', '.join(d.id for d in judged.resolved.cut)}")
    elif not counts:
        words.append("the CPU alone")
    elif len(counts) == 1:
        words.append(f"{next(iter(counts))} alone")
    else:
        words.append(f"a layer split over {' + '.join(f'{name} ({n})' for name, n in counts.items())}")
    if counts and in_ram:
        words.append(f"{in_ram} layer{'s' * (in_ram > 1)} in RAM")
    words += _name_experts(judged)
    if judged.resolved.n_seq_max != beside.resolved.n_seq_max:
        words.append(f"{judged.resolved.n_seq_max} slots")
    if judged.settings.type_k != beside.settings.type_k:
        words.append(f"a KV cache in {judged.settings.type_k}")
    if judged.settings.n_ubatch != beside.settings.n_ubatch:
        words.append(f"a micro-batch of {judged.settings.n_ubatch}")
    return ", ".join(words)


def _name_experts(judged: Judged) -> list[str]:
    settings = judged.settings
    if not settings.n_cpu_moe and not settings.override_tensor:
        return []
    from terazi.placement.overflow import CPU, read_part, shared_out

    in_cpu = [p for p in map(read_part, settings.override_tensor) if p is not None and p.where == CPU]
    words = []
    if settings.n_cpu_moe or in_cpu:
        whole = settings.n_cpu_moe + sum(len(p.blocks) for p in in_cpu if len(p.blocks) > 1)
        more = " and some of others" if any(len(p.blocks) == 1 for p in in_cpu) else ""
        words.append(f"the experts of {whole} blocks{more} in RAM")
    if shared_out(settings):
        words.append("blocks at a cut shared out over two cards")
    return words


def _describe(device: Device) -> str:
    bandwidth = device.memory_bandwidth.value
    return device.name if bandwidth is None else f"{device.name}, {bandwidth / 1e9:.0f} GB/s"
