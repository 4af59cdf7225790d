"""The shipped constants against the measured table, each card held out of the fit that judges it.

The table is ``benchmarks/data/measured_speed.csv`` (public llama.cpp runs, each with its source). The bounds are
what is promised: 10 % decode and 20 % prompts for single cards and layer splits, intervals of 80 % that cover
75 to 90 % of the rows. The rules of thumb that it has to beat are "55 % of the bandwidth" and llmfit's.
"""

import math
import statistics
from types import ModuleType

import pytest

from benchmark_scripts import script
from terazi.performance import card_factors, efficiency
from terazi.performance.efficiency import Ground
from terazi.performance.fit import log_error

Rows = list[dict[str, str]]
Residuals = dict[str, tuple[float, ...]]


@pytest.fixture(scope="module")
def fit() -> ModuleType:
    return script("fit_speed")


@pytest.fixture(scope="module")
def rows() -> ModuleType:
    return script("speed_rows")


@pytest.fixture(scope="module")
def decode(rows: ModuleType) -> Rows:
    return [row for row in rows.load() if rows.is_decode(row)]


@pytest.fixture(scope="module")
def prompts(rows: ModuleType) -> Rows:
    return [row for row in rows.load() if rows.is_prompt(row)]


@pytest.fixture(scope="module")
def held_decode(fit: ModuleType, decode: Rows) -> Residuals:
    found: Residuals = fit.held_out_decode(decode)
    return found


@pytest.fixture(scope="module")
def held_prompts(fit: ModuleType, prompts: Rows) -> Residuals:
    found: Residuals = fit.held_out_prompts(prompts)
    return found


def _cards(residuals: Residuals) -> float:
    return statistics.median(abs(math.exp(-statistics.median(logs)) - 1) for logs in residuals.values())


def test_table_is_what_it_says(rows: ModuleType, decode: Rows) -> None:
    assert len({row["card"] for row in decode}) >= 30
    assert all(row["source"].startswith(("http", "r/")) for row in rows.load())
    anchor = [
        r for r in decode if r["card"] == "GeForce RTX 3090" and r["tokens"] == "512" and r["quant"] == "Q4_K_M"
    ]
    assert anchor[0]["tok_s"] == "115.42"


def test_decode_of_a_card_that_was_never_seen(fit: ModuleType, decode: Rows, held_decode: Residuals) -> None:
    by_count = fit.split_by_count(decode, held_decode)
    assert fit.median_error(by_count[False]) <= 0.10
    assert fit.median_error(by_count[True]) <= 0.10
    assert _cards(held_decode) <= 0.10


def test_prompts_on_a_card_that_was_never_seen(fit: ModuleType, prompts: Rows, held_prompts: Residuals) -> None:
    by_count = fit.split_by_count(prompts, held_prompts)
    assert fit.median_error(by_count[False]) <= 0.20
    assert fit.median_error(by_count[True]) <= 0.20
    assert _cards(held_prompts) <= 0.20


def test_it_beats_the_rules_of_thumb_by_far(
    fit: ModuleType, rows: ModuleType, decode: Rows, held_decode: Residuals
) -> None:
    ours = fit.median_error(fit.flat(held_decode))
    single = [r for r in decode if r["count"] == "1"]
    constant = fit.median_error([log_error(rows.observation(r), 0.55, 0.0) for r in single])
    llmfit = statistics.median(abs(rows.llmfit_tok_s(r) / float(r["tok_s"]) - 1) for r in single)
    assert ours < 0.5 * constant
    assert ours < 0.5 * llmfit


@pytest.mark.parametrize("kind", ["decode", "prompt"])
def test_intervals_cover_eight_of_ten(  # noqa: PLR0917 - pytest hands the fixtures over
    kind: str,
    fit: ModuleType,
    decode: Rows,
    prompts: Rows,
    held_decode: Residuals,
    held_prompts: Residuals,
) -> None:
    table, held = (decode, held_decode) if kind == "decode" else (prompts, held_prompts)
    spreads = efficiency.DECODE_SPREAD if kind == "decode" else efficiency.PREFILL_SPREAD
    log = fit.shipped_decode_log if kind == "decode" else fit.shipped_prompt_log
    for ground, logs in fit.grounds(held, table).items():
        assert 0.75 <= fit.coverage(logs, spreads[ground]) <= 0.90, ground
    single = [r for r in table if r["count"] == "1"]
    assert 0.75 <= fit.coverage(fit.within_card(single, log), spreads[Ground.SAME_CARD]) <= 0.90


def test_shipped_constants_are_those_of_the_fit(fit: ModuleType, rows: ModuleType, decode: Rows) -> None:
    for kind, shipped in efficiency.CLASSES.items():
        pool = efficiency.DECODE_POOL[kind]
        if pool == "cpu":
            continue  # one row
        own = [
            rows.observation(r)
            for r in decode
            if r["count"] == "1" and fit.pool_of(r, efficiency.DECODE_POOL) == pool
        ]
        eta, layer_s = fit.fit_decode(own)
        assert shipped.memory == pytest.approx(eta, abs=0.021), kind
        assert shipped.layer_s == pytest.approx(layer_s, abs=1.1e-5), kind


def test_shipped_prompt_constants_are_those_of_the_fit(fit: ModuleType, prompts: Rows) -> None:
    for kind, shipped in efficiency.CLASSES.items():
        pool = efficiency.PROMPT_POOL.get(kind)
        if pool is None or pool == "soc":
            continue  # a single card
        own = [
            r
            for r in prompts
            if r["count"] == "1" and r["experts"] == "0" and fit.pool_of(r, efficiency.PROMPT_POOL) == pool
        ]
        assert shipped.compute == pytest.approx(fit.fit_prompts(own, pool).compute, rel=0.03), kind


@pytest.mark.parametrize("kind", ["decode", "prompt"])
def test_shipped_card_factors_are_those_of_the_table(
    kind: str, fit: ModuleType, decode: Rows, prompts: Rows
) -> None:
    table = decode if kind == "decode" else prompts
    log = fit.shipped_decode_log if kind == "decode" else fit.shipped_prompt_log
    shipped = card_factors.DECODE_FACTOR if kind == "decode" else card_factors.PROMPT_FACTOR
    single = [r for r in table if r["count"] == "1" and not r["card"].startswith("Core")]
    found = fit.factors(single, log)
    assert set(found) == set(shipped)
    for card, factor in found.items():
        assert shipped[card] == pytest.approx(factor, abs=0.011), card


def test_card_names_are_the_catalogues() -> None:
    from terazi.hardware.probe.catalogue import load_catalogue

    names = {record.name for record in load_catalogue().records}
    assert set(card_factors.DECODE_FACTOR) | set(card_factors.PROMPT_FACTOR) <= names
