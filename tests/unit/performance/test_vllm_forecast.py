"""vLLM plans: what moves the forecast, and which way."""

from dataclasses import replace
from typing import Any

import pytest

from specs import card as any_card
from specs import host, machine, read
from terazi.hardware.machine import Device, Link, Machine
from terazi.memory.vllm.settings import Speculation, VllmSettings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.calibration import Calibration, DeviceCalibration
from terazi.performance.forecast import Forecast, forecast, score
from terazi.performance.many_users import users_within
from terazi.placement.plan import Plan
from terazi.placement.vllm import follow_vllm
from vllm_cases import CONFIGS, llama

SPEC: ModelSpec = llama({
    **CONFIGS["llama-3.1-8b"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
})  # fmt: skip
H100 = {"name": "H100 SXM5 80 GB", "gib": 80, "bandwidth": 3350e9, "flops": 989e12, "tdp": 700}


def card(number: int, **figures: Any) -> Device:
    return replace(any_card(number, **figures), backend="cuda")


def _h100(count: int) -> Machine:
    cards = tuple(card(i, **H100) for i in range(count))
    links = tuple(
        Link(a=a.id, b=b.id, kind="nvlink", bandwidth=read(450e9)) for a in cards for b in cards if a.id < b.id
    )
    return replace(machine(*cards), links=links)


def _plan(on: Machine, **settings: Any) -> Plan:
    plan = follow_vllm(SPEC, on, VllmSettings(max_model_len=8192, **settings), prompt=1024, output=512)
    assert isinstance(plan, Plan)
    return plan


def _said(on: Machine, users: int = 1, *, prompt: int = 1024, output: int = 512, **settings: Any) -> Forecast:
    work = Workload(context=8192, users=users, prompt=prompt, output=output)
    return forecast(SPEC, _plan(on, **settings), on, work)


def test_an_8b_on_an_h100_as_measured() -> None:
    """ML.ENERGY v3, Llama 3.1 8B bf16: 1,070 tok/s with 8 streams, 5,147 with 64 (short chats)."""
    on = _h100(1)
    for users, measured in ((8, 1070), (64, 5147)):
        said = _said(on, users, prompt=250, output=350).throughput_tok_s
        assert said.low <= measured <= said.high
    assert "this very card" in _said(on).basis[0]


def test_more_ranks_are_faster_but_never_as_much_as_they_are() -> None:
    one = _said(_h100(1)).decode_tok_s.mid
    four = _said(_h100(4), tensor_parallel=4).decode_tok_s.mid
    assert 1.3 < four / one < 4


def test_stages_add_capacity_not_speed_for_one_stream() -> None:
    one = _said(_h100(1)).decode_tok_s.mid
    two = _said(_h100(2), pipeline_parallel=2).decode_tok_s.mid
    assert two == pytest.approx(one, rel=0.10)
    many = _said(_h100(2), 64, pipeline_parallel=2).throughput_tok_s.mid
    assert many > 0.8 * _said(_h100(1), 64).throughput_tok_s.mid


def test_copies_share_the_users() -> None:
    one, two = _said(_h100(1), 64), _said(_h100(2), 64, data_parallel=2)
    assert two.itl_s.mid < one.itl_s.mid
    assert two.throughput_tok_s.mid > 1.2 * one.throughput_tok_s.mid


def test_graphs_streamed_weights_and_depth_cost_what_they_must() -> None:
    on = machine(card(0, gib=24))
    plain = _said(on)
    assert _said(on, enforce_eager=True).decode_tok_s.mid < 0.95 * plain.decode_tok_s.mid
    # four of sixteen GB cross PCIe 4 x16 at 31.5 GB/s: 127 ms or more a token
    streamed = _said(on, cpu_offload_bytes=4 << 30)
    assert streamed.decode_tok_s.mid < 1 / 0.127
    assert any("cross the slot" in b for b in streamed.basis)
    assert _said(on, prompt=7000).decode_tok_s.mid < plain.decode_tok_s.mid


def test_users_wait_share_and_stall() -> None:
    on = _h100(1)
    one, many = _said(on), _said(on, 64)
    assert many.ttft_s.mid > one.ttft_s.mid
    assert many.itl_s.mid > one.itl_s.mid
    assert many.throughput_tok_s.mid > 10 * one.throughput_tok_s.mid
    assert 0 < many.prefill_share < 1
    assert any("longest pause" in b for b in many.basis)
    crowded = _said(on, 5000)
    assert any("wait" in b for b in crowded.basis)
    assert crowded.ttft_s.mid > 5 * many.ttft_s.mid


def test_a_cached_prompt_is_answered_sooner() -> None:
    on = _h100(1)
    work = Workload(context=8192, prompt=4096, output=128)
    cold, warm = (forecast(SPEC, _plan(on), on, work, cached=cached) for cached in (0, 3584))
    assert warm.ttft_s.mid < 0.5 * cold.ttft_s.mid
    assert warm.decode_tok_s.mid == pytest.approx(cold.decode_tok_s.mid)


def test_guessing_pays_for_one_stream_and_fades_with_load() -> None:
    on = machine(card(0, gib=24))
    guessing = Speculation(method="mtp", tokens=3)

    def gain(users: int) -> float:
        work = Workload(context=8192, users=users, prompt=128, output=128)
        with_it = forecast(SPEC, _plan(on, speculation=guessing), on, work, accepted=0.7)
        return with_it.throughput_tok_s.mid / forecast(SPEC, _plan(on), on, work).throughput_tok_s.mid

    assert 1.5 < gain(1) < 3.1
    assert gain(16) < gain(1)


def test_users_within_limits_are_those_that_the_forecast_shows() -> None:
    on = _h100(1)
    plan, work = _plan(on), Workload(context=8192, prompt=1024, output=512)
    most = users_within(SPEC, plan, on, work, itl_s=0.025, ttft_s=2.0)
    assert most >= 1
    fits = forecast(SPEC, plan, on, replace(work, users=most))
    beyond = forecast(SPEC, plan, on, replace(work, users=most + 1))
    assert fits.itl_s.mid <= 0.025
    assert fits.ttft_s.mid <= 2.0
    assert beyond.itl_s.mid > 0.025 or beyond.ttft_s.mid > 2.0
    assert users_within(SPEC, plan, on, work, itl_s=1e-4) == 0
    said = forecast(SPEC, plan, on, replace(work, users=most, itl_limit_s=0.025, ttft_limit_s=2.0)).users_at_slo
    assert said is not None
    assert said.low <= said.mid == most <= said.high


def test_a_calibration_counts_before_the_table() -> None:
    on = _h100(1)
    half = DeviceCalibration(
        device="CUDA0", name="H100 SXM5 80 GB", decode_bytes_per_s=1e12, prefill_flops_per_s=1e14, points=8
    )
    known = Calibration(
        machine="m", engine="vllm", build="0.32.0", measured_at="2026-11-30T00:00:00Z", devices=(half,)
    )
    work = Workload(context=8192, prompt=1024, output=512)
    table, own = (forecast(SPEC, _plan(on), on, work, calibration=c) for c in (None, known))
    assert own.decode_tok_s.mid < 0.5 * table.decode_tok_s.mid
    assert own.decode_tok_s.high / own.decode_tok_s.low < table.decode_tok_s.high / table.decode_tok_s.low
    assert "calibrated on this machine" in own.basis[0]


def test_the_cpu_build_has_a_wide_forecast_and_no_watts() -> None:
    on = Machine(name="vm", host=host(gib=64, cores=8))
    said = _said(on, kv_cache_memory_bytes=4 << 30)
    assert said.decode_tok_s.high / said.decode_tok_s.low > 4
    assert said.power_w is None


def test_the_solver_is_told_which_plan_serves_more() -> None:
    on = _h100(4)
    judge = score(SPEC, on, Workload(context=8192, users=64, prompt=1024, output=512))
    assert judge(_plan(on, tensor_parallel=4)) > judge(_plan(on))
