"""The bill's lines for a multimodal projector: weights, the graph that is reserved at start, the largest image.

Sources, b11434: ``tools/mtmd/clip.cpp`` (``clip_ctx``, ``load_tensors``, ``warmup``, ``reserve_compute_meta``),
``common/arg.cpp`` (which device), ``tools/server/server-context.cpp:load_model``.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from terazi.errors import UsageError
from terazi.hardware.machine import Device
from terazi.memory.bill import HOST, BillLine, LineBasis, Memory, Term
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.buffers import CUDA_LIKE, allocation_bytes, backend_of
from terazi.memory.llama_cpp.compute import sizes_on
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.layers import find_device
from terazi.memory.llama_cpp.projector import Encoder, encoders
from terazi.memory.llama_cpp.projector_bound import encoder_bound_bytes
from terazi.memory.llama_cpp.projector_tensors import loaded_tensors
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.scheduler import Scheduler
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.tower import Picture, Tower
from terazi.memory.llama_cpp.towers import DRAWINGS
from terazi.models.spec import ModelSpec, Tensor

PART = "mmproj"
#: Integrated devices of these backends come after all others (``GGML_BACKEND_DEVICE_TYPE_IGPU``).
_INTEGRATED = frozenset({"cuda", "rocm", "vulkan", "opencl"})
#: Head widths that CUDA's fused attention takes (``ggml_cuda_get_best_fattn_kernel``).
_CUDA_HEADS = frozenset({40, 64, 72, 80, 96, 112, 128, 256})
#: Image tokens that are encoded at once unless the command says otherwise (``mtmd_batch_max_tokens``).
_BATCH_TOKENS = 1024


class ProjectorLines(NamedTuple):
    """What a projector adds to a bill."""

    lines: tuple[BillLine, ...]
    growth: tuple[BillLine, ...]
    reasons: tuple[str, ...]


def projector_device(settings: LlamaCppSettings, devices: Sequence[Device]) -> Device | None:
    """Where the whole projector goes: one device, whatever the layers' split is; None is the host.

    ``--mmproj-device``, else the first of ``--device``, else the first card of this host, else the first RPC
    server, else an integrated GPU. ``-sm none -mg 1`` and ``-ts`` don't move it.

    Raises:
        UsageError: for a device that isn't there.
    """
    if not settings.mmproj_offload:
        return None
    named = settings.mmproj_device or (settings.devices[0] if settings.devices else "")
    if named == "none":
        return None
    if named:
        return find_device(named, devices)
    ranked = sorted(devices, key=_rank)
    return ranked[0] if ranked else None


def _rank(device: Device) -> int:
    backend = backend_of(device)
    if backend == "rpc":
        return 1
    return 2 if device.unified_memory and backend in _INTEGRATED else 0


def weigh_projector(
    companion: Companion,
    model: ModelSpec,
    settings: LlamaCppSettings,
    resolved: Resolved,
    devices: tuple[Device, ...],
) -> ProjectorLines:
    """The lines of *companion* beside *model*.

    Args:
        companion: the projector.
        model: the text model.
        settings, resolved: of the command.
        devices: all that the engine sees.

    Raises:
        UsageError: if the projector was made for another model, or its device isn't there.
        ModelFileError: if its file makes no sense.
    """
    device = projector_device(settings, devices)
    lines: list[BillLine] = []
    growth: list[BillLine] = []
    reasons: list[str] = []
    for encoder in encoders(companion.spec, settings, resolved.n_ubatch):
        tensors = loaded_tensors(encoder, companion.spec.tensors)
        if tensors is None:
            tensors = _all_of(encoder, companion.spec)
            reasons.append(
                f"What projectors of type {encoder.kind!r} load isn't known here: all of their file is counted."
            )
        lines.append(_weights(encoder, tensors, device, known=encoder.kind in DRAWINGS or not reasons))
        if encoder.modality == "gen":
            continue
        found, later = _compute(encoder, tensors, model, settings, device)
        if encoder.kind not in DRAWINGS:
            reasons.append(
                f"The graph of projectors of type {encoder.kind!r} isn't known here: a generous buffer is counted."
            )
        if settings.warmup:
            lines += found
        else:
            growth += found
        growth += later
    if device is not None and device.id not in {d.id for d in resolved.devices}:
        lines += _context(device)
    return ProjectorLines(tuple(lines), tuple(growth), tuple(dict.fromkeys(reasons)))


def _weights(encoder: Encoder, tensors: tuple[Tensor, ...], device: Device | None, *, known: bool) -> BillLine:
    return BillLine(
        term=Term.WEIGHTS,
        device=device.id if device else HOST,
        bytes=sum(allocation_bytes(device, t.dtype, t.shape, t.n_bytes) for t in tensors),
        formula="weights.projector",
        basis=LineBasis.EXACT if known else LineBasis.UPPER_BOUND,
        memory=Memory.DEVICE if device else Memory.ANONYMOUS,
        note=f"{encoder.modality} encoder and projector ({encoder.kind})",
        part=PART,
    )


def _all_of(encoder: Encoder, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Every tensor of the file that isn't plainly another encoder's."""
    sounds = ("a.", "mm.a.")
    both = spec.metadata.get("clip.has_vision_encoder") is True and any(
        spec.metadata.get(f"clip.has_{name}_encoder") is True for name in ("audio", "gen_audio")
    )
    if not both:
        return spec.tensors
    return tuple(t for t in spec.tensors if t.name.startswith(sounds) == (encoder.modality != "vision"))


def _memory(where: str) -> Memory:
    return Memory.ANONYMOUS if where == HOST else Memory.DEVICE


def _context(device: Device) -> Iterator[BillLine]:
    if backend_of(device) in CUDA_LIKE and device.context_bytes.value:
        yield BillLine(
            term=Term.OVERHEAD,
            device=device.id,
            bytes=round(device.context_bytes.value),
            formula="driver-context",
            basis=LineBasis.CATALOGUE,
            memory=Memory.DEVICE,
            note="for the projector alone: the model's layers are elsewhere",
            part=PART,
        )


def _compute(
    encoder: Encoder,
    tensors: tuple[Tensor, ...],
    model: ModelSpec,
    settings: LlamaCppSettings,
    device: Device | None,
) -> tuple[list[BillLine], list[BillLine]]:
    """What is reserved at start, and what the largest image adds."""
    first = Picture(*encoder.warmup)
    at_start = _reserved(encoder, tensors, first, settings, device, model=model)
    sizes = dict(at_start)
    for picture in _later(encoder, settings):
        for where, size in _reserved(encoder, tensors, picture, settings, device).items():
            sizes[where] = max(sizes.get(where, 0), size)
    what = "image" if encoder.modality == "vision" else "sound"
    known = encoder.kind in DRAWINGS
    basis = LineBasis.UPPER_BOUND if not known else LineBasis.MODELLED if device else LineBasis.EXACT
    size_text = f"{first.width} x {first.height} pixels" if what == "image" else f"{first.width} frames"
    lines = [
        BillLine(
            term=Term.COMPUTE,
            device=where,
            bytes=size,
            formula="compute.encoder" if known else "compute.encoder-bound",
            basis=basis,
            memory=_memory(where),
            note=f"graph of an {what} of {size_text}" if what == "image" else f"graph of a {what} of {size_text}",
            part=PART,
        )
        for where, size in at_start.items()
    ]
    growth = [
        BillLine(
            term=Term.COMPUTE,
            device=where,
            bytes=size - at_start.get(where, 0),
            formula="compute.large-image",
            basis=LineBasis.UPPER_BOUND,
            memory=_memory(where),
            note=f"on top for the largest image, {encoder.largest[0]} x {encoder.largest[1]} pixels, or several",
            part=PART,
        )
        for where, size in sizes.items()
        if size > at_start.get(where, 0)
    ]
    return lines, growth


def _later(encoder: Encoder, settings: LlamaCppSettings) -> Iterator[Picture]:
    """Pictures that may need more than the one that is reserved for."""
    if encoder.modality != "vision" or encoder.kind not in DRAWINGS:
        return
    yield Picture(*encoder.largest)
    if encoder.kind.startswith("qwen"):
        yield Picture(*encoder.largest, pictures=2)  # two frames of a film
    tokens = (encoder.warmup[0] // encoder.patch // encoder.merge) ** 2
    tiles = (settings.mtmd_batch_tokens or _BATCH_TOKENS) // max(1, tokens)
    if encoder.kind == "internvl" and tiles > 1 and settings.tool == "llama-server":
        yield Picture(*encoder.warmup, pictures=tiles)


def _reserved(
    encoder: Encoder,
    tensors: tuple[Tensor, ...],
    picture: Picture,
    settings: LlamaCppSettings,
    device: Device | None,
    *,
    model: ModelSpec | None = None,
) -> dict[str, int]:
    """Bytes of the compute buffers of the device and the host. With a *model*, its width is checked."""
    draw = DRAWINGS.get(encoder.kind)
    where = [device.id, HOST] if device else [HOST]
    if draw is None:
        return encoder_bound_bytes(encoder, tensors, picture, where)
    fusable = not (backend_of(device) in CUDA_LIKE and encoder.head_width not in _CUDA_HEADS)
    tried = [settings.flash_attn == "on"]
    if settings.flash_attn == "auto":
        # ``warmup``: fused attention is tried first; where the device lacks it the buffers of both attempts stay
        tried = [True] if fusable else [True, False]
    sizes = [0] * len(where)
    for fused in tried:
        tower = Tower(encoder, tensors, picture, flash_attn=fused)
        root = draw(tower)
        if model is not None:
            _check_width(root, model, encoder)
        tower.graph.expand(root)
        lacks = _lacking(fusable=fusable) if backend_of(device) in CUDA_LIKE else None
        scheduler = Scheduler(tower.graph, backends=len(where), lacks=lacks)
        found = scheduler.reserve(sizes_on((device,) if device else ()))
        sizes = [max(pair) for pair in zip(sizes, found, strict=True)]
    return {name: size for name, size in zip(where, sizes, strict=True) if size or name == where[0]}


def _lacking(*, fusable: bool) -> Callable[[Node], bool]:
    """What CUDA's ``supports_op`` refuses: attention of odd widths, unfolding for a kernel that isn't contiguous.

    The kernel of a patch merger is such a dummy.
    """

    def lacks(node: Node) -> bool:
        if node.op == "flash_attn":
            return not fusable
        return node.op == "im2col" and any(not src.contiguous for src in node.srcs)

    return lacks


def _check_width(root: Node, model: ModelSpec, encoder: Encoder) -> None:
    """``mtmd_context``: embeddings must be as wide as the text model takes them."""
    deep = model.metadata.get(f"{model.architecture}.n_deepstack_layers", 0)
    wanted = model.embedding_length * (1 + (deep if isinstance(deep, int) else 0))
    if root.ne[0] != wanted:
        raise UsageError(
            f"This projector makes embeddings of {root.ne[0]} values for its {encoder.modality} part; {model.name} "
            f"takes {wanted}, so llama.cpp would not start.",
            hint="Give the projector that was made for this model with --mmproj.",
        )
