"""The KV cache: which tensors on which device, to the byte.

Sources, b11434: ``src/llama-kv-cache.cpp:llama_kv_cache`` (tensors), ``src/llama-kv-cache-iswa.cpp`` (cells of the
window cache), ``src/llama-model.cpp:create_memory``.
"""

from typing import NamedTuple

from terazi.hardware.machine import Device
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.blocks import attention_blocks, trunk_length
from terazi.memory.llama_cpp.buffers import allocation_bytes
from terazi.memory.llama_cpp.cache_rules import (
    WITHOUT_CACHE,
    blocks_with_kv,
    head_widths,
    index_width,
    stores_latent,
    window_layers,
    window_length,
)
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.resolve import CELLS, Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.ggml_types import row_bytes
from terazi.models.spec import ModelSpec
from terazi.units import pad


class CacheLayer(NamedTuple):
    """The K and V of one block. ``cells`` is a stream's length; widths are in elements, of all heads and of one.

    ``v_width`` is 0 where V is a part of K. A ``shared`` block reads another's cache: it takes no bytes itself, and
    ``device`` is where that one lies. ``k_bytes`` includes the keys of an indexer, ``index_width`` elements a row.
    """

    block: int
    device: str
    window: bool
    cells: int
    k_width: int
    v_width: int
    k_bytes: int
    v_bytes: int
    k_head: int
    v_head: int
    shared: bool = False
    index_width: int = 0


class CacheGroup(NamedTuple):
    """The caches of one kind on one device, those that take memory of their own. ``cells`` is a stream's length."""

    device: str
    window: bool
    layers: int
    cells: int
    n_bytes: int


def window_cells(length: int, settings: LlamaCppSettings, resolved: Resolved) -> int:
    """Cells of a sliding-window cache, per stream: the window of each slot that shares it, and one micro-batch."""
    if settings.swa_full:
        return resolved.n_ctx_seq
    window = length * (resolved.n_seq_max if resolved.unified else 1)
    return pad(min(resolved.n_ctx_seq, window + resolved.n_ubatch), CELLS)


def widest_v(spec: ModelSpec, windows: tuple[bool, ...]) -> int:
    """``llama_hparams::n_embd_v_gqa_max``, in elements."""
    return max(
        (heads * head_widths(spec, window=w)[1] for heads, w in zip(spec.head_count_kv, windows, strict=True)),
        default=0,
    )


def cache_layers(
    spec: ModelSpec, family: Family | None, settings: LlamaCppSettings, resolved: Resolved
) -> tuple[CacheLayer, ...]:
    """One entry for each block that attends to a cache. Without a *family*, all keep K and V at full length.

    In the context of a draft head these are the blocks behind the model's own, which never use an indexer.
    """
    if spec.architecture in WITHOUT_CACHE:
        return ()
    if family and family.drawing == "deepseek4" and not resolved.draft_head:
        return _compressed_layers(spec, family, settings, resolved)
    windows = window_layers(spec, family) if family else (False,) * spec.block_count
    short = window_cells(window_length(spec, family), settings, resolved) if family and any(windows) else 0
    latent = family is not None and stores_latent(spec, family)
    # without flash attention V is stored transposed, every layer as wide as the widest
    common_v = 0 if latent or resolved.flash_attn else widest_v(spec, windows)
    owners = blocks_with_kv(spec, family) if family else spec.block_count
    by_id = {device.id: device for device in resolved.devices}
    attends = attention_blocks(spec, family.recurrent) if family else (True,) * spec.block_count
    spare = family is not None and family.sparse == "blocks"
    layers: list[CacheLayer] = []
    for block in range(trunk_length(spec) if resolved.draft_head else 0, spec.block_count):
        heads = spec.head_count_kv[block]
        # DeciLM filters nothing: transposed V is as wide as the widest even where a block has no heads for it
        empty = heads == 0 and not (common_v and family and family.drawing == "deci")
        if empty or not (attends[block] or resolved.draft_head):
            continue
        if block >= owners:
            # the last two blocks with a cache are one of each kind (``layer_reuse_cb`` of ``create_memory``)
            owner = owners - (2 if windows[block] else 1)
            layers.append(layers[owner]._replace(block=block, k_bytes=0, v_bytes=0, shared=True))
            continue
        device = resolved.layer_devices[block] if settings.kv_offload else HOST
        cells = short if windows[block] else resolved.n_ctx_seq
        k_head, v_head = head_widths(spec, window=windows[block])
        k_width = heads * k_head
        v_width = 0 if latent else common_v or heads * v_head
        rows = cells * resolved.n_stream
        index = index_width(spec, family, block) if family and not resolved.draft_head else 0
        layers.append(
            CacheLayer(
                block=block,
                device=device,
                window=windows[block],
                cells=cells,
                k_width=k_width,
                v_width=v_width,
                k_bytes=_cache_bytes(by_id.get(device), settings.type_k, k_width, rows)
                + _cache_bytes(by_id.get(device), settings.type_k, index, rows),
                v_bytes=_cache_bytes(by_id.get(device), settings.type_v, v_width, rows)
                # that indexer's cache has room for values too, of one head, which nobody uses
                + (_cache_bytes(by_id.get(device), settings.type_v, v_head, rows) if spare and index else 0),
                k_head=k_head,
                v_head=v_head,
                index_width=index,
            )
        )
    return tuple(layers)


def _compressed_layers(
    spec: ModelSpec, family: Family, settings: LlamaCppSettings, resolved: Resolved
) -> tuple[CacheLayer, ...]:
    """A window of keys in every block, and keys that stand for several tokens; each slot has its own."""
    from terazi.memory.llama_cpp.compressed_cache import compressors

    apart = resolved._replace(n_stream=resolved.n_seq_max + 1)  # not unified, whatever the command says
    cells = window_cells(window_length(spec, family), settings, apart)
    by_id = {device.id: device for device in resolved.devices}
    layers = []
    for block in range(spec.block_count):  # the draft block too
        device = resolved.layer_devices[block] if settings.kv_offload else HOST
        parts = [(spec.key_length, cells)]
        parts += [(part.width, part.cells(resolved.n_ctx_seq)) for part in compressors(spec, block)]
        k_bytes = sum(
            _cache_bytes(by_id.get(device), settings.type_k, width, length * resolved.n_seq_max)
            for width, length in parts
        )
        layers.append(
            CacheLayer(
                block=block,
                device=device,
                window=True,
                cells=cells,
                k_width=spec.key_length,
                v_width=0,
                k_bytes=k_bytes,
                v_bytes=0,
                k_head=spec.key_length,
                v_head=0,
            )
        )
    return tuple(layers)


def cache_groups(caches: tuple[CacheLayer, ...]) -> tuple[CacheGroup, ...]:
    """The caches by device and kind; shared ones take nothing."""
    groups: dict[tuple[str, bool], list[CacheLayer]] = {}
    for cache in caches:
        if not cache.shared:
            groups.setdefault((cache.device, cache.window), []).append(cache)
    return tuple(
        CacheGroup(device, window, len(group), group[0].cells, sum(c.k_bytes + c.v_bytes for c in group))
        for (device, window), group in groups.items()
    )


def resized_caches(
    caches: tuple[CacheLayer, ...], settings: LlamaCppSettings, resolved: Resolved, window_cells: int
) -> tuple[CacheLayer, ...]:
    """*caches* as ``cache_layers`` gives them, made as long and of such types as *settings* have them.

    Blocks, devices and widths stay: they must be of the same layout, and flash attention on or off as it was.
    """
    by_id = {device.id: device for device in resolved.devices}
    sizes: dict[tuple[str, bool, int, int, int], tuple[int, int]] = {}
    layers = []
    for cache in caches:
        cells = window_cells if cache.window else resolved.n_ctx_seq
        if cache.shared:
            layers.append(cache._replace(cells=cells))
            continue
        key = cache.device, cache.window, cache.k_width, cache.v_width, cache.index_width
        known = sizes.get(key)
        if known is None:
            device, rows = by_id.get(cache.device), cells * resolved.n_stream
            known = sizes[key] = (
                _cache_bytes(device, settings.type_k, cache.k_width, rows)
                + _cache_bytes(device, settings.type_k, cache.index_width, rows),
                _cache_bytes(device, settings.type_v, cache.v_width, rows),
            )
        layers.append(cache._replace(cells=cells, k_bytes=known[0], v_bytes=known[1]))
    return tuple(layers)


class CacheShapes(NamedTuple):
    """The caches of one kind on one device by their widths: (k_width, v_width, index_width, blocks of them)."""

    device: str
    window: bool
    widths: tuple[tuple[int, int, int, int], ...]


def cache_shapes(caches: tuple[CacheLayer, ...]) -> tuple[CacheShapes, ...]:
    """What ``cache_groups`` has to know of *caches*, apart from lengths and types."""
    groups: dict[tuple[str, bool], dict[tuple[int, int, int], int]] = {}
    for cache in caches:
        if not cache.shared:
            counts = groups.setdefault((cache.device, cache.window), {})
            widths = cache.k_width, cache.v_width, cache.index_width
            counts[widths] = counts.get(widths, 0) + 1
    return tuple(
        CacheShapes(device, window, tuple((*widths, count) for widths, count in counts.items()))
        for (device, window), counts in groups.items()
    )


def resized_groups(
    shapes: tuple[CacheShapes, ...], settings: LlamaCppSettings, resolved: Resolved, window_cells: int
) -> tuple[CacheGroup, ...]:
    """``cache_groups`` of ``resized_caches``."""
    by_id = {device.id: device for device in resolved.devices}
    groups = []
    for name, window, widths in shapes:
        device, cells = by_id.get(name), window_cells if window else resolved.n_ctx_seq
        rows = cells * resolved.n_stream
        layers = n_bytes = 0
        for k_width, v_width, index, blocks in widths:
            layers += blocks
            n_bytes += blocks * (
                _cache_bytes(device, settings.type_k, k_width, rows)
                + _cache_bytes(device, settings.type_k, index, rows)
                + _cache_bytes(device, settings.type_v, v_width, rows)
            )
        groups.append(CacheGroup(name, window, layers, cells, n_bytes))
    return tuple(groups)


def _cache_bytes(device: Device | None, kind: str, width: int, rows: int) -> int:
    return allocation_bytes(device, kind, (width, rows), row_bytes(kind, width) * rows) if width else 0
