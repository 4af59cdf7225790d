"""What a token reads, against published sizes."""

import pytest

from specs import card, llama_70b, llama_spec, smollm2
from terazi.memory.bill import HOST
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.resolve import resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec
from terazi.performance.traffic import DeviceTraffic, boundaries, traffic


def _traffic(spec: ModelSpec, settings: LlamaCppSettings, cards: int = 1) -> dict[str, DeviceTraffic]:
    devices = tuple(card(i) for i in range(cards))
    isa = frozenset({"avx2"})
    resolved = resolve(spec, settings, devices)
    return dict(traffic(spec, settings, resolved, weigh(spec, settings, devices, isa), isa))


def test_kv_per_token_is_128_and_320_kib_for_llama_3() -> None:
    """Published per-token cache of Llama 3 8B and 70B in f16 (performance tables of llama.cpp and vLLM)."""
    for spec, kib in ((llama_spec(), 128), (llama_70b(), 320)):
        t = _traffic(spec, LlamaCppSettings(n_ctx=4096, n_parallel=1, n_gpu_layers=99))
        assert t["CUDA0"].kv_bytes(1000) == pytest.approx(1000 * kib * 1024)


def test_embedding_is_not_read_and_the_output_is() -> None:
    spec = llama_spec(dtype="F16")
    table = 2 * 4096 * 128256
    t = _traffic(spec, LlamaCppSettings(n_ctx=4096, n_parallel=1, n_gpu_layers=99))
    assert t["CUDA0"].dense_bytes == pytest.approx(spec.weights_bytes - table)
    # 2 operations per weight: 7.5e9 weights are multiplied with
    assert t["CUDA0"].flops_per_token == pytest.approx(2 * 7.5e9, rel=0.01)
    assert HOST not in t or t[HOST].dense_bytes == 0


def test_tied_embedding_is_read_once_where_the_output_is() -> None:
    spec = smollm2()
    t = _traffic(spec, LlamaCppSettings(n_ctx=2048, n_parallel=1), cards=0)
    assert t[HOST].dense_bytes == pytest.approx(spec.weights_bytes)
    assert t[HOST].layers == 30
    split = _traffic(spec, LlamaCppSettings(n_ctx=2048, n_parallel=1, n_gpu_layers=99))
    assert split["CUDA0"].dense_bytes == pytest.approx(spec.weights_bytes)


def test_partial_offload_splits_layers_and_cache() -> None:
    t = _traffic(llama_spec(), LlamaCppSettings(n_ctx=4096, n_parallel=1, n_gpu_layers=17))
    assert (t["CUDA0"].layers, t[HOST].layers) == (16, 16)
    assert t["CUDA0"].kv_bytes(100) == t[HOST].kv_bytes(100)


def test_experts_are_counted_apart_and_multiply_by_those_used() -> None:
    moe = llama_spec(layers=2, embedding=2048, feed_forward=768, heads=16, experts=64, experts_used=8, tied=True)
    t = _traffic(moe, LlamaCppSettings(n_ctx=1024, n_parallel=1, n_gpu_layers=99))["CUDA0"]
    stacked = sum(x.n_bytes for x in moe.tensors if "_exps" in x.name)
    assert t.expert_bytes == stacked
    routed_flops = 2 * 2 * 3 * 2048 * 768 * 8
    dense = t.flops_per_token - routed_flops
    assert dense == pytest.approx(2 * (2 * 2048 * (2 * 2048 + 2 * 1024 + 64) + 2048 * 128256), rel=1e-6)


def test_boundaries_follow_the_layers() -> None:
    devices = (card(0), card(1))
    spec = llama_spec()
    two = resolve(spec, LlamaCppSettings(n_ctx=512, n_gpu_layers=99, tensor_split=(1.0, 1.0)), devices)
    assert boundaries(two) == ((HOST, "CUDA0"), ("CUDA0", "CUDA1"))
    none = resolve(spec, LlamaCppSettings(n_ctx=512), ())
    assert boundaries(none) == ()
