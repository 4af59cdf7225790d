"""The shipped constants against the measured table, each card held out of the fit that judges it.

The table is ``benchmarks/data/measured_speed.csv`` (public llama.cpp runs, each with its source). The bounds are
what the model reaches now with a little slack, so that a change for the worse fails; the rule of thumb that it has
to beat is "55 % of the bandwidth".
"""

import importlib.util
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest

from terazi.performance import efficiency
from terazi.performance.fit import Observation, fit_decode, log_error

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fit_speed.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_speed", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fit_speed"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def single(bench: ModuleType) -> list[dict[str, str]]:
    return [row for row in bench.load() if bench.is_single_decode(row)]


@pytest.fixture(scope="module")
def residuals(bench: ModuleType, single: list[dict[str, str]]) -> dict[str, tuple[float, ...]]:
    found: dict[str, tuple[float, ...]] = bench.held_out(single)
    return found


def _error(log: float) -> float:
    return abs(math.exp(-log) - 1)


def test_table_is_what_it_says(bench: ModuleType, single: list[dict[str, str]]) -> None:
    assert len({row["card"] for row in single}) >= 25
    assert all(row["source"].startswith(("http", "r/")) for row in bench.load())
    anchor = [
        r for r in single if r["card"] == "GeForce RTX 3090" and r["tokens"] == "512" and r["quant"] == "Q4_K_M"
    ]
    assert anchor[0]["tok_s"] == "115.42"


def test_decode_error_of_a_card_that_was_never_seen(residuals: dict[str, tuple[float, ...]]) -> None:
    rows = statistics.median(_error(e) for logs in residuals.values() for e in logs)
    cards = statistics.median(_error(statistics.median(logs)) for logs in residuals.values())
    assert rows <= 0.10
    assert cards <= 0.12


def test_it_beats_the_constant_rule_by_far(
    bench: ModuleType, single: list[dict[str, str]], residuals: dict[str, tuple[float, ...]]
) -> None:
    rule = statistics.median(_error(log_error(bench.observation(r), 0.55, 0.0)) for r in single)
    ours = statistics.median(_error(e) for logs in residuals.values() for e in logs)
    assert ours < 0.5 * rule


def test_intervals_cover_eight_of_ten(
    bench: ModuleType, single: list[dict[str, str]], residuals: dict[str, tuple[float, ...]]
) -> None:
    inside = total = 0.0
    for row_card, logs in residuals.items():
        card_class = efficiency.CardClass(next(r["card_class"] for r in single if r["card"] == row_card))
        thin = card_class in efficiency.THIN_CLASSES
        ground = efficiency.Ground.THIN_CLASS if thin else efficiency.Ground.UNSEEN_CARD
        low, high = efficiency.DECODE_SPREAD[ground]
        inside += sum(low <= math.exp(e) <= high for e in logs) / len(logs)
        total += 1
    assert inside / total >= 0.8
    low, high = efficiency.DECODE_SPREAD[efficiency.Ground.SAME_CARD]
    known = bench.within_card(single)
    assert sum(low <= math.exp(e) <= high for e in known) / len(known) >= 0.78


def test_shipped_constants_are_those_of_the_fit(bench: ModuleType, single: list[dict[str, str]]) -> None:
    pools: dict[str, list[Observation]] = defaultdict(list)
    for row in single:
        pools[efficiency.DECODE_POOL[efficiency.CardClass(row["card_class"])]].append(bench.observation(row))
    for name in ("nvidia", "hbm", "apple", "soc"):
        eta, layer_s = fit_decode(pools[name])
        shipped = [efficiency.CLASSES[c] for c, pool in efficiency.DECODE_POOL.items() if pool == name]
        for e in shipped:
            assert e.memory == pytest.approx(eta, abs=0.021)
            assert e.layer_s == pytest.approx(layer_s, abs=1.1e-5)


def test_shipped_card_factors_are_those_of_the_table(bench: ModuleType, single: list[dict[str, str]]) -> None:
    logs: dict[str, list[float]] = defaultdict(list)
    for row in single:
        e = efficiency.CLASSES[efficiency.CardClass(row["card_class"])]
        logs[row["card"]].append(log_error(bench.observation(row), e.memory, e.layer_s))
    cards = {card: math.exp(statistics.median(v)) for card, v in logs.items() if not card.startswith("Core")}
    assert set(cards) == set(efficiency.CARD_FACTOR)
    for card, factor in cards.items():
        assert efficiency.CARD_FACTOR[card] == pytest.approx(factor, abs=0.011), card


def test_card_names_are_the_catalogues(bench: ModuleType) -> None:
    from terazi.hardware.probe.catalogue import load_catalogue

    names = {record.name for record in load_catalogue().records}
    assert set(efficiency.CARD_FACTOR) <= names
