"""Whole forecasts against runs that were measured elsewhere."""

from dataclasses import replace

import pytest

from specs import card, host, llama_70b, llama_spec, machine, read, smollm2
from terazi.hardware.machine import Device, Host, Machine
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.efficiency import CardClass, Ground, classify, speed_of_device, speed_of_host
from terazi.performance.forecast import Forecast, Interval, forecast, score
from terazi.placement.plan import Plan
from terazi.placement.solve import solve

BENCH = Workload(context=8192, prompt=512, output=512)


def _forecast(spec: ModelSpec, on: Machine, work: Workload, **pins: object) -> Forecast:
    plan = solve(spec, on, work, pins)
    assert isinstance(plan, Plan)
    return forecast(spec, plan, on, work)


def _holds(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


def test_llama_8b_q4_on_a_3090() -> None:
    """115.42 tok/s and 4,030 tok/s prompt (XiongjieDai, May 2024, tg512 and pp512)."""
    said = _forecast(llama_spec(), machine(card(0)), BENCH)
    assert _holds(said.decode_tok_s, 115.42)
    assert _holds(said.prefill_tok_s, 4030)
    assert said.decode_tok_s.mid == pytest.approx(115.42, rel=0.15)
    assert "measured runs of this very card" in said.basis[0]


def test_llama_70b_q4_on_two_3090s() -> None:
    """16.57 tok/s by layer split: capacity, not speed."""
    said = _forecast(llama_70b(), machine(card(0), card(1)), BENCH)
    assert _holds(said.decode_tok_s, 16.57)
    assert any("1 hand-over between" in b for b in said.basis)


def test_second_card_adds_nothing_to_a_single_stream() -> None:
    """8B on two 3090s by layer split: 111.67 against 115.42 alone."""
    both = machine(card(0), card(1))
    one = _forecast(llama_spec(), both, BENCH, devices=("CUDA0",))
    two = _forecast(llama_spec(), both, BENCH, tensor_split=(1.0, 1.0))
    assert two.decode_tok_s.mid / one.decode_tok_s.mid == pytest.approx(111.67 / 115.42, abs=0.03)


def test_second_card_helps_long_prompts() -> None:
    """pp4096 on two 3090s: 4,013 against 3,170; on four RTX 6000 Ada 11,735 against 4,495."""
    both = machine(card(0), card(1))
    long = replace(BENCH, prompt=4096)
    one = _forecast(llama_spec(), both, long, devices=("CUDA0",))
    two = _forecast(llama_spec(), both, long, tensor_split=(1.0, 1.0))
    assert 1.2 < two.prefill_tok_s.mid / one.prefill_tok_s.mid < 2


def test_demo_model_on_two_unmeasured_cores() -> None:
    """98 tok/s one stream, 138-205 with 16 streams, on a two-core AVX-512 machine whose RAM nobody timed."""
    vm = Machine(name="vm", host=replace(host(gib=23, cores=2, bandwidth=None), isa=frozenset({"avx2", "avx512f"})))
    one = _forecast(smollm2(), vm, Workload(context=2048, prompt=64, output=128))
    assert _holds(one.decode_tok_s, 98)
    many = _forecast(smollm2(), vm, Workload(context=512, users=16, prompt=64, output=128))
    assert _holds(many.throughput_tok_s, 138)
    assert _holds(many.throughput_tok_s, 205)
    assert "assumed" in one.basis[0]
    assert one.power_w is None
    assert any(b.startswith("no power") for b in one.basis)


def test_cpu_of_known_bandwidth() -> None:
    """A 7B Q4_0 on an i9-13900K with DDR5-6400, eight threads: 18.27 tok/s (llama.cpp issue 34)."""
    spec = llama_spec(kv_heads=32, feed_forward=11008, vocab=32000, dtype="Q4_0", context=4096)
    desk = Machine(name="desk", host=host(gib=64, cores=8, bandwidth=102.4e9))
    said = _forecast(spec, desk, Workload(context=512, prompt=1, output=128))
    assert _holds(said.decode_tok_s, 18.27)


def test_offload_is_bound_by_ram() -> None:
    """Layers in RAM cost their bytes over RAM bandwidth, whatever the card."""
    whole = _forecast(llama_spec(), machine(card(0)), BENCH)
    half = _forecast(llama_spec(), machine(card(0)), BENCH, n_gpu_layers=17)
    ram_s = 16 * 124e6 / 80e9
    assert 1 / half.decode_tok_s.mid > ram_s
    assert half.decode_tok_s.mid < 0.5 * whole.decode_tok_s.mid
    assert half.prefill_tok_s.mid < whole.prefill_tok_s.mid


def test_users_share_the_weights() -> None:
    eight = replace(BENCH, users=8)
    said = _forecast(llama_spec(), machine(card(0)), eight)
    # eight tokens at once of 8B Q4_0 took an RTX 3090 2.2 times as long as one (llama.cpp PR 15802)
    assert said.throughput_tok_s.mid > 3 * said.decode_tok_s.mid
    assert said.itl_s.mid > 1 / said.decode_tok_s.mid
    assert said.kwh_per_mtok is not None
    alone = _forecast(llama_spec(), machine(card(0)), BENCH)
    assert alone.kwh_per_mtok is not None
    assert said.kwh_per_mtok.mid < alone.kwh_per_mtok.mid / 2.5


def test_cost_needs_a_tariff() -> None:
    plan = solve(llama_spec(), machine(card(0)), BENCH, {})
    assert isinstance(plan, Plan)
    free = forecast(llama_spec(), plan, machine(card(0)), BENCH)
    assert free.cost_per_mtok is None
    assert any("tariff" in b for b in free.basis)
    paid = forecast(llama_spec(), plan, machine(card(0)), BENCH, tariff_per_kwh=0.3)
    assert paid.cost_per_mtok is not None
    assert paid.kwh_per_mtok is not None
    assert paid.cost_per_mtok.mid == pytest.approx(0.3 * paid.kwh_per_mtok.mid)


def test_power_cap_slows_decode() -> None:
    free = _forecast(llama_spec(), machine(card(0)), BENCH)
    capped = _forecast(llama_spec(), machine(card(0, cap=200)), BENCH)
    assert capped.decode_tok_s.mid < free.decode_tok_s.mid
    assert capped.power_w is not None
    assert capped.power_w.mid <= 200


def test_model_smaller_than_any_measured_gets_a_wider_interval() -> None:
    def width(interval: Interval) -> float:
        return interval.high / interval.low

    large = _forecast(llama_spec(), machine(card(0)), BENCH)
    small = _forecast(smollm2(), machine(card(0)), BENCH)
    assert width(small.decode_tok_s) > 1.5 * width(large.decode_tok_s)
    assert any("smaller model" in b for b in small.basis)
    assert small.power_w is not None
    assert small.power_w.high <= 350


def test_score_prefers_the_faster_card() -> None:
    slow, fast = card(0, bandwidth=360e9, name="GeForce RTX 3060 12 GB"), card(1, bandwidth=936e9)
    both = machine(slow, fast)
    judge = score(llama_spec(), both, BENCH)
    marks = {}
    for name in ("CUDA0", "CUDA1"):
        plan = solve(llama_spec(), both, BENCH, {"devices": (name,)})
        assert isinstance(plan, Plan)
        marks[name] = judge(plan)
    assert marks["CUDA1"] > 1.5 * marks["CUDA0"]


@pytest.mark.parametrize(
    ("name", "vendor", "expected"),
    [
        ("NVIDIA GeForce RTX 4090", "NVIDIA", CardClass.GEFORCE),
        ("NVIDIA RTX A6000", "NVIDIA", CardClass.PRO),
        ("NVIDIA L40S", "NVIDIA", CardClass.PRO),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA", CardClass.HBM),
        ("NVIDIA H100 80GB HBM3", "NVIDIA", CardClass.HBM),
        ("A40 PCIe", "nvidia", CardClass.PRO),
        ("DGX Spark (GB10)", "nvidia", CardClass.SOC),
        ("Radeon RX 7900 XTX", "amd", CardClass.AMD),
        ("Apple M3 Max (40)", "apple", CardClass.APPLE),
        ("Arc B580", "intel", CardClass.OTHER),
    ],
)
def test_classes(name: str, vendor: str, expected: CardClass) -> None:
    device = replace(card(0, name=name), vendor=vendor, backend="x")
    assert classify(device) is expected


def test_ground_by_what_is_known() -> None:
    def ground(device: Device) -> Ground:
        return speed_of_device(device).ground

    assert ground(card(0, name="NVIDIA GeForce RTX 3090")) is Ground.SAME_CARD
    assert ground(card(0, name="NVIDIA A100-SXM4-80GB")) is Ground.SAME_CARD
    assert ground(card(0, name="GeForce RTX 4090")) is Ground.UNSEEN_CARD
    assert ground(card(0, name="H200 SXM 141 GB")) is Ground.THIN_CLASS
    assert ground(card(0, bandwidth=None, name="Mystery")) is Ground.ASSUMED


def test_card_without_fp16_still_computes() -> None:
    """Pascal lists 0.18 TFLOPS of FP16; llama.cpp computes there in int8 and FP32."""
    p40 = speed_of_device(card(0, name="Tesla P40", bandwidth=347e9, flops=0.18e12))
    assert p40.rates.flops > 5e12


def test_apple_chip_without_a_listed_rate_keeps_its_family_s_balance() -> None:
    """M2 Ultra 27.2 TFLOPS at 819 GB/s, M3 Max 16.4 at 410, M4 4.1 at 120: 33 to 40 operations a byte."""
    listed = speed_of_device(card(0, name="Apple M3 Max (40)", bandwidth=409.6e9, flops=16.4e12))
    newer = replace(card(0, name="Apple M4 Max (16c CPU)", bandwidth=546e9), flops_fp16=read(0.0))
    newer = replace(newer, flops_fp16=replace(newer.flops_fp16, value=None), vendor="apple")
    found = speed_of_device(newer)
    assert found.rates.flops / 546e9 == pytest.approx(listed.rates.flops / 409.6e9, rel=0.2)


def test_measured_ram_is_believed_and_assumed_is_not() -> None:
    def words(h: Host) -> str:
        return speed_of_host(h).words

    assert "assumed" in words(host(bandwidth=None))
    assert speed_of_host(host(bandwidth=None)).ground is Ground.ASSUMED
    known = host(cores=2, bandwidth=80e9)
    assert speed_of_host(known).ground is Ground.THIN_CLASS
    assert speed_of_host(known).rates.bandwidth < 80e9  # two cores can't take that much in
    assert read(1.0).value == 1.0
