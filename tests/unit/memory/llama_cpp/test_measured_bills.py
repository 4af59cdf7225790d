"""Bills against 677 measured commands of 30 models: exact where a family is known, never below where it isn't."""

from dataclasses import replace
from pathlib import Path

import pytest

import bill_cases
from terazi.engines.llama_cpp.commands import parse_command
from terazi.memory.bill import HOST, Bill, LineBasis
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.bound import compute_bound_bytes
from terazi.memory.llama_cpp.families import family_of
from terazi.memory.llama_cpp.kv import cache_layers
from terazi.memory.llama_cpp.resolve import resolve
from terazi.memory.llama_cpp.weights import place_tensors
from terazi.units import MIB

MODELS = bill_cases.load(Path(__file__).parents[3] / "golden" / "bill_cases.json")
KNOWN = [name for name, model in MODELS.items() if family_of(model.spec)]


def bill_of(model: bill_cases.Measured, case: bill_cases.Case) -> Bill:
    # measured without mapping the file
    settings = replace(parse_command(case.command).settings, load_mode="none")
    return weigh(model.spec, settings, bill_cases.stand_ins(case.devices), model.isa)


@pytest.mark.parametrize("name", KNOWN)
def test_known_family_is_exact_to_the_byte(name: str) -> None:
    model = MODELS[name]
    assert len(model.cases) > 10
    for case in model.cases:
        bill = bill_of(model, case)
        assert bill.exact, case.name
        for device, expected in case.expected.items():
            share = bill.on(device)
            held = (share.weights_bytes, share.kv_bytes + share.state_bytes, share.compute_bytes)
            assert held == expected, (case.name, device)


@pytest.mark.parametrize("name", MODELS)
def test_bounds_hold_and_stay_near(name: str) -> None:
    """As if no family were known: no measured buffer is larger than its bound, and bounds aren't absurd."""
    model = MODELS[name]
    factors = []
    for case in model.cases:
        settings = replace(parse_command(case.command).settings, load_mode="none")
        resolved = resolve(model.spec, settings, bill_cases.stand_ins(case.devices))
        caches = cache_layers(model.spec, None, settings, resolved)
        placements = place_tensors(model.spec, settings, resolved, model.isa)
        bounds = compute_bound_bytes(model.spec, settings, resolved, caches, placements)
        for device, (_, _, compute) in case.expected.items():
            assert bounds.get(device, 0) >= compute, (case.name, device)
            if compute:
                factors.append(bounds[device] / compute)
    # an encoder keeps nothing and has no logits, which is a rule of its own
    assert sorted(factors)[len(factors) // 2] < (6 if model.spec.architecture != "bert" else 40)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "granite-4.0-h-tiny"])
def test_unknown_family_is_a_labelled_upper_bound(name: str) -> None:
    """Measured models under the name of an architecture without an entry."""
    known, strange = MODELS[name], "hrm_text"
    old = known.spec.architecture
    metadata = {key.replace(f"{old}.", f"{strange}.", 1): value for key, value in known.spec.metadata.items()}
    model = replace(known, spec=replace(known.spec, architecture=strange, metadata=metadata))
    assert family_of(model.spec) is None
    for case in model.cases:
        bill = bill_of(model, case)
        assert not bill.exact
        assert any(strange in reason for reason in bill.reasons)
        assert any(line.basis is LineBasis.UPPER_BOUND for line in bill.lines)
        for device, (weights, kept, compute) in case.expected.items():
            share = bill.on(device)
            assert share.weights_bytes >= weights, (case.name, device)
            assert share.kv_bytes + share.state_bytes >= kept, (case.name, device)
            assert share.compute_bytes >= compute, (case.name, device)


def test_the_families_of_this_delivery_are_among_the_measured() -> None:
    covered = {MODELS[name].spec.architecture for name in KNOWN}
    assert {"llama", "gemma3"} <= covered
    assert {"mamba2", "lfm2", "granitehybrid", "falcon-h1", "nemotron_h", "qwen3next", "qwen35"} <= covered


def test_checkpoints_of_a_window_model_are_a_ceiling_beside_the_bill() -> None:
    model = MODELS["gemma-3-27b"]
    settings = parse_command(["llama-server", "-c", "32768", "-ctxcp", "3"]).settings
    growth = {line.formula: line.bytes for line in weigh(model.spec, settings, (), model.isa).growth}
    # 52 of 62 layers keep the 1024 cells that the next token sees: K and V of 16 heads of 128, half precision, and
    # 12 bytes a cell about it
    assert growth["context-checkpoints"] == 3 * 4 * 1024 * (52 * 2 * 16 * 128 * 2 + 12)


def test_recurrent_state_knows_no_context() -> None:
    """Mamba-Codestral: 263.5 MiB a slot, whatever ``-c`` says (the engine's log)."""
    model = MODELS["mamba-codestral-7b"]
    for command, slots in (("-c 4096", 4), ("-c 262144", 4), ("-c 4096 -np 1", 1)):
        settings = parse_command(["llama-server", *command.split()]).settings
        bill = weigh(model.spec, settings, (), model.isa)
        assert bill.on(HOST).kv_bytes == 0
        assert bill.on(HOST).state_bytes == slots * 263.5 * MIB
        growth = {line.formula: line.bytes for line in bill.growth}
        assert growth["context-checkpoints"] == 32 * slots * 263.5 * MIB


def test_drafting_multiplies_the_states_it_can_go_back_to() -> None:
    """Three drafted tokens are three more states, even where the draft itself is missing."""
    model = MODELS["qwen3.5-27b"]
    plain, drafting = (
        weigh(model.spec, parse_command(["llama-server", "-c", "4096", "-np", "1", *words]).settings, (), model.isa)
        for words in ((), ("--spec-type", "draft-eagle3"))
    )
    assert plain.on(HOST).state_bytes == 149.625 * MIB
    assert drafting.on(HOST).state_bytes == 4 * plain.on(HOST).state_bytes
    assert plain.exact
    assert drafting.exact
