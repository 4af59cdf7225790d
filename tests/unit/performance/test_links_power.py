"""Hand-overs and watts against published figures."""

from dataclasses import replace

import pytest

from specs import card, machine, read
from terazi.hardware.machine import Link, PcieLink
from terazi.performance.efficiency import CardClass
from terazi.performance.links import BOUNDARY_S, NETWORK_S, boundary_s, path_bytes_per_s, slot_bytes_per_s
from terazi.performance.power import draw, kwh_per_mtok


def test_a_70b_hand_over_on_pcie3_x1_takes_33_us() -> None:
    """32 KB at about 1 GB/s (the x1 layer split that many think impossible)."""
    x1 = replace(card(1), pcie=PcieLink(generation=3, lanes=1))
    assert 32768 / slot_bytes_per_s(x1) == pytest.approx(33e-6, rel=0.02)
    whole = boundary_s(machine(card(0), x1), "CUDA0", "CUDA1", n_embd=8192, tokens=1)
    assert whole - BOUNDARY_S < 40e-6
    # of a 60 ms token it is nothing
    assert whole < 0.006 * 60e-3


def test_nvlink_is_taken_before_the_host() -> None:
    joined = replace(
        machine(card(0), card(1)),
        links=(
            Link(a="CUDA0", b="CUDA1", kind="host", bandwidth=read(1e9)),
            Link(a="CUDA1", b="CUDA0", kind="nvlink", bandwidth=read(56e9)),
        ),
    )
    assert path_bytes_per_s(joined, "CUDA0", "CUDA1") == 56e9
    gen4 = 31.5e9  # x16, 128b/130b
    assert path_bytes_per_s(machine(card(0), card(1)), "CUDA0", "CUDA1") == pytest.approx(gen4 / 2, rel=0.01)


def test_another_machine_is_reached_over_the_network() -> None:
    """An RPC device is a gigabit away unless a link says better: 32 KB of a 70B take 0.28 ms, not 1 us."""
    remote = replace(card(1), id="RPC0", backend="rpc", pcie=None)
    on = machine(card(0), remote)
    slow = boundary_s(on, "CUDA0", "RPC0", n_embd=8192, tokens=1)
    assert slow == pytest.approx(BOUNDARY_S + NETWORK_S + 32768 / 117e6, rel=0.1)
    ten = Link(a="CUDA0", b="RPC0", kind="ethernet", bandwidth=read(1.17e9))
    fast = boundary_s(replace(on, links=(ten,)), "CUDA0", "RPC0", n_embd=8192, tokens=1)
    assert BOUNDARY_S + NETWORK_S < fast < slow


def test_h100_energy_as_published() -> None:
    """486 W at 1068 tok/s are .455 J a token and .126 kWh a million (ML.ENERGY v3, 8B, 8 streams)."""
    assert kwh_per_mtok(486, 486 / 0.455) == pytest.approx(0.126, abs=0.001)


def test_power_cap_of_a_3090() -> None:
    """27B dense decode: 370 W stock 34.66 tok/s, 290 W 32.26, 230 W 25.15 (club-3090 HARDWARE.md)."""

    def speed(cap: float) -> float:
        found = draw(card(0, tdp=370, cap=cap), CardClass.GEFORCE)
        assert found is not None
        return found.speed

    assert speed(370) == 1.0
    assert speed(290) == pytest.approx(32.26 / 34.66, abs=0.08)
    # the steepest row of the table; a mixture of experts at 210 W kept 84 %
    assert speed(230) == pytest.approx(25.15 / 34.66, abs=0.16)
    assert speed(210) == pytest.approx(114.59 / 136.84, abs=0.08)


def test_draw_lies_between_idle_and_cap() -> None:
    found = draw(card(0, cap=250), CardClass.GEFORCE)
    assert found is not None
    # loaded and waiting is not idle
    assert 22 < found.watts(0) < 0.3 * 350
    assert found.watts(1) == 250
    assert draw(card(0, tdp=None), CardClass.GEFORCE) is None
