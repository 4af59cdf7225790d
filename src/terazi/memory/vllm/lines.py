"""The lines of an engine's bill, rank by rank.

In: ranks and their pool. Out: ``BillLine``s.
"""

from collections.abc import Iterator, Sequence

from terazi.memory.bill import HOST, BillLine, LineBasis, Memory, Term
from terazi.memory.vllm.pool import KvPool
from terazi.memory.vllm.profile import CPU_WORKER_BYTES, FRONT_BYTES
from terazi.memory.vllm.ranks import DRAFT, Case, Rank
from terazi.memory.vllm.settings import VllmSettings
from terazi.models.spec import ModelSpec
from terazi.units import format_bytes


def bill_lines(case: Case, ranks: Sequence[Rank], pool: KvPool | None) -> Iterator[BillLine]:
    """Every rank's lines, then what the host holds for all of them."""
    model, settings, resolved, cards = case.model, case.settings, case.resolved, case.cards
    contexts = {card.id: card.context_bytes for card in cards}
    for rank in ranks:
        memory = Memory.ANONYMOUS if rank.device == HOST else Memory.DEVICE
        yield from _weight_lines(case, rank, memory, len(ranks))
        if rank.draft_bytes:
            yield BillLine(
                term=Term.WEIGHTS,
                device=rank.device,
                bytes=rank.draft_bytes,
                formula="weights.draft",
                basis=LineBasis.EXACT,
                memory=memory,
                note=f"the draft model{_of(rank, ranks)}",
                part=DRAFT,
            )
        if pool is not None:
            yield BillLine(
                term=Term.STATE if model.attention_free else Term.KV,
                device=rank.device,
                bytes=pool.blocks * pool.block_bytes[rank.stage],
                formula="kv.blocks",
                basis=LineBasis.EXACT if _budget_is_exact(settings) else LineBasis.MODELLED,
                memory=memory,
                note=f"{pool.blocks} blocks of {format_bytes(pool.block_bytes[rank.stage])},"
                f" {pool.tokens} tokens{_of(rank, ranks)}",
            )
        if rank.profile is None:
            yield _line(
                Term.OVERHEAD,
                HOST,
                CPU_WORKER_BYTES,
                "overhead.worker",
                memory=memory,
                note=f"± 0.3 GiB{_of(rank, ranks)}",
            )
            continue
        context = contexts[rank.device]
        for term, size, formula, note in (
            (
                Term.COMPUTE,
                rank.profile.forward,
                "compute.forward",
                f"± 40 %, {resolved.max_num_batched_tokens} tokens",
            ),
            (Term.COMPUTE, rank.profile.sampler, "compute.sampler", f"± 50 %, {resolved.max_num_seqs} rows"),
            (Term.COMPUTE, rank.profile.graphs, "compute.cuda-graphs", "-0.9 to +2 GiB"),
            (Term.OVERHEAD, rank.profile.libraries, "overhead.libraries", "± 0.15 GiB"),
        ):
            yield _line(term, rank.device, size, formula, memory=memory, note=note)
        if context.value:
            yield BillLine(
                term=Term.OVERHEAD,
                device=rank.device,
                bytes=round(context.value),
                formula="driver-context",
                basis=LineBasis.CATALOGUE,
                memory=memory,
                note="outside vLLM's budget",
            )
    if ranks:
        yield _line(
            Term.OVERHEAD,
            HOST,
            FRONT_BYTES,
            "overhead.front",
            memory=Memory.ANONYMOUS,
            note="API server and engine, ± 0.6 GiB",
        )
    if resolved.target.gpu and settings.cpu_offload_bytes:
        moved = sum(min(settings.cpu_offload_bytes, r.weights.total_bytes) for r in ranks)
        yield _line(
            Term.WEIGHTS,
            HOST,
            moved,
            "weights.offloaded",
            memory=Memory.PINNED,
            note="--cpu-offload-gb, all ranks",
        )
    if settings.kv_offloading_bytes:
        yield BillLine(
            term=Term.KV,
            device=HOST,
            bytes=settings.kv_offloading_bytes,
            formula="kv.offloaded",
            basis=LineBasis.EXACT,
            memory=Memory.PINNED,
            note="--kv-offloading-size, all ranks",
        )


def _weight_lines(case: Case, rank: Rank, memory: Memory, count: int) -> Iterator[BillLine]:
    settings, quantised = case.settings, case.resolved.quantization is not None
    offload = settings.cpu_offload_bytes if rank.device != HOST else 0
    weights = rank.weights
    rope = rank.profile.rope if rank.profile else 0
    for size, formula, basis in (
        (weights.plain_bytes, "weights.linear", LineBasis.EXACT),
        (weights.quantised_bytes, "weights.quantised", LineBasis.MODELLED),
        (weights.expert_bytes, "weights.experts", LineBasis.MODELLED if quantised else LineBasis.EXACT),
        (weights.embedding_bytes, "weights.embeddings", LineBasis.EXACT),
        (weights.tower_bytes, "weights.towers", LineBasis.UPPER_BOUND if count > 1 else LineBasis.EXACT),
        (rope, "weights.positions", LineBasis.MODELLED),
    ):
        moved = min(offload, size)
        offload -= moved
        if size > moved:
            yield BillLine(
                term=Term.WEIGHTS,
                device=rank.device,
                bytes=size - moved,
                formula=formula,
                basis=LineBasis.MODELLED if settings.quantization else basis,
                memory=memory,
                note=f"rank {rank.number}" if count > 1 else "",
            )


def _budget_is_exact(settings: VllmSettings) -> bool:
    """Whether the bytes for the cache are said rather than measured by the engine."""
    return settings.kv_cache_memory_bytes is not None or settings.num_gpu_blocks_override is not None


def _of(rank: Rank, ranks: Sequence[Rank]) -> str:
    return f", rank {rank.number}" if len(ranks) > 1 else ""


def _line(term: Term, device: str, size: int, formula: str, *, memory: Memory, note: str) -> BillLine:
    return BillLine(
        term=term, device=device, bytes=size, formula=formula, basis=LineBasis.MODELLED, memory=memory, note=note
    )


def file_pages(spec: ModelSpec) -> Iterator[BillLine]:
    """Pages of the checkpoint's files, which the kernel drops when it needs the room."""
    if spec.file_bytes:
        yield BillLine(
            term=Term.WEIGHTS,
            device=HOST,
            bytes=spec.file_bytes,
            formula="weights.file",
            basis=LineBasis.EXACT,
            memory=Memory.PAGE_CACHE,
            note="read once while loading",
        )
