"""The solver against the plans that the engine's own ``llama-fit-params`` makes, on unequal stand-in cards.

All of it, four sets of cards for each of fifteen models, is ``benchmarks/bench_engine_fit.py``.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmark_scripts import script
from fit_rivals import CARDS, compare
from llama_engine import rpc_servers
from terazi.models.sources import load_model
from terazi.placement.plan import Plan, Verdict

pytestmark = pytest.mark.e2e

bench = script("bench_engine_fit")
CASES = {
    "llama-8b": "two, a part",
    "gemma-3-27b": "three, all fits",
    "mixtral-8x7b": "three, a part",
    "baichuan2-13b": "two, slow first",
    "smallthinker-21b": "two, a part",
    "trinity-mini": "three, a part",
    "laguna-xs": "two, a part",
    "mellum2-12b": "two, slow first",
    "granite-4.0-h-small": "two, a part",
    "lfm2-8b-a1b": "two, a part",
    "minicpm3-4b": "three, a part",
    "cohere2-moe-30b": "three, a part",
}


@pytest.fixture(scope="module")
def endpoints() -> Iterator[tuple[str, ...]]:
    with rpc_servers(3) as found:
        yield found


@pytest.mark.parametrize("name", CASES)
def test_never_holds_less_and_is_at_least_as_fast(name: str, endpoints: tuple[str, ...], tmp_path: Path) -> None:
    path = bench.written(tmp_path, name)
    found = compare(path, load_model(path), endpoints, CARDS[CASES[name]])
    assert isinstance(found.ours, Plan)
    if found.over:  # the engine's own plan has no room for what it takes while it loads
        return
    assert found.theirs is not None
    assert found.ours.verdict is Verdict.FITS or found.theirs.verdict is not Verdict.FITS
    assert found.gain >= -1e-9, found.said
