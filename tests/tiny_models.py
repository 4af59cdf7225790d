"""Small made-up models for tests of the bill's arithmetic."""

from terazi.hardware.machine import Basis, Device, Figure
from terazi.models.ggml_types import TYPE_BY_NAME, row_bytes
from terazi.models.spec import ModelSpec, Tensor

UNKNOWN = Figure(value=None, basis=Basis.ASSUMED)


def device(name: str, *, backend: str = "rpc", free_gib: float = 24, context_mib: int | None = None) -> Device:
    context = Figure(value=context_mib * 1024 * 1024 if context_mib else None, basis=Basis.CATALOGUE)
    return Device(
        id=name,
        name=name,
        vendor="none",
        backend=backend,
        memory_total_bytes=24 << 30,
        memory_free_bytes=int(free_gib * 2**30),
        memory_bandwidth=UNKNOWN,
        flops_fp16=UNKNOWN,
        tdp_w=UNKNOWN,
        context_bytes=context,
    )


def llama(
    *,
    blocks: int = 4,
    width: int = 512,
    heads: int = 8,
    kv_heads: int = 2,
    inner: int = 1024,
    vocab: int = 1000,
    dtype: str = "q4_K",
    tied: bool = False,
    rope_factors: bool = False,
    experts: int = 0,
) -> ModelSpec:
    """A llama with matrices of one type. Tensors lie in the file in this order, 32-byte aligned."""
    head = width // heads
    rows: list[tuple[str, tuple[int, ...], str, int | None]] = [("token_embd.weight", (width, vocab), dtype, None)]
    for block in range(blocks):
        name = f"blk.{block}."
        rows += [
            (name + "attn_norm.weight", (width,), "f32", block),
            (name + "attn_q.weight", (width, width), dtype, block),
            (name + "attn_k.weight", (width, head * kv_heads), dtype, block),
            (name + "attn_v.weight", (width, head * kv_heads), dtype, block),
            (name + "attn_output.weight", (width, width), dtype, block),
            (name + "ffn_norm.weight", (width,), "f32", block),
        ]
        if experts:
            rows += [
                (name + "ffn_gate_inp.weight", (width, experts), "f32", block),
                (name + "ffn_gate_exps.weight", (width, inner, experts), dtype, block),
                (name + "ffn_up_exps.weight", (width, inner, experts), dtype, block),
                (name + "ffn_down_exps.weight", (inner, width, experts), dtype, block),
            ]
        else:
            rows += [
                (name + "ffn_gate.weight", (width, inner), dtype, block),
                (name + "ffn_up.weight", (width, inner), dtype, block),
                (name + "ffn_down.weight", (inner, width), dtype, block),
            ]
    rows.append(("output_norm.weight", (width,), "f32", None))
    if not tied:
        rows.append(("output.weight", (width, vocab), dtype, None))
    if rope_factors:
        rows.append(("rope_freqs.weight", (head // 2,), "f32", None))
    tensors = []
    offset = 0
    for name, shape, kind, where in rows:
        count = 1
        for length in shape[1:]:
            count *= length
        n_bytes = row_bytes(kind, shape[0]) * count
        tensors.append(Tensor(name, shape, TYPE_BY_NAME[kind].name, n_bytes, offset, 0, where))
        offset += -(-n_bytes // 32) * 32
    return ModelSpec(
        name="tiny",
        architecture="llama",
        block_count=blocks,
        context_length=4096,
        embedding_length=width,
        vocab_size=vocab,
        head_count=(heads,) * blocks,
        head_count_kv=(kv_heads,) * blocks,
        feed_forward_length=(inner,) * blocks,
        key_length=head,
        value_length=head,
        expert_count=experts,
        expert_used_count=2 if experts else 0,
        tensors=tuple(tensors),
    )
