"""The ``Request`` noun: all that one weighing of a MODEL was asked for, so that it can be asked again, changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from terazi.hardware.machine import Machine
from terazi.memory.workload import Workload
from terazi.service.weigh import weigh_model
from terazi.service.weighing import Weighing

#: Settings of llama.cpp → what vLLM calls nearly the same.
_CACHE_TYPES = {"f16": "auto", "bf16": "auto", "q8_0": "fp8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One MODEL on one machine for one workload.

    ``pins`` are settings as typed, by the names of ``LlamaCppSettings`` or ``VllmSettings``; ``engine`` None takes
    the one that reads the model's format. ``draft`` is a MODEL that may guess tokens for it, ``mmproj`` a
    projector's file.
    """

    model: str
    machine: Machine
    workload: Workload
    pins: Mapping[str, object] = field(default_factory=dict)
    engine: str | None = None
    price_per_kwh: float | None = None
    draft: str | None = None
    mmproj: str | None = None


def weigh_request(request: Request) -> Weighing:
    """What came of it.

    Raises:
        ModelFileError, UsageError, RefusedError: as ``weigh_model``.
    """
    return weigh_model(
        request.model,
        request.machine,
        request.workload,
        pins_for(request.engine, request.pins),
        engine=request.engine,
        price_per_kwh=request.price_per_kwh,
        mmproj=request.mmproj,
        draft=request.draft if request.engine in {None, "llama.cpp"} else None,
    )


def pins_for(engine: str | None, pins: Mapping[str, object]) -> dict[str, object]:
    """*pins* under the names of *engine*; what it has no name for stays, and the engine says so."""
    kept = {name: value for name, value in pins.items() if value is not None}
    if engine == "vllm":
        kind = kept.pop("type_k", None)
        kept.pop("type_v", None)
        if isinstance(kind, str):
            kept.setdefault("kv_cache_dtype", _CACHE_TYPES.get(kind, kind))
    elif engine is not None and isinstance(kind := kept.pop("kv_cache_dtype", None), str):
        back = "q8_0" if kind.startswith("fp8") else "f16"
        kept |= {"type_k": kept.get("type_k", back), "type_v": kept.get("type_v", back)}
    return kept
