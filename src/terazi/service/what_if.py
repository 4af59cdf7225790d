"""Variations of a weighing side by side: ``KEY=VALUE``, several joined by ``;``.

    context=32768   users=8   prompt=…   output=…   ttft=500 (ms)   itl=40 (ms)
    kv-type=q8_0   micro-batch=1024   gpu-layers=40   tensor-split=2,1   tensor-parallel=2   engine=vllm
    pipeline-parallel=2   split-mode=tensor
    quant=Q5_K_M    another file of the same model   model=…  another MODEL
    on=+RTX 3090    a card more   on=-CUDA1  one less   on=2x RTX 4090 + 64GiB  another machine
    cap=250W        every card held to it   link=nvlink | p2p | host | pcie4x16

In: ``Request`` and such texts. Out: a ``Row`` each, the first being the request as it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from terazi.errors import TeraziError, UsageError
from terazi.hardware.machine import Basis, Machine, PcieLink
from terazi.memory.workload import Workload
from terazi.service.request import Request, weigh_request
from terazi.service.side_by_side import Row
from terazi.service.weighing import Weighing

_HINT: Final = (
    'write KEY=VALUE, e.g. --what-if kv-type=q8_0, --what-if "on=+RTX 3090" or --what-if "context=65536; cap=250W"'
)
#: Settings that are whole numbers, and those that are words, by their names here and in the engines' settings.
_NUMBERS: Final = {
    "batch": "n_batch", "micro-batch": "n_ubatch", "gpu-layers": "n_gpu_layers", "cache-ram": "cache_ram_mib",
    "tensor-parallel": "tensor_parallel", "pipeline-parallel": "pipeline_parallel",
}  # fmt: skip
_WORDS: Final = {"flash-attention": "flash_attn", "split-mode": "split_mode"}
_WORKLOAD: Final = ("context", "users", "prompt", "output")
_LIMITS: Final = ("ttft", "itl")


def what_if(request: Request, base: Weighing, variations: tuple[str, ...]) -> tuple[Row, ...]:
    """The base and a row a variation. A variation that can't be weighed says why in its row.

    Raises:
        UsageError: a variation that makes no sense as such.
    """
    rows = [Row(label="as asked", weighing=base)]
    for text in variations:
        changed = change(request, text)
        try:
            rows.append(Row(label=text, weighing=weigh_request(changed)))
        except TeraziError as error:
            rows.append(Row(label=text, weighing=None, why_not=error.message))
    return tuple(rows)


def change(request: Request, text: str) -> Request:
    """*request* with the changes that *text* says.

    Raises:
        UsageError: an unknown key, or a value that its key doesn't take.
    """
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not parts:
        raise UsageError("the variation is empty", hint=_HINT)
    for part in parts:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise UsageError(f"{part!r} is no KEY=VALUE", hint=_HINT)
        request = _changed(request, key.lower(), value)
    return request


def _changed(request: Request, key: str, value: str) -> Request:
    if key in _WORKLOAD:
        return replace(request, workload=_with_workload(request.workload, key, _number(key, value, least=1)))
    if key in _LIMITS:
        seconds = _amount(key, value, "ms") / 1e3
        work = request.workload
        limited = replace(work, ttft_limit_s=seconds) if key == "ttft" else replace(work, itl_limit_s=seconds)
        return replace(request, workload=limited)
    if key == "kv-type":
        return _pinned(request, {"type_k": value, "type_v": value})
    if key in _NUMBERS:
        return _pinned(request, {_NUMBERS[key]: _number(key, value, least=-1 if key == "cache-ram" else 0)})
    if key in _WORDS:
        return _pinned(request, {_WORDS[key]: value})
    if key == "tensor-split":
        return _pinned(request, {"tensor_split": _shares(value)})
    simple = _SIMPLE.get(key)
    if simple is None:
        known = sorted({*_WORKLOAD, *_LIMITS, "kv-type", *_NUMBERS, *_WORDS, "tensor-split", *_SIMPLE})
        raise UsageError(f"there is no variation {key!r}", hint=f"there are: {', '.join(known)}")
    return simple(request, value)


def _with_workload(workload: Workload, key: str, value: int) -> Workload:
    changed = {
        "context": lambda: replace(workload, context=value),
        "users": lambda: replace(workload, users=value),
        "prompt": lambda: replace(workload, prompt=value),
        "output": lambda: replace(workload, output=value),
    }[key]()
    room = changed.context
    if key == "context" and room is not None and changed.prompt + changed.output > room:
        output = max(1, min(changed.output, room // 4))
        changed = replace(changed, output=output, prompt=max(1, min(changed.prompt, room - output)))
    return changed


def _pinned(request: Request, pins: Mapping[str, object]) -> Request:
    return replace(request, pins={**request.pins, **pins})


def _engine(request: Request, value: str) -> Request:
    from terazi.service.compare import ENGINES

    if value not in ENGINES:
        raise UsageError(f"there is no engine {value!r}", hint=f"there are: {', '.join(ENGINES)}")
    return replace(request, engine=value)


def _model(request: Request, value: str) -> Request:
    return replace(request, model=value)


def _quant(request: Request, value: str) -> Request:
    from terazi.models.sources.offers import with_quant

    return replace(request, model=with_quant(request.model, value))


def _on(request: Request, value: str) -> Request:
    from terazi.hardware.variations import with_cards, without_cards
    from terazi.service.weigh import find_machine

    if value.startswith("+"):
        return replace(request, machine=with_cards(request.machine, find_machine(value[1:].strip())))
    if value.startswith("-"):
        names = [name.strip() for name in value[1:].split(",")]
        return replace(request, machine=without_cards(request.machine, names))
    return replace(request, machine=find_machine(value))


def _cap(request: Request, value: str) -> Request:
    from terazi.hardware.variations import with_cap

    return replace(request, machine=with_cap(request.machine, _amount("cap", value, "w")))


def _link(request: Request, value: str) -> Request:
    from terazi.hardware.variations import with_links, with_pcie

    kind = value.lower()
    if kind.startswith("pcie"):
        generation, _, lanes = kind.removeprefix("pcie").partition("x")
        slot = PcieLink(
            generation=_number("link", generation, least=1),
            lanes=_number("link", lanes, least=1),
            basis=Basis.ASSUMED,
        )
        return replace(request, machine=with_pcie(request.machine, slot))
    kinds = {"nvlink": "nvlink", "p2p": "pcie-p2p", "host": "host"}
    if kind not in kinds:
        raise UsageError(f"there is no link {value!r}", hint="there are: nvlink, p2p, host, pcie4x16 and the like")
    machine = request.machine
    return replace(request, machine=with_links(machine, kinds[kind], _nvlink_rates(machine)))


def _nvlink_rates(machine: Machine) -> list[float | None]:
    from terazi.hardware.cards import nvlink_rate
    from terazi.hardware.probe import load_catalogue

    catalogue = load_catalogue()
    records = [catalogue.find_or_none(d.name, d.memory_total_bytes) for d in machine.devices]
    names = [d.name for d in machine.devices]
    return [
        None if record is None else nvlink_rate(record, names.count(name))
        for record, name in zip(records, names, strict=True)
    ]


_SIMPLE: Final[Mapping[str, Callable[[Request, str], Request]]] = {
    "engine": _engine,
    "model": _model,
    "quant": _quant,
    "on": _on,
    "cap": _cap,
    "link": _link,
}


def _shares(value: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in value.split(","))
    except ValueError:
        shares = ()
    if not shares or not all(0 <= share < float("inf") for share in shares) or not sum(shares) > 0:
        raise UsageError(f"tensor-split={value} is not a list of shares", hint="e.g. tensor-split=2,1")
    return shares


def _number(key: str, value: str, *, least: int) -> int:
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if not least <= number < 2**31:
        raise UsageError(f"{key}={value} is no whole number from {least} on", hint=_HINT)
    return number


def _amount(key: str, value: str, unit: str) -> float:
    try:
        number = float(value.lower().removesuffix(unit).strip())
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise UsageError(f"{key}={value} is no amount", hint=f"e.g. {key}=250{unit}")
    return number
