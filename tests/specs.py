"""Synthetic models and machines, built in code: no file, true shapes."""

from terazi.hardware.machine import Basis, Device, Figure, Host, Machine, PcieLink
from terazi.models.spec import ModelSpec, Tensor
from terazi.units import GIB, MIB

#: Bytes and elements of a block (ggml/src/ggml-common.h).
_BLOCKS = {"F32": (4, 1), "F16": (2, 1), "Q8_0": (34, 32), "Q4_0": (18, 32), "Q4_K": (144, 256), "Q6_K": (210, 256)}


def read(value: float | None) -> Figure:
    """A figure as the catalogue would give it."""
    return Figure(value=value, basis=Basis.CATALOGUE)


def llama_spec(
    *,
    layers: int = 32,
    embedding: int = 4096,
    feed_forward: int = 14336,
    heads: int = 32,
    kv_heads: int = 8,
    head_width: int = 128,
    vocab: int = 128256,
    context: int = 131072,
    dtype: str = "Q4_K",
    tied: bool = False,
    experts: int = 0,
    experts_used: int = 0,
    architecture: str = "llama",
) -> ModelSpec:
    """A decoder of the llama family; the defaults are Llama 3.1 8B."""
    tensors: list[Tensor] = []
    offset = 0

    def add(name: str, shape: tuple[int, ...], kind: str, block: int | None = None) -> None:
        nonlocal offset
        elements = 1
        for n in shape:
            elements *= n
        size, width = _BLOCKS[kind if shape[0] % _BLOCKS[kind][1] == 0 else "F16"]
        n_bytes = elements // width * size
        tensors.append(Tensor(name, shape, kind, n_bytes, offset, 0, block))
        offset += -(-n_bytes // 32) * 32

    add("token_embd.weight", (embedding, vocab), dtype)
    for i in range(layers):
        add(f"blk.{i}.attn_norm.weight", (embedding,), "F32", i)
        add(f"blk.{i}.attn_q.weight", (embedding, heads * head_width), dtype, i)
        add(f"blk.{i}.attn_k.weight", (embedding, kv_heads * head_width), dtype, i)
        add(f"blk.{i}.attn_v.weight", (embedding, kv_heads * head_width), dtype, i)
        add(f"blk.{i}.attn_output.weight", (heads * head_width, embedding), dtype, i)
        add(f"blk.{i}.ffn_norm.weight", (embedding,), "F32", i)
        if experts:
            add(f"blk.{i}.ffn_gate_inp.weight", (embedding, experts), "F32", i)
            add(f"blk.{i}.ffn_gate_exps.weight", (embedding, feed_forward, experts), dtype, i)
            add(f"blk.{i}.ffn_up_exps.weight", (embedding, feed_forward, experts), dtype, i)
            add(f"blk.{i}.ffn_down_exps.weight", (feed_forward, embedding, experts), dtype, i)
        else:
            add(f"blk.{i}.ffn_gate.weight", (embedding, feed_forward), dtype, i)
            add(f"blk.{i}.ffn_up.weight", (embedding, feed_forward), dtype, i)
            add(f"blk.{i}.ffn_down.weight", (feed_forward, embedding), dtype, i)
    add("output_norm.weight", (embedding,), "F32")
    if not tied:
        add("output.weight", (embedding, vocab), "Q6_K" if dtype == "Q4_K" else dtype)
    elements = 0
    for t in tensors:
        count = 1
        for n in t.shape:
            count *= n
        elements += count
    return ModelSpec(
        name="synthetic",
        architecture=architecture,
        block_count=layers,
        context_length=context,
        embedding_length=embedding,
        vocab_size=vocab,
        head_count=(heads,) * layers,
        head_count_kv=(kv_heads,) * layers,
        feed_forward_length=(feed_forward,) * layers,
        key_length=head_width,
        value_length=head_width,
        expert_count=experts,
        expert_used_count=experts_used,
        quantisation=dtype,
        parameter_count=elements,
        tensors=tuple(tensors),
    )


def smollm2() -> ModelSpec:
    """SmolLM2-135M in Q4_1-like weights."""
    return llama_spec(
        layers=30,
        embedding=576,
        feed_forward=1536,
        heads=9,
        kv_heads=3,
        head_width=64,
        vocab=49152,
        context=8192,
        dtype="Q4_0",
        tied=True,
    )


def llama_70b() -> ModelSpec:
    """Llama 3.1 70B."""
    return llama_spec(layers=80, embedding=8192, feed_forward=28672, heads=64)


def card(
    number: int = 0,
    *,
    gib: float = 24,
    bandwidth: float | None = 936.2e9,
    name: str = "GeForce RTX 3090",
    flops: float | None = 71e12,
    tdp: float | None = 350,
    unified: bool = False,
    cap: float | None = None,
) -> Device:
    """A CUDA card; the default is an RTX 3090 with a driver's context of 300 MiB."""
    return Device(
        id=f"CUDA{number}",
        name=name,
        vendor="NVIDIA",
        backend="CUDA",
        memory_total_bytes=round(gib * GIB),
        memory_free_bytes=round(gib * GIB),
        memory_bandwidth=read(bandwidth),
        flops_fp16=read(flops),
        tdp_w=read(tdp),
        idle_w=read(22.0),
        power_cap_w=cap,
        pcie=PcieLink(generation=4, lanes=16),
        context_bytes=read(300.0 * MIB),
        unified_memory=unified,
    )


def host(
    *, gib: float = 64, cores: int = 16, bandwidth: float | None = 80e9, limit: int | None = None, used: int = 0
) -> Host:
    """An idle AVX2 host without swap."""
    return Host(
        cpu_name="Test CPU",
        isa=frozenset({"avx2", "fma"}),
        cores=cores,
        sockets=1,
        ram_total_bytes=round(gib * GIB),
        ram_available_bytes=round(gib * GIB),
        memory_limit_bytes=limit,
        memory_limit_used_bytes=used,
        ram_bandwidth=read(bandwidth),
    )


def machine(*devices: Device, host_gib: float = 64) -> Machine:
    """Cards in a host."""
    return Machine(name="test", host=host(gib=host_gib), devices=devices)
