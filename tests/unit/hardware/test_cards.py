"""Reserves and contexts against figures that others published."""

import pytest

from terazi.hardware import cards
from terazi.hardware.machine import Basis, PcieLink
from terazi.hardware.probe import load_catalogue

CATALOGUE = load_catalogue()
GIB = 1024**3
MIB = 1024**2


@pytest.mark.parametrize(
    ("name", "free_mib"),
    [
        # "using device CUDA0 (…) - N MiB free" of llama.cpp on idle cards, in public logs.
        ("RTX 3090", 23982),
        ("RTX 4090", 23999),
        ("L4", 22560),
        ("H100 SXM", 80552),
        ("RTX 5090", 31588),
    ],
)
def test_a_preset_promises_no_more_than_idle_cards_had(name: str, free_mib: int) -> None:
    """Total less reserve less context is at most what was seen, and not absurdly less."""
    record = CATALOGUE.find(name)
    total = cards.preset_total_bytes(record, None)
    context = cards.context_figure("cuda", record).value
    assert context is not None
    promised = total - cards.driver_reserve_bytes(total) - context
    assert free_mib * MIB - 256 * MIB < promised <= free_mib * MIB


@pytest.mark.parametrize(("name", "mib"), [("RTX 4060 Ti", 107), ("RTX PRO 6000", 555)])
def test_cuda_contexts(name: str, mib: int) -> None:
    figure = cards.context_figure("cuda", CATALOGUE.find(name))
    assert figure.value == pytest.approx(mib * MIB, rel=0.06)
    assert figure.basis is Basis.ASSUMED


def test_other_backends_have_no_invented_context() -> None:
    assert cards.context_figure("rocm", CATALOGUE.find("7900 XTX")).value is None
    assert cards.context_figure("cuda", None).value is not None


@pytest.mark.parametrize(("ram_gib", "seen_mb"), [(16, 11453.25), (36, 30150.67), (32, 26800.60), (18, 14302.25)])
def test_metal_working_set_is_at_most_what_logs_showed(ram_gib: int, seen_mb: float) -> None:
    """llama.cpp prints recommendedMaxWorkingSetSize in units of 10⁶ bytes."""
    assert 0.85 * seen_mb * 1e6 < cards.metal_working_set_bytes(ram_gib * GIB) <= seen_mb * 1e6 * 1.02


def test_the_narrower_end_decides() -> None:
    wide = PcieLink(generation=4, lanes=16)
    riser = PcieLink(generation=5, lanes=1)
    both = cards.narrower(wide, riser, Basis.READ)
    assert both == PcieLink(generation=4, lanes=1, basis=Basis.READ)
    assert cards.narrower(None, riser, Basis.READ) == riser
    assert cards.narrower(None, None, Basis.READ) is None
