"""What the program itself takes beside the buffers that its log adds up to: code, vocabulary, tables, stacks.

Seen in b11434 (CPU build, shared libraries, Linux x86-64) with made-up llamas of 8192 to 262144 tokens, 2 to 82
blocks, with and without merges, after their first prompts: what /proc/PID/smaps_rollup says less the buffers of the
log. The figures are slopes of straight lines through those measurements; for the demo model and Gemma 3 they come
out within 5 MiB. A driver's own host memory (CUDA maps some hundred MiB) isn't in them.
"""

from collections.abc import Iterator
from typing import Final

from terazi.memory.bill import HOST, BillLine, LineBasis, Memory, Term
from terazi.memory.llama_cpp.buffers import CUDA_LIKE, backend_of
from terazi.memory.llama_cpp.resolve import SERVERS, Resolved
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ArrayInfo, ModelSpec
from terazi.units import KIB, MIB

#: Pages of the program and its libraries that are in use; the kernel shares them with other processes of it.
_CODE_BYTES: Final = round(16.4 * MIB)
#: Heap of a server without a vocabulary.
_HEAP_BYTES: Final = 8 * MIB
_PER_TOKEN_BYTES: Final = 155
_PER_MERGE_BYTES: Final = 106
#: The graph, the scheduler's tables and the allocator's, all sized by the number of tensors.
_PER_TENSOR_BYTES: Final = round(10.5 * KIB)
#: ``llama_token_data`` of every token, kept by each slot's sampler.
_PER_CANDIDATE_BYTES: Final = 12
#: An idle ``ggml-rpc-server``: its code and its heap.
_RPC_CODE_BYTES: Final = round(4.6 * MIB)
_RPC_HEAP_BYTES: Final = round(3.5 * MIB)


def process_lines(spec: ModelSpec, settings: LlamaCppSettings, resolved: Resolved) -> Iterator[BillLine]:
    """The program on the host, and the server behind each RPC device."""
    if settings.tool not in SERVERS:
        return
    heap = _HEAP_BYTES + _vocabulary_bytes(spec) + _context_bytes(spec, resolved)
    driver = any(backend_of(device) in CUDA_LIKE for device in resolved.devices)
    yield _line(
        HOST, heap, "process.heap", Memory.ANONYMOUS, "vocabulary, graph tables and stacks" + _DRIVER * driver
    )
    yield _line(HOST, _CODE_BYTES, "process.code", Memory.PAGE_CACHE, "the program and its libraries")
    for device in resolved.devices:
        if backend_of(device) == "rpc":
            note = "an idle ggml-rpc-server"
            yield _line(device.id, _RPC_HEAP_BYTES + _RPC_CODE_BYTES, "process.rpc-server", Memory.DEVICE, note)


def second_context_line(spec: ModelSpec, resolved: Resolved, *, own_weights: bool) -> BillLine:
    """What a draft's context adds; with *own_weights* it also brings a vocabulary of its own."""
    size = _context_bytes(spec, resolved) + (_vocabulary_bytes(spec) if own_weights else 0)
    return _line(HOST, size, "process.heap", Memory.ANONYMOUS, "graph tables and candidates of the draft")


def _vocabulary_bytes(spec: ModelSpec) -> int:
    merges = spec.metadata.get("tokenizer.ggml.merges")
    joined = merges.length if isinstance(merges, ArrayInfo) else 0
    return _PER_TOKEN_BYTES * spec.vocab_size + _PER_MERGE_BYTES * joined


def _context_bytes(spec: ModelSpec, resolved: Resolved) -> int:
    candidates = _PER_CANDIDATE_BYTES * spec.vocab_size * resolved.n_seq_max
    return _PER_TENSOR_BYTES * len(spec.tensors) + candidates


_DRIVER = "; the driver's own host memory isn't in it"


def _line(device: str, size: int, formula: str, memory: Memory, note: str) -> BillLine:
    return BillLine(
        term=Term.OVERHEAD,
        device=device,
        bytes=size,
        formula=formula,
        basis=LineBasis.SEEN,
        memory=memory,
        note=note,
    )
