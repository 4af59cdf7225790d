"""Which experts lie where: a block shared out over two cards, and cards that leave out some of their own."""

import re
from dataclasses import replace

import pytest

from specs import card, llama_spec, machine, read
from terazi.hardware.machine import Machine
from terazi.memory.bill import HOST
from terazi.memory.settings import llama_cpp_settings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.appraiser import Appraiser
from terazi.placement.overflow import Part, override, pieces, read_part
from terazi.placement.plan import Plan, Verdict
from terazi.placement.solve import solve
from terazi.units import GIB

MIXTURE = llama_spec(layers=12, vocab=32000, experts=8, experts_used=2)
WORK = Workload(context=4096)
PINS = {"type_k": "f16", "type_v": "f16", "n_ubatch": 512}


def cards(*gib: float) -> Machine:
    devices = [replace(card(i, gib=size), context_bytes=read(0.0)) for i, size in enumerate(gib)]
    return machine(*devices, host_gib=256)


def solved(spec: ModelSpec, on: Machine) -> Plan:
    found = solve(spec, on, WORK, PINS, score=Appraiser(spec, on, WORK))
    assert isinstance(found, Plan)
    return found


def test_pieces_are_all_of_the_model() -> None:
    device = card()
    row = pieces(MIXTURE, device, llama_cpp_settings(solved(MIXTURE, cards(24)).settings))
    assert [p.kind for p in row[:4]] == ["", "up", "gate", "down"]
    assert (row[-1].block, row[-1].kind) == (12, "")
    assert sum(p.elements for p in row) == 12 * 3 * 4096 * 14336 * 8
    experts = sum(t.n_bytes for t in MIXTURE.tensors if "_exps" in t.name)
    assert sum(p.n_bytes for p in row if p.kind) == experts


@pytest.mark.parametrize("blocks", [[3], [3, 5, 6, 7]])
def test_a_pattern_matches_its_tensors_alone_and_is_read_back(blocks: list[int]) -> None:
    pattern, where = override(blocks, ["up", "down"], "CUDA1")
    for block in range(12):
        for kind in ("up", "gate", "down"):
            found = re.search(pattern, f"blk.{block}.ffn_{kind}_exps.weight") is not None
            assert found == (block in blocks and kind != "gate")
    assert read_part((pattern, where)) == Part(tuple(blocks), ("up", "down"), "CUDA1")
    assert read_part((r"blk\..*_exps", "CPU")) is None


def test_what_whole_blocks_leave_free_is_filled() -> None:
    on = cards(4.2, 3.1, 2.4)
    plan = solved(MIXTURE, on)
    piece = 4096 * 14336 * 8 * 4.5 / 8
    assert plan.verdict is Verdict.FITS_OFFLOADED
    free = [s.headroom_bytes for s in plan.devices if s.id != HOST]
    assert sum(free) < 2 * piece, "three cards waste no more than two matrices together"


def test_a_model_that_fits_only_with_a_block_shared_out_leaves_none_in_ram() -> None:
    # twelve blocks of 0.78 GiB and what is beside them: by whole blocks one of the cards would hold seven
    plan = solved(MIXTURE, cards(5.25, 5.25))
    settings = llama_cpp_settings(plan.settings)
    assert plan.verdict is Verdict.FITS
    assert settings.n_cpu_moe == 0
    moved = [part for part in map(read_part, settings.override_tensor) if part is not None]
    assert [part.where for part in moved] == ["CUDA1"]
    assert any(moved[0].words in reason for reason in plan.reasons)
    assert sum(s.total_bytes for s in plan.devices if s.id != HOST) < 2 * 5.25 * GIB
