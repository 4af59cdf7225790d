"""What llama.cpp takes later, under use: ceilings, each with its own formula.

Sources, b11434: ``tools/server/server-task.cpp:server_prompt_cache`` (the prompt cache makes room before it
allocates), ``server-context.cpp:create_checkpoint`` and ``llama-kv-cache.cpp:state_write`` (a checkpoint holds
what can't be rolled back: the cells of a window that aren't masked, and recurrent states), ``work.py``. A slot that
is saved to a file or restored takes one layer's rows for a moment, which is in no line.
"""

from collections.abc import Iterator

from terazi.memory.bill import HOST, BillLine, LineBasis, Memory, Term
from terazi.memory.llama_cpp.buffers import CUDA_LIKE, backend_of
from terazi.memory.llama_cpp.cache_rules import window_length
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.kv import CacheLayer
from terazi.memory.llama_cpp.recurrent import StateLayer
from terazi.memory.llama_cpp.resolve import SERVERS, Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.weight_buffers import WeightBuffer
from terazi.memory.llama_cpp.work import Product, cpu_work_bytes, cuda_work_bytes
from terazi.models.spec import ModelSpec
from terazi.units import MIB

#: MiB; ``cache_ram_mib`` of ``common/common.h``.
DEFAULT_CACHE_RAM_MIB = 8192
#: A slot; ``n_ctx_checkpoints`` of ``common/common.h``.
DEFAULT_CHECKPOINTS = 32
#: Position, count of sequences and sequence of each cell that is saved (``state_write_meta``).
_CELL_BYTES = 12


def growth_lines(
    spec: ModelSpec,
    family: Family | None,
    settings: LlamaCppSettings,
    resolved: Resolved,
    caches: tuple[CacheLayer, ...],
    *,
    states: tuple[StateLayer, ...] | None,
    buffers: tuple[WeightBuffer, ...],
) -> Iterator[BillLine]:
    """The lines; none for a tool that only estimates."""
    if settings.tool not in SERVERS:
        return
    yield from _prompt_cache(settings, resolved, caches, states or ())
    yield from _checkpoints(spec, family, settings, resolved, caches=caches, states=states or ())
    yield from _work(spec, resolved, caches, buffers)


def _prompt_cache(
    settings: LlamaCppSettings,
    resolved: Resolved,
    caches: tuple[CacheLayer, ...],
    states: tuple[StateLayer, ...],
) -> Iterator[BillLine]:
    limit = DEFAULT_CACHE_RAM_MIB if settings.cache_ram_mib is None else settings.cache_ram_mib
    note, size = "prompts kept in host memory (--cache-ram), filled only under use", limit * MIB
    if limit < 0:
        # no limit of bytes: as many tokens as the context has (``server_prompt_cache``, ``limit_tokens``)
        size = sum(c.k_bytes + c.v_bytes for c in caches) + sum(layer.n_bytes for layer in states)
        size += _CELL_BYTES * resolved.n_ctx
        note = "prompts kept in host memory without a limit of bytes, as many tokens as the context has"
    if size > 0:
        yield _line(HOST, size, "prompt-cache", LineBasis.UPPER_BOUND, note)


def _checkpoints(
    spec: ModelSpec,
    family: Family | None,
    settings: LlamaCppSettings,
    resolved: Resolved,
    *,
    caches: tuple[CacheLayer, ...],
    states: tuple[StateLayer, ...],
) -> Iterator[BillLine]:
    count = DEFAULT_CHECKPOINTS if settings.ctx_checkpoints is None else settings.ctx_checkpoints
    slot = 0
    if family and not settings.swa_full:
        slot = _window_of_a_slot(window_length(spec, family), resolved, caches)
    # what can't be rolled back is kept: the window, and recurrent states
    slot += sum(4 * (layer.r_width + layer.s_width) for layer in states)
    if count > 0 and slot:
        yield _line(
            HOST,
            count * resolved.n_seq_max * slot,
            "context-checkpoints",
            LineBasis.UPPER_BOUND,
            f"up to {count} copies of its window cache and recurrent state for each slot (--ctx-checkpoints)",
        )


def _window_of_a_slot(length: int, resolved: Resolved, caches: tuple[CacheLayer, ...]) -> int:
    """What a checkpoint keeps of the window caches: the cells that the next token still sees."""
    lengths = {cache.cells * resolved.n_stream for cache in caches if cache.window}
    if not lengths:
        return 0
    cells = min(length, *(cache.cells for cache in caches if cache.window))
    rows = sum(cache.k_bytes + cache.v_bytes for cache in caches if cache.window)
    return rows * cells // max(lengths) + _CELL_BYTES * cells


def _work(
    spec: ModelSpec, resolved: Resolved, caches: tuple[CacheLayer, ...], buffers: tuple[WeightBuffer, ...]
) -> Iterator[BillLine]:
    products: dict[str, set[Product]] = {}
    for buffer in buffers:
        products.setdefault(buffer.device, set()).update(buffer.products)
    for device in (None, *resolved.devices):
        where = HOST if device is None else device.id
        there = [cache for cache in caches if cache.device == where]
        own = products.get(where, set())
        if device is not None and backend_of(device) in CUDA_LIKE:
            size = cuda_work_bytes(spec, device, resolved, there, own)
            note = "memory pool of its operations, and cuBLAS's workspace; CUDA graphs aren't in it"
            yield _line(where, size, "cuda-pool", LineBasis.UPPER_BOUND, note)
        elif device is None or backend_of(device) == "rpc":
            size = cpu_work_bytes(spec, resolved, there, own)
            note = "work buffer of the CPU's operations" + (", if the server runs on a CPU" if device else "")
            if size:
                yield _line(where, size, "cpu-work", LineBasis.MODELLED, note)


def _line(device: str, size: int, formula: str, basis: LineBasis, note: str) -> BillLine:
    return BillLine(
        term=Term.OVERHEAD,
        device=device,
        bytes=size,
        formula=formula,
        basis=basis,
        memory=Memory.ANONYMOUS if device == HOST else Memory.DEVICE,
        note=note,
    )
