"""The shipped vLLM constants against what vLLM was measured to serve.

``benchmarks/data/measured_serving.csv`` (aiconfigurator, H100 SXM, four models, TP 1 to 8, dense and experts, 16, 8
and 4 bits) and ``measured_vllm.csv`` (ML.ENERGY v3, H100; RTX 3090 rows that no constant was fitted to). Promised
are 20 % per token and of throughput, 30 % to the first token.
"""

import math
from types import ModuleType

import pytest

from benchmark_scripts import script
from terazi.performance.efficiency import Ground
from terazi.performance.vllm_cards import FIRST_SPREAD, TOKEN_SPREAD


@pytest.fixture(scope="module")
def fit() -> ModuleType:
    return script("fit_serving")


@pytest.fixture(scope="module")
def runs() -> ModuleType:
    return script("serving_rows")


def test_tables_are_what_they_say(runs: ModuleType) -> None:
    serving = runs.serving_runs()
    assert len(serving) >= 200
    assert {run.cards for run in serving} == {1, 2, 4, 8}
    assert {run.precision for run in serving} == {"bf16", "fp8", "mxfp4"}
    assert len(runs.throughput_runs()) >= 190


def test_time_per_token_and_to_the_first(fit: ModuleType, runs: ModuleType) -> None:
    found = fit.errors(runs.serving_runs())
    assert fit.median_error(found["tpot"]) <= 0.10
    assert fit.median_error(found["ttft"]) <= 0.20


def test_dense_and_experts_alike(fit: ModuleType, runs: ModuleType) -> None:
    for name in (
        "Qwen/Qwen3-32B",
        "openai/gpt-oss-120b",
        "MiniMaxAI/MiniMax-M2.5",
        "meta-llama/Llama-3.1-70B-Instruct",
    ):
        own = [run for run in runs.serving_runs() if run.model == name]
        found = fit.errors(own)
        assert fit.median_error(found["tpot"]) <= 0.20, name
        assert fit.median_error(found["ttft"]) <= 0.30, name


def test_throughput_of_thirteen_models_on_h100(fit: ModuleType, runs: ModuleType) -> None:
    own = [run for run in runs.throughput_runs() if run.card.startswith("H100")]
    assert len({run.model for run in own}) >= 13
    found = fit.errors(own)
    assert fit.median_error(found["tok_s"]) <= 0.15
    assert fit.median_error(found["itl"]) <= 0.15


def test_all_vllm_rows_together(fit: ModuleType, runs: ModuleType) -> None:
    found = fit.errors(runs.throughput_runs())
    assert fit.median_error([*found["tok_s"], *found["itl"]]) <= 0.20


def test_a_card_that_no_constant_was_fitted_to(fit: ModuleType, runs: ModuleType) -> None:
    found = fit.errors([run for run in runs.throughput_runs() if run.card == "GeForce RTX 3090"])
    assert len(found["tok_s"]) >= 12
    assert fit.median_error([*found["tok_s"], *found["itl"]]) <= 0.20


def test_intervals_of_cards_that_no_constant_was_fitted_to(fit: ModuleType, runs: ModuleType) -> None:
    found = fit.errors([run for run in runs.throughput_runs() if not run.card.startswith("H100")])
    logs = [*found["tok_s"], *found["itl"]]
    low, high = TOKEN_SPREAD[Ground.UNSEEN_CARD]
    assert 0.75 <= sum(low <= math.exp(e) <= high for e in logs) / len(logs) <= 0.90


def test_intervals_cover_eight_of_ten(fit: ModuleType, runs: ModuleType) -> None:
    found = fit.errors([*runs.serving_runs(), *(r for r in runs.throughput_runs() if r.card.startswith("H100"))])
    tokens = [*found["tpot"], *found["itl"], *found["tok_s"]]
    for logs, (low, high) in (
        (tokens, TOKEN_SPREAD[Ground.SAME_CARD]),
        (found["ttft"], FIRST_SPREAD[Ground.SAME_CARD]),
    ):
        inside = sum(low <= math.exp(e) <= high for e in logs) / len(logs)
        assert 0.75 <= inside <= 0.90


def test_all_reduces_of_two_ranks_as_measured(fit: ModuleType) -> None:
    """A message of a decode step (16 KB) and of a prompt's chunk (1 MB and more), within a factor of two."""
    for _, ranks, size, seconds, said in fit.all_reduces():
        if ranks == 2 and size >= 16_384:
            assert 0.5 <= said / seconds <= 2.1
