"""Reordered and kept-alive graphs, against the log of a real Vulkan build and by what they must leave alone."""

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

import specs
from terazi.hardware.machine import Device
from terazi.memory.bill import HOST, Term
from terazi.memory.llama_cpp import graph as g
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.graph import Node
from terazi.memory.llama_cpp.optimise import for_cuda
from terazi.memory.llama_cpp.reorder import for_vulkan
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.sketch import Sketch
from terazi.models.spec import ModelSpec
from terazi.units import MIB
from tiny_models import device, llama

VULKAN = (device("Vulkan0", backend="vulkan"), device("Vulkan1", backend="vulkan"))
AVX2 = frozenset({"avx2"})


def former_embeddings(sketch: Sketch) -> Node:
    """The input of build b10434, which had no third branch for mixed batches."""
    given_ = sketch.input(g.F32, sketch.spec.embedding_length, sketch.batch.tokens)
    x = g.get_rows(sketch.need("token_embd.weight"), sketch.input(g.I32, sketch.batch.tokens))
    for root in (x, given_):
        sketch.graph.expand(root)
    return x


def compute_of(spec: ModelSpec, settings: LlamaCppSettings, devices: tuple[Device, ...]) -> dict[str, int]:
    bill = weigh(spec, settings, devices, AVX2)
    return {line.device: line.bytes for line in bill.lines if line.term is Term.COMPUTE}


@pytest.mark.parametrize(
    ("settings", "cards", "logged"),
    [
        (LlamaCppSettings(), 1, {"Vulkan0": 15.26, HOST: 6.26}),
        (LlamaCppSettings(tensor_split=(2.0, 1.0)), 2, {"Vulkan0": 31.79, "Vulkan1": 31.79}),
        (LlamaCppSettings(n_gpu_layers=20), 1, {"Vulkan0": 17.70, HOST: 6.26}),
        (LlamaCppSettings(n_gpu_layers=20, tensor_split=(1.0, 1.0)), 2, {"Vulkan0": 17.70, "Vulkan1": 15.26}),
        (LlamaCppSettings(flash_attn="off"), 1, {"Vulkan0": 83.01, HOST: 11.01}),
        (
            LlamaCppSettings(n_parallel=4, type_k="q8_0", type_v="q8_0", flash_attn="on"),
            1,
            {"Vulkan0": 12.29, HOST: 3.29},
        ),
        (LlamaCppSettings(kv_offload=False), 1, {"Vulkan0": 15.25, HOST: 6.26}),
        (LlamaCppSettings(n_gpu_layers=10, op_offload=False, n_ubatch=256), 1, {"Vulkan0": 7.63, HOST: 8.76}),
    ],
)
def test_vulkan_buffers_are_those_of_a_real_log(
    settings: LlamaCppSettings, cards: int, logged: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama-server b10434 (Vulkan on llvmpipe), SmolLM2-135M with ``-c 4096``, in MiB as its log prints them.

    In pipeline mode that build kept one copy of an unused input where b11434 keeps four: its host isn't compared.
    """
    monkeypatch.setattr(Sketch, "embeddings", former_embeddings)
    settings = replace(settings, n_ctx=4096, n_parallel=settings.n_parallel or 1, fit=False)
    spec = specs.smollm2()
    # matrices that a card takes over from the host are copied there: their type counts
    matrices = (
        t if len(t.shape) < 2 else replace(t, dtype="Q4_1", n_bytes=prod(t.shape) // 32 * 20) for t in spec.tensors
    )
    found = compute_of(replace(spec, tensors=tuple(matrices)), settings, VULKAN[:cards])
    assert {name: round(found[name] / MIB, 2) for name in logged} == logged


def test_a_mixture_of_experts_takes_more_on_a_cuda_card() -> None:
    """The experts' outputs stay until they are summed up, so the product with their weights can't reuse them."""
    spec = llama(experts=4, width=256, heads=4, inner=64, dtype="q8_0")
    settings = LlamaCppSettings(n_ctx=512, n_parallel=1, fit=False)
    cuda = compute_of(spec, settings, (device("CUDA0", backend="cuda"),))["CUDA0"]
    plain = compute_of(spec, settings, (device("RPC0"),))["RPC0"]
    outputs = 4 * spec.expert_used_count * spec.embedding_length * 512
    assert cuda == pytest.approx(plain + outputs, abs=outputs / 4)
    dense = llama(width=256, heads=4, inner=64, dtype="q8_0")
    assert compute_of(dense, settings, (device("CUDA0", backend="cuda"),))["CUDA0"] == pytest.approx(
        compute_of(dense, settings, (device("RPC0"),))["RPC0"], rel=0.001
    )


@given(st.lists(st.tuples(st.sampled_from(["add", "mul", "rms_norm", "unary", "view", "rope"]), st.integers(0, 9))))
def test_every_node_stays_and_comes_after_its_sources(steps: list[tuple[str, int]]) -> None:
    nodes = [g.leaf(g.F32, 8, 8)]
    for op, back in steps:
        source = nodes[max(0, len(nodes) - 1 - back)]
        nodes.append(g.view(source, (8, 8)) if op == "view" else g.like(op, source, nodes[0]))
    graph = nodes[1:]
    for optimise in (for_vulkan, for_cuda):
        order = optimise(graph).nodes
        assert sorted(map(id, order)) == sorted(map(id, graph))
        place = {id(node): index for index, node in enumerate(order)}
        for node in order:
            assert all(place.get(id(src), -1) < place[id(node)] for src in node.srcs)
