"""Seconds from timed kernels: whole models against sums made by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, lists

import published_twins
from specs import card, machine, smollm2
from terazi.hardware.machine import Machine
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.calibration import Calibration, DeviceCalibration, KernelTime, LinkCalibration
from terazi.performance.forecast import Forecast, forecast
from terazi.performance.kernels import REAL_OVER_MADE_UP, at_batch, kernel_of
from terazi.performance.links import BOUNDARY_S
from terazi.performance.timing import Timing
from terazi.placement.plan import Plan
from terazi.placement.solve import solve

#: Elements a block: q and o, k and v, three of the feed-forward. Bytes of q4_0: 18 for 32.
BLOCKS = 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536) * 18 / 32
OUTPUT = 49_152 * 576 * 18 / 32
ROWS = 30 * (2 * 576 + 2 * 192 + 2 * 1536 + 576)
WINDOWED = published_twins.load()["gemma-4-e2b"].spec
LAYERS = ((1, 20e-6), (16, 80e-6), (256, 900e-6))


def kernel(dtype: str, per_byte: float) -> KernelTime:
    rows = ((1, 4e-9), (16, 40e-9), (256, 500e-9))
    return KernelTime(dtype, ((1, per_byte), (16, 4 * per_byte), (256, 50 * per_byte)), rows)


OWN = DeviceCalibration(
    device="Host",
    name="Test CPU",
    kernels=(kernel("q4_0", 1e-10), kernel("q8_0", 5e-11)),
    layer_batches=LAYERS,
    attention_flops_per_s=20e9,
    step_s=1e-4,
    token_s=5e-5,
    vocab_s=2e-9,
    points=60,
)


def calibration(own: DeviceCalibration) -> Calibration:
    return Calibration(machine="m", engine="llama.cpp", build="b1", measured_at="2026", devices=(own,))


def planned(*, users: int, prompt: int) -> tuple[ModelSpec, Machine, Plan]:
    spec, on = smollm2(), machine()
    plan = solve(spec, on, Workload(context=2048, users=users, prompt=prompt, output=2), {})
    assert isinstance(plan, Plan)
    return spec, on, plan


def said(own: DeviceCalibration | None, *, prompt: int = 64) -> Forecast:
    spec, on, plan = planned(users=1, prompt=prompt)
    used = None if own is None else calibration(own)
    return forecast(spec, plan, on, plan.workload, calibration=used)


def test_a_step_is_the_sum_of_its_parts() -> None:
    """SmolLM2, all q4_0: 59.7 MB in 30 blocks, a tied output of 15.9 MB, 9 heads of 64, 49,152 words."""
    step = (BLOCKS + OUTPUT) * 1e-10 + (ROWS + 49_152) * 4e-9 + 30 * 20e-6
    step *= REAL_OVER_MADE_UP
    step += 30 * 65 * 2 * 9 * 128 / 20e9
    step += 1e-4 + 5e-5 + 49_152 * 2e-9
    assert said(OWN).decode_tok_s.mid == pytest.approx(1 / step, rel=0.01)


def test_a_prompt_passes_the_output_once() -> None:
    step = BLOCKS * 50e-10 + ROWS * 500e-9 + OUTPUT * 1e-10 + 49_152 * 4e-9 + 30 * 900e-6
    step = step * REAL_OVER_MADE_UP + 1e-4
    step += 30 * (256 * 256 / 2) * 2 * 9 * 128 / 20e9
    assert said(OWN, prompt=256).prefill_tok_s.mid == pytest.approx(256 / step, rel=0.01)


def test_sixteen_streams_take_what_sixteen_tokens_at_once_took() -> None:
    step = (BLOCKS + OUTPUT) * 4e-10 + (ROWS + 49_152) * 40e-9 + 30 * 80e-6
    step *= REAL_OVER_MADE_UP
    step += 16 * 30 * 65 * 2 * 9 * 128 / 20e9
    step += 1e-4 + 16 * (5e-5 + 49_152 * 2e-9)
    spec, on, plan = planned(users=16, prompt=64)
    assert Timing.of(spec, plan, on, calibration(OWN)).step(batch=16, depth=65).seconds == pytest.approx(
        step, rel=0.01
    )


def test_another_devices_figures_are_not_used() -> None:
    assert said(replace(OWN, name="another CPU")).decode_tok_s == said(None).decode_tok_s


def test_an_unmeasured_type_takes_the_next_one() -> None:
    kernels = (kernel("q4_K", 1.0), kernel("q8_0", 2.0), kernel("f16", 3.0))
    assert kernel_of(kernels, "iq4_xs").dtype == "q4_K"
    assert kernel_of(kernels, "q6_K").dtype == "q8_0"
    assert kernel_of(kernels, "bf16").dtype == "f16"
    with pytest.raises(ValueError, match="no kernels"):
        kernel_of((), "q4_K")


@given(
    lists(floats(1e-12, 1e-6), min_size=1, max_size=6).map(sorted),
    integers(1, 4000),
    integers(1, 4000),
)
def test_more_tokens_never_take_less(times: list[float], a: int, b: int) -> None:
    batches = [(4**i, s) for i, s in enumerate(times)]
    low, high = sorted((a, b))
    assert at_batch(batches, low) <= at_batch(batches, high) * (1 + 1e-12)


def test_between_and_beyond_the_measured_batches() -> None:
    batches = ((1, 1.0), (5, 2.0), (9, 4.0))
    assert [at_batch(batches, n) for n in (1, 3, 5, 7, 9, 13)] == pytest.approx([1, 1.5, 2, 3, 4, 6])
    with pytest.raises(ValueError, match="no batches"):
        at_batch((), 1)


def test_a_prompt_that_is_broken_passes_its_last_tokens_apart() -> None:
    """Four tokens more at once, without a second row of logits: 24 tokens are 20 and 4."""
    spec, on, plan = planned(users=1, prompt=24)
    timing = Timing.of(spec, plan, on, calibration(OWN))
    assert not timing.checkpoints, "a cache without a window can be rolled back"
    assert timing.break_s(24) == 0.0
    broken = replace(timing, checkpoints=True)
    first, last = timing.prefill(20, logits=False).seconds, timing.prefill(24, 20).seconds
    assert broken.break_s(24) == pytest.approx(first + last - timing.prefill(24).seconds)
    # weights are read once more, the output is not
    assert broken.break_s(24) > 0.5 * BLOCKS * 1e-10
    assert broken.break_s(24) < 0.9 * last
    assert broken.break_s(4) == 0.0, "there is nothing before them"


@pytest.mark.parametrize(
    ("settings", "kept"), [({}, True), ({"swa_full": True}, False), ({"ctx_checkpoints": 0}, False)]
)
def test_a_window_makes_checkpoints_unless_it_is_kept_whole(settings: dict[str, object], *, kept: bool) -> None:
    on = machine()
    plan = solve(WINDOWED, on, Workload(context=2048), settings)
    assert isinstance(plan, Plan)
    assert Timing.of(WINDOWED, plan, on).checkpoints == kept


def test_a_measured_link_takes_the_place_of_the_usual_one() -> None:
    spec, on = smollm2(), machine(card(0), card(1))
    plan = solve(spec, on, Workload(context=2048), {"tensor_split": (1.0, 1.0), "n_gpu_layers": 31})
    assert isinstance(plan, Plan)
    found = [DeviceCalibration(device=d.id, name=d.name) for d in on.devices]
    link = LinkCalibration(a="CUDA1", b="CUDA0", latency_s=5e-3, bytes_per_s=1e9)
    own = replace(calibration(OWN), devices=tuple(found))
    usual = Timing.of(spec, plan, on, own).step(batch=1, depth=64).seconds
    slow = Timing.of(spec, plan, on, replace(own, links=(link,))).step(batch=1, depth=64).seconds
    assert slow - usual == pytest.approx(5e-3 - BOUNDARY_S, rel=0.01)
    # another card than was measured has another link
    strange = replace(own, links=(link,), devices=(found[0], replace(found[1], name="another")))
    assert Timing.of(spec, plan, on, strange).step(batch=1, depth=64).seconds == pytest.approx(usual, rel=1e-6)
