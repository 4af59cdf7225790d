"""Links between ranks: the weakest pair decides."""

from dataclasses import replace

import pytest

from specs import card, machine, read
from terazi.hardware.machine import Link
from terazi.performance.collectives import EAGER_S, Fabric, Wire, fabric_of

CARDS = tuple(card(i) for i in range(3))


def test_one_rank_reduces_nothing() -> None:
    assert Fabric(Wire.HOST, 1e9).all_reduce_s(1e9, 1) == 0


def test_a_pair_without_a_link_goes_through_the_host() -> None:
    nvlink = Link(a="CUDA0", b="CUDA1", kind="nvlink", bandwidth=read(56e9))
    on = replace(machine(*CARDS), links=(nvlink,))
    assert fabric_of(on, ("CUDA0", "CUDA1")) == Fabric(Wire.NVLINK, 56e9)
    assert fabric_of(on, ("CUDA0", "CUDA1", "CUDA2")).wire is Wire.HOST


def test_an_unknown_rate_of_a_link_is_not_believed() -> None:
    unknown = Link(a="CUDA0", b="CUDA1", kind="nvlink", bandwidth=replace(read(1.0), value=None))
    assert fabric_of(replace(machine(*CARDS), links=(unknown,)), ("CUDA0", "CUDA1")).wire is Wire.HOST


def test_p2p_beats_the_host_on_the_same_slot() -> None:
    """club-3090 docs/PCIE_P2P.md: latency 15.2 to 1.0 us, prompts +12-14 % with the P2P driver."""
    slot = 31.5e9
    for size in (16_384, 134e6):
        assert Fabric(Wire.PCIE_P2P, slot).all_reduce_s(size, 2) < Fabric(Wire.HOST, slot).all_reduce_s(size, 2)


def test_more_ranks_take_longer_and_an_eager_call_its_launch() -> None:
    fabric = Fabric(Wire.PCIE_P2P, 31.5e9)
    seconds = [fabric.all_reduce_s(1e6, n) for n in (2, 4, 8)]
    assert seconds == sorted(seconds)
    assert fabric.all_reduce_s(1024, 2, graph=False) == pytest.approx(EAGER_S)
