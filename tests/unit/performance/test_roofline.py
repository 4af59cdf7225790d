"""The formulas against figures that others published (sources in the tests)."""

from dataclasses import replace

import pytest

from terazi.performance.efficiency import CLASSES, CardClass
from terazi.performance.fit import Observation, fit_decode, leave_one_card_out, predict_tok_s, quantile
from terazi.performance.roofline import SCORE_BYTES, Efficiency, PromptWork, Rates, decode_step_s, prompt_s

IDEAL = Rates(bandwidth=1e9, flops=1e12, efficiency=Efficiency(memory=1.0, layer_s=0.0, compute=1.0))


def test_decode_on_an_ideal_card_is_bytes_over_bandwidth() -> None:
    assert decode_step_s(
        IDEAL, read_bytes=4e8, kv_bytes=1e8, layers=10, flops_per_token=1e9, batch=1
    ) == pytest.approx(0.5)


def test_more_streams_pay_for_their_operations() -> None:
    one = decode_step_s(IDEAL, read_bytes=1e9, kv_bytes=0, layers=0, flops_per_token=1e9, batch=1)
    ten = decode_step_s(IDEAL, read_bytes=1e9, kv_bytes=0, layers=0, flops_per_token=1e9, batch=10)
    assert ten - one == pytest.approx(9e9 / 1e12)


def test_dense_batch_on_gb10() -> None:
    """Qwen2.5-7B Q8_0: 29.2 tok/s alone, 593 in all at 32 streams of 512 (llama.cpp benches/dgx-spark, 2025)."""
    spark = Rates(bandwidth=273.2e9, flops=125e12, efficiency=CLASSES[CardClass.SOC])
    kv = 57344 * 528
    alone = 1 / decode_step_s(spark, read_bytes=7.52e9, kv_bytes=kv, layers=28, flops_per_token=14.1e9, batch=1)
    assert alone == pytest.approx(29.2, rel=0.1)
    many = 32 / decode_step_s(
        spark, read_bytes=7.52e9, kv_bytes=32 * kv, layers=28, flops_per_token=14.1e9, batch=32, hidden=3584
    )
    assert many == pytest.approx(593, rel=0.1)


def test_short_prompt_is_bound_by_the_weights_passage() -> None:
    short = PromptWork(tokens=8, batches=1, layers=0, hidden=64, flops=1e9, read_bytes=1e9)
    assert prompt_s(IDEAL, short) == pytest.approx(1.0)
    long = PromptWork(tokens=1024, batches=2, layers=0, hidden=64, flops=1e13, read_bytes=1e9)
    assert prompt_s(IDEAL, long) == pytest.approx(10.0)


def test_up_to_eight_tokens_are_multiplied_one_by_one_on_a_3090() -> None:
    """8B Q4_0, 1 to 8 tokens at once: 155, 277, 390, 469, 515, 529, 559, 571 tok/s (llama.cpp PR 15802)."""
    card = Rates(bandwidth=936.2e9, flops=142.4e12, efficiency=CLASSES[CardClass.GEFORCE])
    for batch, measured in ((1, 155.02), (2, 277.36), (4, 468.95), (8, 570.67)):
        step = decode_step_s(
            card,
            read_bytes=4.0e9,  # the output matrix is for the last token alone
            kv_bytes=131072 * 256,
            layers=32,
            flops_per_token=15e9,
            batch=batch,
            packed_weights=7.5e9,
        )
        assert batch / step == pytest.approx(measured, rel=0.15)


def test_without_flash_attention_a_long_prompt_moves_its_scores() -> None:
    """RTX 3090, 8B Q4_K_M, May 2024: 4,030 tok/s at 512 tokens, 2,527 at 8,192."""
    card = Rates(bandwidth=936.2e9, flops=142.4e12, efficiency=CLASSES[CardClass.GEFORCE])

    def rate(tokens: int) -> float:
        pairs = 32 * tokens * tokens / 2
        work = PromptWork(
            tokens=tokens,
            batches=tokens // 512,
            layers=32,
            hidden=4096,
            flops=15e9 * tokens + 4 * 4096 * pairs,
            read_bytes=4.625e9,
            packed_weights=7.5e9,
            score_bytes=SCORE_BYTES * 32 * pairs,
        )
        return tokens / prompt_s(card, work)

    assert rate(512) == pytest.approx(4030, rel=0.1)
    assert rate(8192) == pytest.approx(2527, rel=0.1)


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
