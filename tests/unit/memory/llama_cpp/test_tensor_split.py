"""How tensors are cut over devices (-sm tensor)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.errors import UsageError
from terazi.memory.bill import HOST, Bill
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec
from tiny_models import device, llama

NO_FLAGS: frozenset[str] = frozenset()


def cut(spec: ModelSpec, count: int, **settings: Any) -> Bill:
    made = LlamaCppSettings(split_mode="tensor", n_ctx=512, n_parallel=1, fit=False, **settings)
    cards = tuple(device(f"CUDA{i}", backend="cuda", context_mib=100 + i) for i in range(count))
    return weigh(spec, made, cards, NO_FLAGS)


def test_matrices_and_caches_are_cut_in_two_and_norms_are_not() -> None:
    spec = llama(width=1024, heads=16, kv_heads=4, inner=2048, dtype="q8_0", vocab=1024)
    one, two = cut(spec, 1), cut(spec, 2)
    norms = sum(-(-t.n_bytes // 128) * 128 for t in spec.tensors if len(t.shape) == 1)
    for name in ("CUDA0", "CUDA1"):
        assert two.on(name).weights_bytes == (one.on("CUDA0").weights_bytes - norms) // 2 + norms
        assert two.on(name).kv_bytes == one.on("CUDA0").kv_bytes // 2
        assert two.on(name).compute_bytes == one.on("CUDA0").compute_bytes
    assert two.exact
    contexts = [line.bytes for line in two.lines if line.formula == "driver-context"]
    assert contexts == [100 << 20, 101 << 20]


@given(
    st.integers(1, 5),
    st.lists(st.integers(0, 9), max_size=5),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(["q8_0", "f16", "q4_0"]),
)
def test_nothing_is_lost_between_the_slices(count: int, shares: list[int], kv_heads: int, dtype: str) -> None:
    spec = llama(width=512, heads=8, kv_heads=kv_heads, inner=1024, dtype=dtype, vocab=1000)
    try:
        bill = cut(spec, count, tensor_split=tuple(map(float, shares)))
    except UsageError:
        return
    alone = cut(spec, 1)
    devices = [f"CUDA{i}" for i in range(count)]
    assert sum(bill.on(name).kv_bytes for name in devices) == alone.on("CUDA0").kv_bytes
    weights = [bill.on(name).weights_bytes for name in devices]
    assert sum(weights) >= alone.on("CUDA0").weights_bytes - 128 * len(spec.tensors)
    assert max(weights) <= alone.on("CUDA0").weights_bytes + 128 * len(spec.tensors)
    assert bill.on(HOST).total_bytes == alone.on(HOST).total_bytes


def test_an_architecture_on_the_engines_list_is_refused() -> None:
    with pytest.raises(UsageError, match="olmoe"):
        cut(replace(llama(), architecture="olmoe"), 2)


@pytest.mark.parametrize(
    ("settings", "count", "why"),
    [({"flash_attn": "off"}, 2, "flash attention"), ({}, 0, "device")],
)
def test_what_it_needs(settings: dict[str, str], count: int, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        cut(llama(), count, **settings)
