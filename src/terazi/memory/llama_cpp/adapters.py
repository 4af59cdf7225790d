"""LoRA adapters and control vectors: where their tensors go, and what is drawn besides for them.

Sources, b11434: ``src/llama-adapter.cpp`` (``llama_adapter_lora_init_impl``, ``llama_adapter_cvec::init``) and
``common/common.cpp:common_init_from_params``. Adapters are applied before the first token, and the graph is
reserved anew with them. ``--lora-init-without-apply`` only puts that off: llama-server hands every request the
adapters of its command line.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from terazi.errors import UsageError
from terazi.memory.bill import HOST, BillLine, LineBasis, Memory, Term
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.blocks import trunk_length
from terazi.memory.llama_cpp.buffers import allocation_bytes
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weights import BufferKind, Placement
from terazi.models.spec import ModelSpec, Tensor

LORA, VECTOR = "lora", "control-vector"
#: Buffers whose layout is the CPU's own: an adapter to a weight there goes to plain host memory.
_REPACKED = frozenset({BufferKind.REPACK, BufferKind.AMX})
#: Of several copies of one weight the engine finds the first by the name of its buffer.
_FOUND_FIRST = {HOST: 0}


class Adapter(NamedTuple):
    """One LoRA adapter.

    Args:
        name: of its file, for people.
        pairs: weight that it modifies → its two matrices (``lora_a``, ``lora_b``).
        applied: whether it is part of the graph; one scaled by 0 is loaded only.
    """

    name: str
    pairs: Mapping[str, tuple[Tensor, Tensor]]
    applied: bool


def read_adapters(companions: Sequence[Companion], model: ModelSpec) -> tuple[Adapter, ...]:
    """The LoRA adapters among *companions*.

    Raises:
        UsageError: if one was made for another model; the engine refuses it.
    """
    return tuple(_adapter(c, model) for c in companions if c.part == LORA)


def _adapter(companion: Companion, model: ModelSpec) -> Adapter:
    spec = companion.spec
    if spec.architecture != model.architecture:
        raise _refused(spec, model, f"it is for the architecture {spec.architecture}, not {model.architecture}")
    halves: dict[str, dict[str, Tensor]] = {}
    for tensor in spec.tensors:
        name, _, half = tensor.name.rpartition(".lora_")
        if half in {"a", "b"} and name:
            halves.setdefault(name, {})[half] = tensor
        elif not tensor.name.endswith("_norm.weight"):  # the engine passes over these
            raise _refused(spec, model, f"it holds {tensor.name}, which isn't half of an adapter")
    base = {tensor.name: tensor for tensor in model.tensors}
    if "token_embd.weight" in halves and "output.weight" not in base and companion.scale:
        # the output matrix bears the same name but is multiplied the other way round: the engine aborts
        raise _refused(spec, model, "it changes an embedding that is the output matrix too")
    pairs = {}
    for name, both in halves.items():
        if len(both) < 2:
            raise _refused(spec, model, f"one half for {name} is missing")
        weight = base.get(name)
        if weight is None or not _fits(weight, both["a"], both["b"]):
            raise _refused(spec, model, f"{name} {'does not fit' if weight else 'is no tensor of it'}")
        pairs[name] = (both["a"], both["b"])
    return Adapter(spec.name, pairs, applied=companion.scale != 0)


def _fits(weight: Tensor, a: Tensor, b: Tensor) -> bool:
    w0, w1 = _plane(weight)
    (a0, a1), (b0, b1) = _plane(a), _plane(b)
    if weight.name == "token_embd.weight":
        return w0 == b1 and w1 == a1
    return w0 == a0 and w1 == b1 and a1 == b0


def _plane(tensor: Tensor) -> tuple[int, int]:
    first, second = (*tensor.shape, 1)[:2]
    return first, second


def _refused(spec: ModelSpec, model: ModelSpec, why: str) -> UsageError:
    return UsageError(
        f"The adapter {spec.name} doesn't go with {model.name}: {why}.",
        hint="llama.cpp would not start: give an adapter that was made for this model.",
    )


class Buffered(NamedTuple):
    """One tensor of an adapter in one buffer; ``near`` is the kind of the buffer that its weight lies in."""

    weight: str
    tensor: Tensor
    device: str
    near: BufferKind


def place_adapter(adapter: Adapter, placements: Sequence[Placement]) -> tuple[Buffered, ...]:
    """Each matrix goes where the weight is that it modifies."""
    where: dict[str, Placement] = {}
    for placement in sorted(placements, key=lambda p: _FOUND_FIRST.get(p.device, 1)):
        where.setdefault(placement.tensor.name, placement)
    placed = []
    for name in sorted(adapter.pairs):
        home = where.get(name)
        if home is None:
            continue  # of a block that isn't loaded
        placed += [Buffered(name, tensor, home.device, home.kind) for tensor in adapter.pairs[name]]
    return tuple(placed)


def adapter_lines(
    adapters: Sequence[Adapter], placements: Sequence[Placement], resolved: Resolved
) -> Iterator[BillLine]:
    """The buffers of LoRA adapters, one line for each device and adapter."""
    by_id = {device.id: device for device in resolved.devices}
    for adapter in adapters:
        sizes: dict[tuple[str, bool], int] = {}
        for placed in place_adapter(adapter, placements):
            device = by_id.get(placed.device)
            key = (placed.device, placed.near in _REPACKED)
            size = allocation_bytes(device, placed.tensor.dtype, placed.tensor.shape, placed.tensor.n_bytes)
            sizes[key] = sizes.get(key, 0) + size
        for (where, repacked), size in sizes.items():
            yield BillLine(
                term=Term.WEIGHTS,
                device=where,
                bytes=size,
                formula="weights.adapter",
                basis=LineBasis.EXACT,
                memory=Memory.ANONYMOUS if where == HOST else Memory.DEVICE,
                note=f"LoRA {adapter.name}{', beside repacked weights' if repacked else ''}"
                + ("" if adapter.applied else ", not applied"),
                part=LORA,
            )


class Vector(NamedTuple):
    """A control vector (several files add up to one).

    Args:
        lines: of the bill. Each block but the first gets a row on its device, whatever blocks the files name.
        steered: the blocks behind which it is added.
        reasons: what to say about it.
    """

    lines: tuple[BillLine, ...] = ()
    steered: range = range(0)
    reasons: tuple[str, ...] = ()


def read_vector(
    companions: Sequence[Companion], model: ModelSpec, settings: LlamaCppSettings, resolved: Resolved
) -> Vector:
    """The control vector that *companions* make together."""
    widths = {t.shape[0] for c in companions if c.part == VECTOR for t in c.spec.tensors}
    if not widths:
        return Vector()
    if widths != {model.embedding_length}:
        text = ", ".join(str(width) for width in sorted(widths))
        wrong = f"The control vector has rows of {text}, the model of {model.embedding_length}: it is left out."
        return Vector(reasons=(wrong,))
    blocks = trunk_length(model)
    by_id = {device.id: device for device in resolved.devices}
    sizes: dict[str, int] = {}
    row = 4 * model.embedding_length
    for block in range(1, blocks):
        where = resolved.layer_devices[block]
        size = allocation_bytes(by_id.get(where), "f32", (model.embedding_length,), row)
        sizes[where] = sizes.get(where, 0) + size
    lines = tuple(
        BillLine(
            term=Term.WEIGHTS,
            device=where,
            bytes=size,
            formula="weights.vector",
            basis=LineBasis.EXACT,
            memory=Memory.ANONYMOUS if where == HOST else Memory.DEVICE,
            note="a row for each block but the first",
            part=VECTOR,
        )
        for where, size in sizes.items()
    )
    asked_first, asked_last = settings.vector_range
    first, last = asked_first if asked_first > 0 else 1, asked_last if asked_last > 0 else blocks
    return Vector(lines, range(max(1, first), min(last + 1, blocks)))
