"""LoRA adapters and control vectors: where they go, and what is refused."""

from dataclasses import replace

import pytest

from adapter_files import lora_rows
from gguf_writer import TensorRow, header
from specs import card, llama_spec
from terazi.errors import UsageError
from terazi.hardware.machine import Device
from terazi.memory.bill import HOST, Bill, Term
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.companions import build_companion
from terazi.models.gguf import header_from_bytes

MODEL = llama_spec(layers=4, embedding=256, feed_forward=512, heads=4, kv_heads=2, head_width=64, vocab=1024)
SETTINGS = LlamaCppSettings(n_ctx=2048, n_parallel=1)
RANK = 8


def adapter(rows: list[TensorRow], *, scale: float = 1.0, architecture: str = "llama") -> Companion:
    keys = {"general.architecture": architecture, "general.type": "adapter", "adapter.type": "lora"}
    raw, data = header(keys, rows)
    found = header_from_bytes(raw, "adapter.gguf", len(raw) + data)
    return Companion("lora", "--lora", build_companion(found, "lora"), scale)


def vector(width: int) -> Companion:
    raw, data = header({"general.architecture": "controlvector"}, [("direction.1", (width,), "f32")])
    found = header_from_bytes(raw, "vector.gguf", len(raw) + data)
    return Companion("control-vector", "--control-vector", build_companion(found, "control-vector"))


def bill_of(
    *companions: Companion, devices: tuple[Device, ...] = (), settings: LlamaCppSettings = SETTINGS
) -> Bill:
    return weigh(MODEL, settings, devices, frozenset(), companions)


def test_halves_lie_where_their_weight_is() -> None:
    rows = lora_rows(MODEL, ["attn_q"], RANK)
    settings = replace(SETTINGS, n_gpu_layers=3)  # the output and the last two blocks
    bill = bill_of(adapter(rows), devices=(card(),), settings=settings)
    each = 2 * RANK * (256 + 256)
    assert {line.device: line.bytes for line in bill.of("lora")} == {HOST: 2 * each, "CUDA0": 2 * each}


def test_an_override_takes_the_adapter_along() -> None:
    settings = replace(SETTINGS, override_tensor=(("attn_q", "CPU"),))
    bill = bill_of(adapter(lora_rows(MODEL, ["attn_q"], RANK)), devices=(card(),), settings=settings)
    assert [line.device for line in bill.of("lora")] == [HOST]


def test_applied_adapters_widen_the_graph_and_others_do_not() -> None:
    rows = lora_rows(MODEL, ["ffn_up", "ffn_gate", "ffn_down"], 512)
    settings = replace(SETTINGS, n_ubatch=512)
    plain, idle, applied = (
        bill_of(*given, settings=settings).on(HOST).compute_bytes
        for given in ((), (adapter(rows, scale=0.0),), (adapter(rows, scale=0.5),))
    )
    assert plain == idle < applied


def test_a_control_vector_has_a_row_for_every_block_but_the_first() -> None:
    settings = replace(SETTINGS, n_gpu_layers=3)
    bill = bill_of(vector(256), vector(256), devices=(card(),), settings=settings)
    assert {line.device: line.bytes for line in bill.of("control-vector")} == {HOST: 1024, "CUDA0": 2048}
    assert all(line.term is Term.WEIGHTS for line in bill.of("control-vector"))
    assert bill.exact


def test_a_control_vector_of_another_width_is_said_to_be_left_out() -> None:
    bill = bill_of(vector(128))
    assert bill.of("control-vector") == ()
    assert "128" in bill.reasons[0]


def test_what_the_engine_refuses_is_refused() -> None:
    rows = lora_rows(MODEL, ["attn_q"], RANK)
    wrong = {
        "another architecture": adapter(rows, architecture="qwen2"),
        "half of a pair": adapter(rows[:-1]),
        "no such tensor": adapter([("blk.9.attn_q.weight.lora_a", (256, 8), "f16"), rows[1]]),
        "another tensor": adapter([*rows, ("blk.0.attn_q.weight", (256, 256), "f16")]),
        "other shapes": adapter([(name, (shape[0] // 2, *shape[1:]), dtype) for name, shape, dtype in rows]),
    }
    for companion in wrong.values():
        with pytest.raises(UsageError, match="adapter"):
            bill_of(companion)
    # norms are passed over
    assert bill_of(adapter([*rows, ("blk.0.attn_norm.weight", (256,), "f32")])).of("lora")


def test_an_adapter_of_a_tied_embedding_would_make_the_engine_abort() -> None:
    tied = replace(MODEL, tensors=tuple(t for t in MODEL.tensors if t.name != "output.weight"))
    rows = lora_rows(MODEL, ["token_embd.weight"], RANK)
    with pytest.raises(UsageError, match="output matrix"):
        weigh(tied, SETTINGS, (), frozenset(), (adapter(rows),))
    assert weigh(tied, SETTINGS, (), frozenset(), (adapter(rows, scale=0.0),)).of("lora")
    assert bill_of(adapter(rows)).of("lora")


def test_llama_fit_params_loads_none_of_it() -> None:
    settings = replace(SETTINGS, tool="llama-fit-params")
    given = (adapter(lora_rows(MODEL, ["attn_q"], RANK)), vector(256))
    assert bill_of(*given, settings=settings) == bill_of(settings=settings)


def test_without_warming_up_the_larger_graph_comes_with_the_first_request() -> None:
    given = adapter(lora_rows(MODEL, ["ffn_up", "ffn_gate", "ffn_down"], 512))
    warm, cold, plain = (
        bill_of(*companions, settings=replace(SETTINGS, warmup=warmed))
        for companions, warmed in (((given,), True), ((given,), False), ((), True))
    )
    assert cold.on(HOST).compute_bytes == plain.on(HOST).compute_bytes
    more = sum(line.bytes for line in cold.growth if line.formula == "compute.adapted")
    assert cold.on(HOST).compute_bytes + more == warm.on(HOST).compute_bytes
