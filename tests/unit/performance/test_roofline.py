"""The formulas against figures that others published (sources in the tests)."""

from dataclasses import replace

import pytest

from terazi.performance.efficiency import CLASSES, CardClass
from terazi.performance.fit import Observation, fit_decode, leave_one_card_out, predict_tok_s, quantile
from terazi.performance.roofline import Efficiency, Rates, decode_step_s, distinct_experts, prefill_s

IDEAL = Rates(bandwidth=1e9, flops=1e12, efficiency=Efficiency(memory=1.0, layer_s=0.0, compute=1.0))


def test_decode_on_an_ideal_card_is_bytes_over_bandwidth() -> None:
    assert decode_step_s(
        IDEAL, read_bytes=4e8, kv_bytes=1e8, layers=10, flops_per_token=1e9, batch=1
    ) == pytest.approx(0.5)


def test_more_streams_pay_for_their_operations() -> None:
    one = decode_step_s(IDEAL, read_bytes=1e9, kv_bytes=0, layers=0, flops_per_token=1e9, batch=1)
    ten = decode_step_s(IDEAL, read_bytes=1e9, kv_bytes=0, layers=0, flops_per_token=1e9, batch=10)
    assert ten - one == pytest.approx(9e9 / 1e12)


def test_uniform_experts_as_published_for_gpt_oss_120b() -> None:
    """128 experts, 4 used: 81.7 distinct at 32 streams; almost twice at two (llama.cpp benches/dgx-spark)."""
    assert distinct_experts(128, 4, 32) == pytest.approx(81.7, abs=0.1)
    assert distinct_experts(128, 4, 1) == pytest.approx(4)
    assert distinct_experts(128, 4, 2) == pytest.approx(7.9, abs=0.1)
    assert distinct_experts(0, 0, 8) == 0


def test_dense_batch_on_gb10() -> None:
    """Qwen2.5-7B Q8_0: 29.2 tok/s alone, 593 in all at 32 streams of 512 (llama.cpp benches/dgx-spark, 2025)."""
    spark = Rates(bandwidth=273.2e9, flops=125e12, efficiency=CLASSES[CardClass.SOC])
    kv = 57344 * 528
    alone = 1 / decode_step_s(spark, read_bytes=7.52e9, kv_bytes=kv, layers=28, flops_per_token=14.1e9, batch=1)
    assert alone == pytest.approx(29.2, rel=0.1)
    many = 32 / decode_step_s(
        spark, read_bytes=7.52e9, kv_bytes=32 * kv, layers=28, flops_per_token=14.1e9, batch=32
    )
    assert many == pytest.approx(593, rel=0.1)


def test_short_prompt_is_bound_by_the_weights_passage() -> None:
    slow = prefill_s(IDEAL, flops=1e9, read_bytes_per_batch=1e9, kv_bytes=0, layers=0, batches=1)
    assert slow == pytest.approx(1.0)
    long = prefill_s(IDEAL, flops=1e13, read_bytes_per_batch=1e9, kv_bytes=0, layers=0, batches=2)
    assert long == pytest.approx(10.0)


@pytest.mark.parametrize(("eta", "layer_s"), [(0.84, 50e-6), (0.72, 130e-6), (0.6, 0.0)])
def test_fit_recovers_the_constants_that_made_the_rows(eta: float, layer_s: float) -> None:
    shapes = [(936e9, 32, 4.6e9), (936e9, 80, 42e9), (448e9, 32, 4.6e9), (2000e9, 32, 15e9), (360e9, 28, 2e9)]
    rows = []
    for i, (bandwidth, layers, read) in enumerate(shapes):
        row = Observation(card=f"c{i % 3}", bandwidth=bandwidth, layers=layers, read_bytes=read, tok_s=1.0)
        rows.append(replace(row, tok_s=predict_tok_s(row, eta, layer_s)))
    found_eta, found_layer_s = fit_decode(rows)
    assert found_eta == pytest.approx(eta, abs=0.011)
    assert found_layer_s == pytest.approx(layer_s, abs=1.1e-5)
    assert set(leave_one_card_out(rows)) == {r.card for r in rows}


def test_fit_without_rows_is_an_error_and_a_lone_card_is_left_out() -> None:
    with pytest.raises(ValueError, match="nothing"):
        fit_decode([])
    row = Observation(card="a", bandwidth=1e12, layers=32, read_bytes=1e10, tok_s=50)
    assert leave_one_card_out([row]) == {}


def test_quantile_interpolates() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.1) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="values"):
        quantile([], 0.5)
