"""An engine that loaded into RAM what was planned for a card must not serve."""

from dataclasses import replace

import pytest

from terazi.engines.base import Expectation, LaunchSpec
from terazi.engines.llama_cpp.observe import LoadedBuffer, LoadReport
from terazi.engines.placed import misplaced

GIB = 1 << 30
SPEC = LaunchSpec(
    plan_id="p",
    engine="llama.cpp",
    model_name="m",
    argv=("llama-server",),
    base_url="",
    api_key="",
    expectations=(
        Expectation(term="weights", device="CUDA0", bytes=4 * GIB),
        Expectation(term="weights", device="Host", bytes=GIB),
        Expectation(term="kv", device="CUDA0", bytes=GIB),
    ),
)


def report(**weights: int) -> LoadReport:
    """Weights by device."""
    buffers = tuple(LoadedBuffer(term="weights", buffer=d, device=d, bytes=n) for d, n in weights.items())
    return LoadReport(buffers=buffers, offloaded=(0, 33), loaded=True)


def test_all_in_ram_is_said_with_figures() -> None:
    reason = misplaced(SPEC, report(Host=5 * GIB))
    assert reason is not None
    assert "0 of 4096 MiB of weights on CUDA0" in reason
    assert "offloaded 0 of 33 layers" in reason


def test_one_of_two_cards_that_is_missing_counts() -> None:
    two = replace(SPEC, expectations=(*SPEC.expectations, Expectation(term="weights", device="CUDA1", bytes=GIB)))
    assert misplaced(two, report(CUDA0=4 * GIB, CUDA1=GIB, Host=GIB)) is None
    reason = misplaced(two, report(CUDA0=4 * GIB, Host=2 * GIB))
    assert reason is not None
    assert "CUDA1" in reason
    assert "on CUDA0" not in reason


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (SPEC, report(CUDA0=4 * GIB, Host=GIB)),
        (SPEC, report(CUDA0=4 * GIB - 5000, Host=GIB)),
        (SPEC, None),
        (SPEC, LoadReport()),
        (
            SPEC,
            LoadReport(buffers=(LoadedBuffer(term="weights", buffer="x", device="Meta(CUDA0,CUDA1)", bytes=GIB),)),
        ),
        (SPEC, report(Host=GIB, **{"CUDA0[somewhere]": 4 * GIB})),
        (replace(SPEC, elsewhere=True), report(Host=5 * GIB)),
        (replace(SPEC, expectations=(Expectation(term="weights", device="Host", bytes=GIB),)), report(Host=GIB)),
    ],
)
def test_as_planned_unknown_or_allowed_is_no_reason(spec: LaunchSpec, found: LoadReport | None) -> None:
    assert misplaced(spec, found) is None
