"""Says why a bill isn't exact: rules that aren't known here, or an engine that may change the settings itself."""

from collections.abc import Iterator

from terazi.memory.bill import Bill
from terazi.memory.llama_cpp.beside import Beside
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import FIT_MARGIN_BYTES, LlamaCppSettings
from terazi.models.spec import ModelSpec


def bound_reasons(
    spec: ModelSpec,
    resolved: Resolved,
    family: Family | None,
    beside: Beside,
) -> Iterator[str]:
    if family is None and beside.adapters:
        yield "What adapters add to the graph isn't counted: the family isn't known here."
    if family is None:
        yield (
            f"The rules of architecture {spec.architecture!r} aren't known here: full-length K and V in every "
            "layer and a generous compute buffer are counted."
        )
    elif not draws(spec, resolved):
        yield f"The draft head of {spec.architecture} isn't drawn here: a generous compute buffer is counted."
    if len(resolved.cut) > 1 and _is_bound(spec, family):
        yield (
            f"How -sm tensor cuts the tensors of {spec.architecture} isn't known here: each device is counted as "
            "if it held all of them."
        )


def fit_reasons(settings: LlamaCppSettings, resolved: Resolved, bill: Bill) -> Iterator[str]:
    # it gives up on cut tensors
    if settings.fit and settings.tool != "llama-fit-params" and not resolved.cut and _fit_may_change(settings):
        for device in resolved.devices:
            held = sum(
                line.bytes for line in bill.lines if line.device == device.id and line.formula != "driver-context"
            )
            if held > device.memory_free_bytes - FIT_MARGIN_BYTES:
                yield (
                    f"{device.id} would keep less than 1 GiB free, so the engine's --fit would move layers or cut "
                    "the context; this bill is of the settings as given. Say -ngl and -c, or --fit off."
                )


def draws(spec: ModelSpec, resolved: Resolved) -> bool:
    """Whether the graph of this context is known here, the family being known."""
    if not resolved.draft_head:
        return True
    from terazi.memory.llama_cpp.draft import draws_head

    return draws_head(spec)


def _fit_may_change(settings: LlamaCppSettings) -> bool:
    """``common_params_fit_impl`` touches only what the caller left open, and gives up if layers are given."""
    placed = settings.n_gpu_layers is not None or settings.tensor_split or settings.override_tensor
    return settings.n_ctx == 0 or not (placed or settings.cpu_moe or settings.n_cpu_moe)


def _is_bound(spec: ModelSpec, family: Family | None) -> bool:
    # few commands cut tensors, and the others spare the import
    from terazi.memory.llama_cpp.tensor_split import is_bound

    return is_bound(spec, family)
