"""Bills of published models against what the engine reserved: every family that has no other measurement."""

from dataclasses import replace

import pytest

import bill_cases
import published_twins
from terazi.engines.llama_cpp.commands import parse_command
from terazi.memory.llama_cpp.bill import weigh

MODELS = published_twins.load()


@pytest.mark.parametrize("name", MODELS)
def test_published_model_is_exact_to_the_byte(name: str) -> None:
    model = MODELS[name]
    assert model.cases
    for case in model.cases:
        # measured without mapping the file
        settings = replace(parse_command(case.command).settings, load_mode="none")
        bill = weigh(model.spec, settings, bill_cases.stand_ins(case.devices), model.isa)
        assert bill.exact, case.name
        for device, expected in case.expected.items():
            share = bill.on(device)
            held = (share.weights_bytes, share.kv_bytes + share.state_bytes, share.compute_bytes)
            assert held == expected, (case.name, device)
