"""The weights: which buffer each tensor goes to.

Sources, b11434: ``src/llama-model-loader.cpp:create_tensor`` (choice of the buffer, duplicates, overrides),
``src/llama-model.cpp:make_cpu_buft_list`` and ``load_tensors`` (order of preference, mapping).
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from terazi.errors import UsageError
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.blocks import kept_of_drafts, loaded_blocks
from terazi.memory.llama_cpp.buffers import PINNED_HOST, backend_of
from terazi.memory.llama_cpp.cache_rules import window_layers
from terazi.memory.llama_cpp.families import family_of
from terazi.memory.llama_cpp.repack import amx_bytes, is_repacked, multiplies
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec, Tensor

#: ``common/common.h:LLM_FFN_EXPS_REGEX``, b11434, and the same for one block.
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_EXPERTS_OF = r"blk\.{}\.ffn_(up|down|gate|gate_up)_(ch|)exps"
#: Tensors that are read once for each token, from host memory.
_INPUT = ("masked_embd", "token_embd", "per_layer_token_embd", "position_embd", "token_types")
#: Tensors without a block number that belong to the first block (in LFM2 ``token_embd_norm`` is the output norm).
_FIRST_BLOCK = ("nextn.pre_projection", "token_embd_norm", "per_layer_model_proj", "per_layer_proj_norm")
#: These create the output matrix before the embedding, so that a tied one is not shared but made twice.
_OUTPUT_FIRST = frozenset({"gemma3n", "gemma4"})
#: Encoders have no output matrix; BitNet multiplies with the embedding where it is; drafts that lack one use the
#: model's.
_NO_OUTPUT = frozenset(
    {
        "bert",
        "bitnet",
        "dflash",
        "eagle3",
        "eurobert",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
    }
)
#: Their per-layer embedding may be left in the file and read row by row (``TENSOR_READ_LAZY``), with
#: ``--lazy-mode auto`` from more than this size on (``llama_model_loader::lazy_read::add``).
_READ_LAZILY = frozenset({"gemma4", "qwen4exp"})
_LAZY_BYTES = 4 << 30
#: Types of which the CUDA and Vulkan backends look up rows, so that the engine keeps such tables in pinned memory.
_ROW_TYPES = frozenset(
    (
        *("F32", "F16", "BF16", "Q1_0", "Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
        *("IQ1_S", "IQ1_M", "IQ4_XS"),
    )
)
#: Tensors without a block number that every block refers to, so that every device gets a copy.
_SHARED = ("rope_freqs", "rope_factors_long", "rope_factors_short")


#: What a borrowed tensor's name begins with where the borrower has one of that name.
LENT = "target."


class BufferKind(StrEnum):
    """What kind of buffer holds a tensor. The first is the CPU's plain one, mapped from the file where possible."""

    PLAIN = "plain"
    DEVICE = "device"
    REPACK = "repack"
    AMX = "amx"
    PINNED = "pinned"
    LAZY = "lazy"


class Placement(NamedTuple):
    """One tensor in one buffer. A tied embedding or a shared table has several."""

    tensor: Tensor
    device: str
    kind: BufferKind


def place_tensors(
    spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved, isa: frozenset[str]
) -> tuple[Placement, ...]:
    """Every tensor that the engine creates, duplicates included, with its buffer."""
    chooser = _Chooser(settings, resolved, isa)
    placements: dict[tuple[str, str, BufferKind], Placement] = {}
    twice = []
    loaded = spec.block_count if settings.draft_mtp else loaded_blocks(spec)
    for tensor in spec.tensors:
        draft = tensor.block is not None and tensor.block >= loaded
        if draft and not kept_of_drafts(spec.architecture, tensor.name):
            continue
        for device, product in _uses(tensor, spec, resolved):
            if _is_lazy(spec, tensor, settings, resolved):
                where, kind = HOST, BufferKind.LAZY
            else:
                where, kind = chooser.choose(tensor, device, product=product)
            if (tensor.name, where, kind) in placements and spec.architecture in _OUTPUT_FIRST:
                twice.append(placements[tensor.name, where, kind])
            placements[tensor.name, where, kind] = Placement(tensor, where, kind)
    return (*placements.values(), *twice)


def borrowed_placements(spec: ModelSpec, lender: tuple[Placement, ...]) -> tuple[Placement, ...]:
    """The embedding and the output matrix of *lender*'s model, as far as a draft *spec* has none of its own.

    Gemma 4's assistants have their own and look tokens up in the model's all the same: that one is renamed.
    """
    own = {tensor.name for tensor in spec.tensors}
    embeddings = [placement for placement in lender if placement.tensor.name == "token_embd.weight"]
    if spec.architecture == "gemma4-assistant":
        return tuple(p._replace(tensor=replace(p.tensor, name=LENT + p.tensor.name)) for p in embeddings[:1])
    outputs = [placement for placement in lender if placement.tensor.name == "output.weight"] or embeddings[-1:]
    return (
        *(embeddings[:1] if "token_embd.weight" not in own else ()),
        *(outputs if "output.weight" not in own else ()),
    )


def _uses(tensor: Tensor, spec: ModelSpec, resolved: Resolved) -> Iterator[tuple[str, bool]]:
    """Where *tensor* is used, and whether as the weight of a matrix product there."""
    output = resolved.layer_devices[-1]
    if tensor.block is not None:
        yield resolved.layer_devices[min(tensor.block, len(resolved.layer_devices) - 1)], multiplies(tensor)
    elif tensor.name.startswith(_SHARED):
        for device in dict.fromkeys(_with_factors(spec, resolved.layer_devices)):
            yield device, False
    elif tensor.name.startswith(_FIRST_BLOCK) and not spec.architecture.startswith("lfm2"):
        yield resolved.layer_devices[0], multiplies(tensor)
    elif tensor.name.startswith(_INPUT) and not tensor.name.startswith(_FIRST_BLOCK):
        yield HOST, False
        tied = spec.architecture not in _NO_OUTPUT and not any(t.name == "output.weight" for t in spec.tensors)
        if tensor.name == "token_embd.weight" and tied:
            # the engine creates it a second time as the output matrix, where that one belongs
            yield output, True
    else:
        yield output, multiplies(tensor)


def _is_lazy(spec: ModelSpec, tensor: Tensor, settings: LlamaCppSettings, resolved: Resolved) -> bool:
    """Whether *tensor* is mapped on its own whatever the load mode says; llama-fit-params maps nothing."""
    if tensor.name != "per_layer_token_embd.weight" or spec.architecture not in _READ_LAZILY:
        return False
    if settings.tool == "llama-fit-params" or settings.lazy_mode == "off":
        return False
    return settings.lazy_mode == "on" or (tensor.n_bytes > _LAZY_BYTES and not _shares_memory(resolved))


def _with_factors(spec: ModelSpec, layer_devices: tuple[str, ...]) -> tuple[str, ...]:
    """The devices of the blocks that use shared tables: all, or those that see everything (``gemma4.cpp``)."""
    family = family_of(spec)
    if family is None or spec.architecture not in {"gemma4", "gemma4-assistant"}:
        return layer_devices[:-1]
    windows = window_layers(spec, family)
    return tuple(device for device, window in zip(layer_devices, windows, strict=False) if not window)


class _Chooser:
    """Picks the first buffer type of the engine's list that can hold a tensor for its use."""

    def __init__(self, settings: LlamaCppSettings, resolved: Resolved, isa: frozenset[str]) -> None:
        self._isa = isa
        self._repack = settings.repack
        self._devices = resolved.devices
        self._endpoints = settings.rpc
        self._pinned = not settings.no_host and any(backend_of(d) in PINNED_HOST for d in resolved.devices)
        self._mmap = uses_mmap(settings, resolved)
        overrides = [(re.compile(pattern), target) for pattern, target in settings.override_tensor]
        if settings.cpu_moe:
            overrides.append((re.compile(_EXPERTS), "CPU"))
        overrides += [(re.compile(_EXPERTS_OF.format(block)), "CPU") for block in range(settings.n_cpu_moe)]
        self._overrides = overrides

    def choose(self, tensor: Tensor, device: str, *, product: bool) -> tuple[str, BufferKind]:
        for pattern, target in self._overrides:
            if pattern.search(tensor.name):
                return self._override(tensor, target, product=product)
        if device != HOST:
            return device, BufferKind.DEVICE
        return HOST, self._host_kind(tensor, product=product)

    def _override(self, tensor: Tensor, target: str, *, product: bool) -> tuple[str, BufferKind]:
        if target == "CPU":
            return HOST, self._host_kind(tensor, product=product)
        if target.endswith("_Host"):
            return HOST, BufferKind.PINNED
        device, _, endpoint = target.removesuffix("]").partition("[")
        if endpoint in self._endpoints:
            # every server calls its first device RPC0: the endpoint tells them apart
            device = f"RPC{self._endpoints.index(endpoint)}"
        if device not in {known.id for known in self._devices}:
            raise UsageError(
                f"There is no buffer type {target!r} on this machine.",
                hint=f"Use CPU, or one of: {', '.join(known.id for known in self._devices) or 'no device here'}.",
            )
        return device, BufferKind.DEVICE

    def _host_kind(self, tensor: Tensor, *, product: bool) -> BufferKind:
        if self._pinned and (product or _row_kernel(tensor)):
            return BufferKind.PLAIN if self._mmap else BufferKind.PINNED
        if self._repack and product:
            if amx_bytes(tensor, self._isa) is not None:
                return BufferKind.AMX
            if is_repacked(tensor, self._isa):
                return BufferKind.REPACK
        return BufferKind.PLAIN


def _row_kernel(tensor: Tensor) -> bool:
    """Whether a card could look up rows in *tensor*, or what else is done with a small weight (``supports_op``)."""
    if not tensor.name.startswith(_INPUT):
        return True
    kind = tensor.dtype.upper()
    return kind in _ROW_TYPES or (kind in {"IQ4_NL", "MXFP4"} and tensor.shape[0] % 256 == 0)


def uses_mmap(settings: LlamaCppSettings, resolved: Resolved) -> bool:
    """Whether the file is mapped. llama-fit-params never maps; an integrated GPU turns ``auto`` off."""
    if not settings.mmap or settings.tool == "llama-fit-params":
        return False
    return settings.load_mode != "auto" or not _shares_memory(resolved)


def _shares_memory(resolved: Resolved) -> bool:
    """Whether an integrated GPU is there that can't work on a mapped file."""
    return any(d.unified_memory and backend_of(d) in {"cuda", "rocm", "vulkan", "opencl"} for d in resolved.devices)
