"""Figures that others published, which any forecast of this kind has to get right. Each names its source."""

from dataclasses import replace

import pytest

from specs import card, llama_70b, llama_spec, machine
from terazi.hardware.machine import PcieLink
from terazi.hardware.presets import parse_machine
from terazi.hardware.probe.catalogue import load_catalogue
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.vllm.bill import appraise
from terazi.memory.vllm.settings import VllmSettings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.collectives import Fabric, Wire
from terazi.performance.efficiency import CLASSES, CardClass, with_factor
from terazi.performance.forecast import Forecast, forecast
from terazi.performance.roofline import Rates, decode_step_s
from terazi.performance.routing import distinct_experts
from terazi.performance.speculation import PASS_S, guess
from terazi.performance.vllm_cards import COMPUTE
from terazi.placement.follow import follow
from terazi.placement.plan import Plan
from terazi.placement.solve import solve
from terazi.placement.vllm import follow_vllm
from vllm_cases import CONFIGS, llama


def _vllm_8b() -> ModelSpec:
    return llama({
        **CONFIGS["llama-3.1-8b"],
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    })  # fmt: skip


def _split(gib: int, slot: PcieLink | None) -> Forecast:
    """Llama 3 70B Q4_K_M by layer split over two RTX 3090, the second on *slot*."""
    second = card(1, gib=gib) if slot is None else replace(card(1, gib=gib), pcie=slot)
    both = machine(card(0, gib=gib), second)
    work = Workload(context=4096, prompt=512, output=512)
    plan = solve(llama_70b(), both, work, {})
    assert isinstance(plan, Plan)
    return forecast(llama_70b(), plan, both, work)


def test_the_kv_cache_of_an_8b_on_a_4090_holds_41_thousand_tokens() -> None:
    """vLLM 0.19, RTX 4090, utilisation 0.9, bf16: 2,588 blocks of 16 (LLMServingSim, bench/examples)."""
    on = parse_machine("RTX 4090 + 64GiB", load_catalogue())
    settings = VllmSettings(gpu_memory_utilization=0.9, max_model_len=8192, max_num_batched_tokens=8192)
    pool = appraise(_vllm_8b(), settings, on.devices, on.host).pool
    assert pool is not None
    assert pool.tokens == pytest.approx(41_408, rel=0.05)


def test_a_layer_split_over_one_pcie3_lane_costs_next_to_nothing() -> None:
    """32 KB a token over about 1 GB/s are 33 us of a 60 ms token; club-3090 measured 7 MB/s between the cards."""
    wide = _split(24, None)
    narrow = _split(24, PcieLink(generation=3, lanes=1))
    assert narrow.decode_tok_s.mid == pytest.approx(wide.decode_tok_s.mid, rel=0.005)
    assert wide.decode_tok_s.low <= 16.57 <= wide.decode_tok_s.high  # XiongjieDai, 2 x RTX 3090, tg512


def test_a_second_card_adds_capacity_not_speed() -> None:
    """8B F16, 2 x RTX 3090 by layer split: 1.007 times one card (XiongjieDai, tg512)."""
    both = machine(card(0), card(1))
    work = Workload(context=4096, prompt=512, output=512)
    spec = llama_spec(dtype="F16")
    said = []
    for pins in ({"devices": ("CUDA0",)}, {"tensor_split": (1.0, 1.0)}):
        plan = solve(spec, both, work, pins)
        assert isinstance(plan, Plan)
        said.append(forecast(spec, plan, both, work).decode_tok_s.mid)
    assert said[1] / said[0] == pytest.approx(1.007, abs=0.03)


def test_thirty_two_streams_touch_no_more_than_55_experts() -> None:
    """gpt-oss-120b on a GB10: 102 ms a step (llama.cpp benches/dgx-spark.md, 2f68ce7cf); uniform says 82."""
    assert distinct_experts(128, 4, 32) <= 55
    assert distinct_experts(128, 4, 32, skew=0.0) == pytest.approx(81.7, abs=0.1)


@pytest.mark.parametrize(
    ("bandwidth", "flops", "plain", "drafted", "accepted", "measured"),
    [
        (1792e9, 419e12, 74.5, 4, 0.69, 169.1),  # RTX 5090, aggregate 1860/2696
        (936.2e9, 142.4e12, 41.3, 2, 0.78, 63.5),  # RTX 3090, b10450, acceptance 0.69-0.87
        (1010e9, 160e12, 42.0, 2, 0.70, 60.9),  # RTX 3090 Ti, acceptance 0.47-0.93
    ],
)
def test_what_guessing_ahead_brings_a_27b(  # noqa: PLR0917 - one column each
    bandwidth: float, flops: float, plain: float, drafted: int, accepted: float, measured: float
) -> None:
    """Qwen3.8-27B with its own head (sudoingX/qwen38-mtp @c7bc415): a step that drafts 4 costs 1.66 on a 5090."""
    e = CLASSES[CardClass.GEFORCE]
    read = 16.5e9

    def step(factor: float, batch: int) -> float:
        return decode_step_s(
            Rates(bandwidth=bandwidth, flops=flops, efficiency=with_factor(e, factor)),
            read_bytes=read,
            kv_bytes=65_536 * 500,
            layers=64,
            flops_per_token=52e9,
            batch=batch,
            packed_weights=26e9,
            hidden=5120,
        )

    factor = step(1.0, 1) * plain
    head = 1.4e9 / (e.memory * factor * bandwidth)  # one block and the output matrix
    found = guess(
        plain_s=step(factor, 1),
        check_s=step(factor, 1 + drafted),
        draft_pass_s=PASS_S + head,
        drafted=drafted,
        accepted=accepted,
    )
    assert 1 / found.token_s == pytest.approx(measured, rel=0.20)
    if drafted == 4:
        assert found.step_s / found.plain_s == pytest.approx(1.66, rel=0.15)


def _pair(link: str, *, prompt: int) -> Forecast:
    on = parse_machine(f"2x RTX 3090 {link} + 64GiB".replace("  ", " "), load_catalogue())
    settings = VllmSettings(tensor_parallel=2, max_model_len=16_384)
    plan = follow_vllm(_vllm_8b(), on, settings, prompt=prompt, output=256)
    assert isinstance(plan, Plan)
    return forecast(_vllm_8b(), plan, on, replace(plan.workload, users=1))


def test_nvlink_helps_prompts_first_and_a_single_stream_hardly() -> None:
    """2 x RTX 3090, vLLM TP 2: decode +1.9-3.8 %, prompts +35-49 % (club-3090 issue 698)."""
    slow, fast = _pair("", prompt=10_000), _pair("nvlink", prompt=10_000)
    assert 1.0 < fast.decode_tok_s.mid / slow.decode_tok_s.mid < 1.15
    assert 1.15 < fast.prefill_tok_s.mid / slow.prefill_tok_s.mid < 2.0


def test_an_8192_token_chunk_of_a_70b_moves_21_gb() -> None:
    """160 all-reduces of 134 MB: 1.1 s on a pair of L40S (aiconfigurator, NCCL tables)."""
    l40s = Fabric(Wire.PCIE_P2P, 31.5e9)
    assert 160 * l40s.all_reduce_s(8192 * 8192 * 2, 2) == pytest.approx(1.1, rel=0.15)


def test_a_token_of_a_70b_pays_a_millisecond_for_two_nvlinked_h100() -> None:
    """160 all-reduces of 16 KB: about 1 ms with CUDA graphs, about 7 ms without (aiconfigurator tables)."""
    h100 = Fabric(Wire.NVLINK, 450e9)
    assert 160 * h100.all_reduce_s(16_384, 2) == pytest.approx(1e-3, rel=0.35)
    assert 160 * h100.all_reduce_s(16_384, 2, graph=False) == pytest.approx(7e-3, rel=0.35)


def test_a_pair_on_pcie3_x8_is_faster_cut_by_tensors_than_by_layers() -> None:
    """2 x RTX 5060 Ti, Qwen3.8-27B Q4: 22.1 tok/s by layers, 37.1 by tensors (sudoingX/qwen38-mtp @c7bc415)."""
    x8 = PcieLink(generation=3, lanes=8)
    both = machine(*(
        replace(
            card(i, gib=16, bandwidth=448e9, flops=47.4e12, tdp=180, name="GeForce RTX 5060 Ti 16 GB"), pcie=x8
        )
        for i in range(2)
    ))  # fmt: skip
    spec = llama_spec(layers=64, embedding=5120, heads=24, kv_heads=4, feed_forward=17408, vocab=248_320)
    work = Workload(context=4096, prompt=512, output=512)
    said = []
    for mode in ("layer", "tensor"):
        settings = LlamaCppSettings(n_ctx=4096, n_parallel=1, n_gpu_layers=99, split_mode=mode)
        plan = follow(spec, both, settings, work)
        assert isinstance(plan, Plan)
        said.append(forecast(spec, plan, both, work).decode_tok_s.mid)
    assert said[1] / said[0] == pytest.approx(37.1 / 22.1, rel=0.15)


def test_a_pair_of_3090_reads_a_27b_in_4_bits_as_measured() -> None:
    """vLLM 0.24, TP 2 over NVLink, a prompt of 10,000 tokens: 1,956 tok/s at 250 W (club-3090 issue 698)."""
    ampere = 71.2e12 * COMPUTE["16"]
    gemm_s = 10_000 * 2 * 26e9 / 2 / ampere
    nvlink = Fabric(Wire.NVLINK, 56.25e9)
    sums_s = 5 * 128 * nvlink.all_reduce_s(2048 * 5120 * 2, 2)
    assert 10_000 / (gemm_s + sums_s) == pytest.approx(1956, rel=0.25)
