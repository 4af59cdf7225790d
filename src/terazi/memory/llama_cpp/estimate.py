"""What llama-fit-params prints for a configuration: the engine's estimate, with its known mistakes.

Sources, b11434: ``common/fit.cpp:common_fit_print`` (whole MiB of model, context and compute a device),
``ggml/src/ggml-backend.cpp:ggml_backend_sched_reserve_size`` (which resets the scheduler and so forgets the devices
that norms are pinned to). Repacked weights are missing from its host row.
"""

from typing import NamedTuple

from terazi.hardware.machine import Device
from terazi.memory.bill import HOST, Term
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.blocks import unrolled
from terazi.memory.llama_cpp.compute import compute_bytes
from terazi.memory.llama_cpp.families import family_of
from terazi.memory.llama_cpp.kv import cache_layers
from terazi.memory.llama_cpp.recurrent import state_layers
from terazi.memory.llama_cpp.resolve import resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weights import place_tensors
from terazi.models.spec import ModelSpec

#: Weights that the tool leaves out of its table.
_UNCOUNTED = frozenset({"weights.repack", "weights.amx"})


class DeviceEstimate(NamedTuple):
    """One row of the tool's table: (formula, bytes) of the lines behind each of its figures.

    ``bound`` is set where a figure is an upper bound, because the family's rules aren't known.
    """

    model: tuple[tuple[str, int], ...]
    context: tuple[tuple[str, int], ...]
    compute: tuple[tuple[str, int], ...]
    bound: bool


def estimate(
    spec: ModelSpec, settings: LlamaCppSettings, devices: tuple[Device, ...], isa: frozenset[str]
) -> dict[str, DeviceEstimate]:
    """The table that ``llama-fit-params --fit-print on`` prints, by device.

    Args:
        spec: the model.
        settings: with ``tool`` llama-fit-params.
        devices: accelerators in the engine's order.
        isa: CPU flags of the host.

    Raises:
        UsageError: for settings that llama.cpp itself refuses.
    """
    bill = weigh(spec, settings, devices, isa)
    spec = unrolled(spec)
    family = family_of(spec)
    compute: dict[str, int] | None = None
    if family is not None:
        resolved = resolve(spec, settings, devices)
        compute = compute_bytes(
            spec,
            family,
            settings,
            resolved,
            caches=cache_layers(spec, family, settings, resolved),
            placements=place_tensors(spec, settings, resolved, isa),
            states=state_layers(spec, family, settings, resolved),
            pinned=False,
        )

    def of(device: str, *terms: Term) -> tuple[tuple[str, int], ...]:
        return tuple(
            (line.formula, line.bytes)
            for line in bill.lines
            if line.device == device and line.term in terms and line.formula not in _UNCOUNTED
        )

    return {
        device: DeviceEstimate(
            model=of(device, Term.WEIGHTS),
            context=of(device, Term.KV, Term.STATE),
            compute=of(device, Term.COMPUTE) if compute is None else (("compute.replay", compute.get(device, 0)),),
            bound=family is None,
        )
        for device in dict.fromkeys((*bill.devices(), HOST))
    }
