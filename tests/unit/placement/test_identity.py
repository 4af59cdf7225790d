"""The id changes with what matters and with nothing else."""

from dataclasses import replace

from specs import card, llama_spec, machine, smollm2
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.placement.identity import plan_id
from terazi.units import GIB

SETTINGS = LlamaCppSettings(n_ctx=4096)


def test_id_is_short_hex_and_repeatable() -> None:
    first = plan_id(smollm2(), machine(card(0)), SETTINGS)
    assert first == plan_id(smollm2(), machine(card(0)), LlamaCppSettings(n_ctx=4096))
    assert len(first) == 12
    int(first, 16)


def test_model_machine_and_settings_each_change_it() -> None:
    ids = {
        plan_id(smollm2(), machine(card(0)), SETTINGS),
        plan_id(llama_spec(), machine(card(0)), SETTINGS),
        plan_id(llama_spec(dtype="Q8_0"), machine(card(0)), SETTINGS),
        plan_id(smollm2(), machine(card(0), card(1)), SETTINGS),
        plan_id(smollm2(), machine(card(0)), replace(SETTINGS, n_ubatch=256)),
        plan_id(smollm2(), machine(card(0)), SETTINGS, (Companion("draft", "--spec-draft-model", llama_spec()),)),
    }
    assert len(ids) == 6


def test_load_name_and_path_do_not_change_it() -> None:
    idle = machine(card(0))
    busy = replace(
        idle,
        name="other",
        host=replace(idle.host, ram_available_bytes=2 * GIB),
        devices=(replace(card(0), memory_free_bytes=GIB),),
    )
    moved = replace(smollm2(), origin="/elsewhere", name="renamed")
    assert plan_id(smollm2(), idle, SETTINGS) == plan_id(moved, busy, SETTINGS)
