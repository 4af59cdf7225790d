"""A scale's bills against the measured commands, each model's on one scale."""

from dataclasses import replace
from pathlib import Path

import pytest

import bill_cases
from terazi.engines.llama_cpp.commands import parse_command
from terazi.memory.llama_cpp.families import family_of
from terazi.memory.llama_cpp.scale import Scale

MODELS = bill_cases.load(Path(__file__).parents[3] / "golden" / "bill_cases.json")


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if family_of(model.spec)])
def test_measured_to_the_byte(name: str) -> None:
    model = MODELS[name]
    scales = {n: Scale(model.spec, bill_cases.stand_ins(n), model.isa, patience=0) for n in range(4)}
    for case in model.cases:
        lines = scales[case.devices].lines(replace(parse_command(case.command).settings, load_mode="none"))
        for device, expected in case.expected.items():
            here = [line for line in lines if line.device == device]
            held = (
                sum(line.bytes for line in here if line.term == "weights"),
                sum(line.bytes for line in here if line.term in {"kv", "state"}),
                sum(line.bytes for line in here if line.term == "compute"),
            )
            assert held == expected, (case.name, device)
