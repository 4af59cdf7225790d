"""Defaults and clamps. Expected figures are those that the engine logged (n_ctx, n_ctx_seq, n_batch, …)."""

from dataclasses import replace
from typing import Any

import pytest

from terazi.errors import UsageError
from terazi.memory.llama_cpp.families import family_of
from terazi.memory.llama_cpp.resolve import Resolved, resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from tiny_models import device, llama

SPEC = llama()


def of(**settings: Any) -> Resolved:
    return resolve(SPEC, LlamaCppSettings(**settings), ())


def test_server_defaults_are_four_slots_over_one_cache() -> None:
    got = of(n_ctx=4096)
    assert (got.n_seq_max, got.n_stream, got.n_ctx, got.n_ctx_seq) == (4, 1, 4096, 4096)
    assert (got.n_batch, got.n_ubatch, got.n_outputs, got.flash_attn) == (2048, 512, 4, True)


def test_server_auto_slots_overrule_no_unified() -> None:
    assert of(n_ctx=4096, kv_unified=False).unified


@pytest.mark.parametrize(("tool", "outputs"), [("llama-fit-params", 512), ("llama-cli", 1)])
def test_other_tools_have_one_slot(tool: str, outputs: int) -> None:
    got = of(tool=tool, n_ctx=4096)
    assert (got.n_seq_max, got.n_outputs) == (1, outputs)


def test_slots_share_the_context_unless_unified() -> None:
    got = of(n_ctx=5000, n_parallel=3)
    # 5000 is padded to 5120, a third of it to 1792, and that times three is what is allocated
    assert (got.n_ctx, got.n_ctx_seq, got.n_stream) == (5376, 1792, 3)
    assert of(n_ctx=5000, n_parallel=3, kv_unified=True).n_ctx_seq == 5120


def test_context_of_the_model_for_each_stream_when_fitted() -> None:
    assert of(n_ctx=0).n_ctx == 4096
    assert of(n_ctx=0, n_parallel=3).n_ctx == 3 * 4096
    assert of(n_ctx=0, n_parallel=3, fit=False).n_ctx_seq == 1536
    assert of(tool="llama-fit-params", n_parallel=2).n_ctx == 4096


def test_batches_are_clamped_to_the_context() -> None:
    got = of(n_ctx=300, n_parallel=1)
    assert (got.n_batch, got.n_ubatch, got.n_ctx) == (300, 300, 512)
    assert of(n_ctx=4096, n_ubatch=0).n_ubatch == 2048
    assert of(n_ctx=4096, n_batch=64).n_ubatch == 64


def test_embedding_server_computes_every_output_of_a_micro_batch() -> None:
    got = of(n_ctx=4096, embedding=True)
    assert (got.n_batch, got.n_ubatch, got.n_outputs) == (512, 512, 512)


def test_pipeline_needs_all_layers_on_several_devices_and_nothing_moved() -> None:
    two = (device("RPC0"), device("RPC1"))
    assert resolve(SPEC, LlamaCppSettings(), two).pipeline
    for settings in (
        LlamaCppSettings(n_gpu_layers=4),
        LlamaCppSettings(kv_offload=False),
        LlamaCppSettings(split_mode="none"),
        LlamaCppSettings(override_tensor=(("x", "CPU"),)),
        LlamaCppSettings(n_cpu_moe=1),
    ):
        assert not resolve(SPEC, settings, two).pipeline
    assert not resolve(SPEC, LlamaCppSettings(), two[:1]).pipeline


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"type_v": "q8_0", "flash_attn": "off"}, "flash attention"),
        ({"type_k": "q9_9"}, "q9_9"),
        ({"n_parallel": 257}, "256"),
        ({"n_parallel": 33, "n_batch": 32}, "33 slots"),
        ({"n_parallel": 1, "n_batch": 1}, "too small"),
        ({"n_parallel": 1, "n_ctx": 1}, "too small"),
        ({"split_mode": "row"}, "rows"),
    ],
)
def test_what_the_engine_refuses_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        resolve(SPEC, LlamaCppSettings(**settings), (device("CUDA0", backend="cuda"),))


def test_quantised_heads_must_be_whole_blocks() -> None:
    odd = llama(width=320, heads=8, dtype="q4_0")  # heads of 40
    with pytest.raises(UsageError, match="multiples of 32"):
        resolve(odd, LlamaCppSettings(type_k="q8_0"), ())
    # without flash attention a row of all heads counts: 2 x 40 is no multiple of 32 either, 4 x 40 is
    with pytest.raises(UsageError, match="multiples of 32"):
        resolve(odd, LlamaCppSettings(type_k="q8_0", flash_attn="off"), ())
    wide = llama(width=320, heads=8, kv_heads=4, dtype="q4_0")
    assert resolve(wide, LlamaCppSettings(type_k="q8_0", flash_attn="off"), ()).n_ctx == 4096


@pytest.mark.parametrize("flash_attn", ["auto", "on"])
def test_plm_aborts_with_flash_attention(flash_attn: str) -> None:
    plm = replace(SPEC, architecture="plm")
    with pytest.raises(UsageError, match="can't run plm"):
        resolve(plm, LlamaCppSettings(n_ctx=4096, flash_attn=flash_attn), ())
    assert not resolve(plm, LlamaCppSettings(n_ctx=4096, flash_attn="off"), ()).flash_attn


def test_parts_of_an_image_at_several_layers_are_not_known() -> None:
    granite = replace(SPEC, architecture="granite")
    assert family_of(granite)
    assert family_of(replace(granite, metadata={"granite.deepstack_mapping": (-1, 1)})) is None
    assert family_of(replace(granite, metadata={"granite.deepstack_mapping": (-1, -1)}))
