"""How fast each device is at a layer, as far as the search needs to know: one number a block, one for the output.

In: whoever judges plans says it (``Appraiser.pace``), or bandwidths do. Out: ``Pace``.
"""

from collections.abc import Sequence
from typing import NamedTuple

from terazi.hardware.machine import Machine
from terazi.memory.bill import HOST
from terazi.models.spec import ModelSpec

#: Assumed where a bandwidth is unknown; only the order of the devices depends on it.
_ASSUMED_BANDWIDTH = 300e9
_ASSUMED_RAM_BANDWIDTH = 40e9
#: Seconds of a hand-over between two cards, as ``performance.links`` has it from measured layer splits.
_ENTRY_S = 0.23e-3
#: Names of tensors that hold all routed experts of a block.
_EXPERTS = ("_exps", "_chexps")


class Pace(NamedTuple):
    """Seconds of one workload, by device id and for ``Host``.

    Args:
        block_s: an average block.
        output_s: the output layer.
        entry_s: the hand-over to this device from another one.
        beside_s: an average block that the host keeps while this device is the first of the others: the engine may
            compute a long prompt's host blocks there, and their weights cross its slot.
        begin_s: what it costs besides that the first blocks are kept on the host.
    """

    block_s: dict[str, float]
    output_s: dict[str, float]
    entry_s: dict[str, float]
    beside_s: dict[str, float]
    begin_s: dict[str, float]


def by_bandwidth(spec: ModelSpec, machine: Machine) -> Pace:
    """Seconds of one token where nobody says more: bytes read over bandwidth."""
    active = active_bytes(spec)
    block = sum(active[:-1]) / max(1, len(active) - 1)
    rates = {d.id: d.memory_bandwidth.value or _ASSUMED_BANDWIDTH for d in machine.devices}
    rates[HOST] = machine.host.ram_bandwidth.value or _ASSUMED_RAM_BANDWIDTH
    return Pace(
        block_s={name: block / rate for name, rate in rates.items()},
        output_s={name: active[-1] / rate for name, rate in rates.items()},
        entry_s=dict.fromkeys(rates, _ENTRY_S),
        beside_s=dict.fromkeys(rates, block / rates[HOST]),
        begin_s=dict.fromkeys(rates, 0.0),
    )


def active_bytes(spec: ModelSpec) -> list[float]:
    """Bytes of each block that a token reads, and of the output last."""
    share = spec.expert_used_count / spec.expert_count if spec.expert_count else 1.0
    active = [0.0] * (spec.block_count + 1)
    tied = embedding = 0.0
    for tensor in spec.tensors:
        if tensor.block is not None:
            routed = any(part in tensor.name for part in _EXPERTS)
            active[min(tensor.block, spec.block_count)] += tensor.n_bytes * (share if routed else 1.0)
        elif tensor.name == "output.weight":
            tied = tensor.n_bytes
        elif tensor.name == "token_embd.weight":
            embedding = tensor.n_bytes
    active[-1] += tied or embedding
    return active


def running_ns(active: Sequence[float], block_s: float, output_s: float) -> list[int]:
    """Running sums in nanoseconds: each block by its share of the bytes, then the output."""
    blocks = active[:-1]
    mean = sum(blocks) / len(blocks) if blocks else 0.0
    sums = [0]
    for size in blocks:
        sums.append(sums[-1] + round(1e9 * block_s * (size / mean if mean else 1.0)))
    sums.append(sums[-1] + round(1e9 * output_s))
    return sums
