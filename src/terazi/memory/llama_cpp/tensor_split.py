"""``-sm tensor``: one device made of several, each of which holds a slice of every matrix and of every cache.

Sources, b11434: ``src/llama-model.cpp:llama_meta_device_get_split_state`` (along which dimension a tensor is cut,
and where) and ``ggml/src/ggml-backend-meta.cpp`` (every device gets a compute buffer of the whole graph's size;
what isn't cut, each device holds whole).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import lcm, prod
from typing import Final, NamedTuple

from terazi.errors import UsageError
from terazi.hardware.machine import Device
from terazi.memory.bill import Bill, BillLine, LineBasis, Memory, Term
from terazi.memory.llama_cpp.buffers import CUDA_LIKE, allocation_bytes, backend_of
from terazi.memory.llama_cpp.cache_rules import head_widths, window_layers
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.layers import round_to_float
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weights import Placement
from terazi.models.ggml_types import TYPE_BY_NAME, row_bytes
from terazi.models.spec import ModelSpec, Tensor

#: Rules of their own, which aren't redone here: each device is counted as if it held everything.
_BOUND: Final = frozenset({"deepseek4", "dflash", "hrm_text"})
#: Elements that a slice of a feed-forward matrix is a multiple of.
_FAST: Final = 128
_FEED_FORWARD: Final = re.compile(r"ffn_(up|gate|gate_up|down)(_exps)?")
_TYPES: Final = {name.upper(): kind for name, kind in TYPE_BY_NAME.items()}


class Cut(NamedTuple):
    """How one tensor is cut: along which dimension, in which segments, to multiples of what.

    ``segments`` are (elements, how many segments of that size, the multiple).
    """

    axis: int
    segments: tuple[tuple[int, int, int], ...]
    rotation: int


def is_bound(spec: ModelSpec, family: Family | None) -> bool:
    """Whether the slices of this model aren't known here, so that each device is counted with all of it."""
    return family is None or family.recurrent is not None or spec.architecture in _BOUND


class Cutter:
    """The slices of one model over *count* devices with the given shares (``-ts``)."""

    def __init__(self, spec: ModelSpec, family: Family | None, shares: tuple[float, ...], count: int) -> None:
        self._spec, self._count = spec, count
        self._whole = is_bound(spec, family)
        self._shares = [round_to_float(share) for share in (*shares, *[0.0] * count)[:count]]
        windows = window_layers(spec, family) if family else (False,) * spec.block_count
        self._windows = (*windows, *[False] * spec.block_count)[: spec.block_count]
        # every block's kind counts for itself, so that the remainders don't all fall to one device
        seen: dict[bool, int] = {}
        self._rotations = []
        for window in self._windows:
            self._rotations.append(seen.get(window, 0) % count)
            seen[window] = seen.get(window, 0) + 1
        kept = re.compile(r"(attn_output|ffn_down|ffn_down_exps)\.weight$")
        self._by_name = {t.name: t for t in spec.tensors if t.block is not None and kept.search(t.name)}

    def weight(self, tensor: Tensor, devices: Iterable[Device]) -> list[int]:
        """Bytes of *tensor* on each device.

        Raises:
            UsageError: if its slices are such that the engine would abort.
        """
        cut = None if self._whole else self._cut_of(tensor)
        if cut is None:
            return [allocation_bytes(d, tensor.dtype, tensor.shape, tensor.n_bytes) for d in devices]
        sizes = []
        kind = _TYPES[tensor.dtype.upper()]
        for device, length in zip(devices, self._lengths(cut), strict=True):
            ragged = cut.axis == 0 and length % kind.block_size
            if ragged or (not length and len(tensor.shape) > 2):
                # two assertions of ggml-backend.cpp and ggml-backend-meta.cpp
                raise UsageError(
                    f"llama.cpp would abort: {tensor.name} can't be cut over {self._count} devices.",
                    hint="Use -sm layer, fewer devices, or other shares with -ts.",
                )
            shape = tuple(length if axis == cut.axis else n for axis, n in enumerate(tensor.shape))
            payload = row_bytes(kind.name, shape[0]) * prod(shape[1:])
            sizes.append(allocation_bytes(device, tensor.dtype, shape, payload) if length else 0)
        return sizes

    def cache(self, cache: CacheLayer, kinds: tuple[str, str], rows: int, devices: tuple[Device, ...]) -> list[int]:
        """Bytes of the K and V of one block on each device."""
        if self._whole:
            return [cache.k_bytes + cache.v_bytes] * self._count
        _, kv, v, _ = self._head_steps(cache.block)
        rotation = self._rotations[cache.block]
        sizes = [0] * self._count
        for kind, width, step in ((kinds[0], cache.k_width, kv), (kinds[1], cache.v_width, v)):
            lengths = self._lengths(Cut(0, ((width, 1, step),), rotation)) if width else ()
            for index, length in enumerate(lengths):
                payload = row_bytes(kind, length) * rows
                sizes[index] += allocation_bytes(devices[index], kind, (length, rows), payload) if length else 0
        return sizes

    def _lengths(self, cut: Cut) -> list[int]:
        """Elements along the cut dimension on each device: shares rounded down, the rest to the last in turn."""
        count, lengths = self._count, [0] * self._count
        turned = [self._shares[(index + cut.rotation) % count] for index in range(count)]
        sums = [0.0]
        for share in turned:
            sums.append(round_to_float(sums[-1] + share))
        for elements, times, step in cut.segments:
            low = 0
            for index in range(count):
                high = elements
                if index < count - 1:
                    if sums[-1]:
                        high = int(round_to_float(round_to_float(elements * sums[index + 1]) / sums[-1]))
                    else:
                        high = elements * (index + 1) // count
                    high -= high % step
                lengths[(index + cut.rotation) % count] += (high - low) * times
                low = high
        return lengths

    def _head_steps(self, block: int) -> tuple[int, int, int, int]:
        """Multiples to which Q, K and V are cut, and the heads of Q in one (``get_split_granularity``)."""
        spec = self._spec
        k, v = head_widths(spec, window=self._windows[block])
        group = spec.head_count[block] // max(1, spec.head_count_kv[block])
        wide = group * k
        fast = _block_size(self._by_name.get(f"blk.{block}.attn_output.weight"))
        while fast < _FAST and fast * self._count < wide:
            fast *= 2
        q = lcm(wide, fast)
        kv = q // group
        return q, kv, kv // k * v, q // k

    def _cut_of(self, tensor: Tensor) -> Cut | None:
        """None: every device holds it whole."""
        spec = self._spec
        if tensor.block is None:
            axis = {"output.weight": 1, "output.bias": 0}.get(tensor.name)
            rotation = spec.block_count % self._count
            return None if axis is None else Cut(axis, ((tensor.shape[axis], 1, 1),), rotation)
        name, _, suffix = tensor.name.split(".", 2)[2].rpartition(".")
        if tensor.block >= len(self._rotations):
            return None
        rotation = self._rotations[tensor.block]
        axis = 0 if suffix == "bias" or len(tensor.shape) < 2 else 1
        if name.startswith("attn"):
            segments = self._attention_segments(name, suffix, tensor, axis)
            if name == "attn_output":
                axis = 0
        else:
            segments = self._feed_forward_segments(name, suffix, tensor, axis)
            if name in {"ffn_down", "ffn_down_exps"}:
                axis = 0
        return Cut(axis, segments, rotation) if segments else None

    def _attention_segments(
        self, name: str, suffix: str, tensor: Tensor, axis: int
    ) -> tuple[tuple[int, int, int], ...]:
        block = tensor.block or 0
        q, kv, v, heads = self._head_steps(block)
        length = tensor.shape[axis]
        if name == "attn_output":
            step = heads * head_widths(self._spec, window=self._windows[block])[1]
            return ((tensor.shape[0], 1, step),) if suffix == "weight" else ()
        if name == "attn_qkv":
            k_head, v_head = head_widths(self._spec, window=self._windows[block])
            of_q = self._spec.head_count[block] * k_head
            of_k, of_v = (self._spec.head_count_kv[block] * width for width in (k_head, v_head))
            parts = ((of_k, 2, kv),) if of_k == of_v else ((of_k, 1, kv), (of_v, 1, v))
            return ((of_q, 1, q), *parts)
        if name in {"attn_q_norm", "attn_k_norm"}:
            return ((length, 1, 1),) if len(tensor.shape) > 1 and suffix == "weight" else ()
        gate = heads if length == self._spec.head_count[block] else q
        steps = {"attn_q": q, "attn_k": kv, "attn_v": v, "attn_sinks": heads, "attn_gate": gate}
        return ((length, 1, steps[name]),) if name in steps else ()

    def _feed_forward_segments(
        self, name: str, suffix: str, tensor: Tensor, axis: int
    ) -> tuple[tuple[int, int, int], ...]:
        if not _FEED_FORWARD.fullmatch(name):
            return ()
        down = self._by_name.get(f"blk.{tensor.block}.ffn_down.weight") or self._by_name.get(
            f"blk.{tensor.block}.ffn_down_exps.weight"
        )
        step = lcm(_block_size(down), _FAST)
        if name in {"ffn_down", "ffn_down_exps"}:
            # a bias is added once
            return ((tensor.shape[0], 1, step),) if suffix == "weight" else ()
        length = tensor.shape[axis]
        fused = name.startswith("ffn_gate_up") or length == 2 * self._spec.feed_forward_length[tensor.block or 0]
        return ((length // 2, 2, step),) if fused else ((length, 1, step),)


def _block_size(tensor: Tensor | None) -> int:
    return _TYPES[tensor.dtype.upper()].block_size if tensor else 1


def over_devices(
    bill: Bill,
    spec: ModelSpec,
    settings: LlamaCppSettings,
    resolved: Resolved,
    *,
    family: Family | None,
    caches: tuple[CacheLayer, ...],
    placements: tuple[Placement, ...],
) -> Bill:
    """*bill* of one device, which stands for all of ``resolved.cut``, with the share of each of them."""
    one, devices = resolved.devices[0].id, resolved.cut
    cutter = Cutter(spec, family, settings.tensor_split, len(devices))
    weights = _sums(
        [cutter.weight(placement.tensor, devices) for placement in placements if placement.device == one], devices
    )
    kinds = (settings.type_k, settings.type_v)
    shared: dict[str, list[int]] = {}
    for formula in ("kv.full", "kv.window"):
        mine = [c for c in caches if c.device == one and not c.shared and c.window == (formula == "kv.window")]
        rows = [cutter.cache(c, kinds, c.cells * resolved.n_stream, devices) for c in mine]
        shared[formula] = _sums(rows, devices)
    basis = LineBasis.UPPER_BOUND if is_bound(spec, family) else LineBasis.EXACT

    def spread(lines: Iterable[BillLine]) -> Iterator[BillLine]:
        for line in lines:
            sizes = weights if line.formula == "weights.device" else shared.get(line.formula)
            if line.device != one or line.formula == "driver-context":
                yield line
                continue
            for index, device in enumerate(devices):
                size = line.bytes if sizes is None else sizes[index]
                sure = line.basis if sizes is None else basis
                yield replace(line, device=device.id, bytes=size, basis=sure)

    contexts = (
        replace(line, device=device.id, bytes=round(device.context_bytes.value))
        for line in bill.lines
        if line.formula == "driver-context"
        for device in devices[1:]
        if backend_of(device) in CUDA_LIKE and device.context_bytes.value
    )
    return replace(
        bill,
        lines=(*spread(bill.lines), *contexts),
        loading=tuple(spread(bill.loading)),
        process=tuple(spread(bill.process)),
        growth=(*spread(bill.growth), *_reductions(spec, resolved)),
    )


def _sums(rows: list[list[int]], devices: tuple[Device, ...]) -> list[int]:
    return [sum(row[index] for row in rows) for index in range(len(devices))]


def _reductions(spec: ModelSpec, resolved: Resolved) -> Iterator[BillLine]:
    """Buffers in which the devices' partial sums meet (``ggml_backend_meta_graph_compute``)."""
    steps = (len(resolved.cut) - 1).bit_length()
    for device in resolved.cut if steps else ():
        yield BillLine(
            term=Term.OVERHEAD,
            device=device.id,
            bytes=steps * 4 * spec.embedding_length * resolved.n_tokens,
            formula="reduction",
            basis=LineBasis.MODELLED,
            memory=Memory.DEVICE,
            note="partial sums of the other devices",
        )
