"""Choosing ranks for vLLM, and what is offered instead."""

import pytest

from terazi.errors import UsageError
from terazi.hardware.machine import Machine
from terazi.memory.vllm.settings import VllmSettings
from terazi.memory.workload import Workload
from terazi.placement.plan import Plan, Refusal, Verdict
from terazi.placement.vllm import follow_vllm, solve_vllm
from terazi.units import GIB
from vllm_cases import CONFIGS, HOST_MACHINE, card, llama

FULL = llama(CONFIGS["llama-3.1-8b"] | {"num_hidden_layers": 32})
SMOL = llama(CONFIGS["smollm2-135m"])


def machine(*memory_gib: int) -> Machine:
    cards = tuple(card(i, size * GIB) for i, size in enumerate(memory_gib))
    return Machine(name="m", host=HOST_MACHINE, devices=cards)


def plan(*memory_gib: int, workload: Workload | None = None, **pins: object) -> Plan:
    found = solve_vllm(FULL, machine(*memory_gib), workload or Workload(context=8192), pins)
    assert isinstance(found, Plan)
    return found


def ranks(found: Plan | Refusal) -> int:
    assert isinstance(found.settings, VllmSettings)
    return found.settings.tensor_parallel


def test_one_card_is_enough_if_it_is() -> None:
    found = plan(24, 24)
    assert (ranks(found), found.verdict) == (1, Verdict.FITS)
    assert found.devices[1].total_bytes == 0


def test_as_many_cards_as_it_takes_that_divide_the_heads() -> None:
    """16 GB of weights don't fit 12 GiB, and 32 heads can't be shared by three."""
    assert ranks(plan(12, 12)) == 2
    assert ranks(plan(6, 6, 6, 6)) == 4


def test_more_users_take_more_cards() -> None:
    assert ranks(plan(24, 24, workload=Workload(context=32_768, users=1))) == 1
    assert ranks(plan(24, 24, workload=Workload(context=32_768, users=4))) == 2


def test_a_length_that_nobody_asked_for_is_cut_to_what_fits() -> None:
    found = plan(24, workload=Workload())
    assert isinstance(found.settings, VllmSettings)
    assert found.settings.max_model_len is not None
    assert 8192 < found.settings.max_model_len < 131_072
    assert found.workload.context == found.settings.max_model_len


def test_what_does_not_fit_is_refused_with_something_that_does() -> None:
    found = solve_vllm(FULL, machine(24), Workload(context=100_000), {})
    assert isinstance(found, Refusal)
    assert "100000 tokens" in found.reason
    changes = [a.change for a in found.alternatives]
    assert any(change.startswith("--max-model-len") for change in changes)
    for other in found.alternatives:
        assert isinstance(other.settings, VllmSettings)
        assert isinstance(follow_vllm(FULL, machine(24), other.settings, prompt=1, output=1), Plan)


def test_a_command_with_too_many_ranks_is_refused_and_told_how_many_would_do() -> None:
    settings = VllmSettings(tensor_parallel=2, kv_cache_memory_bytes=GIB)
    found = follow_vllm(SMOL, machine(), settings, prompt=1, output=1)
    assert isinstance(found, Refusal)
    assert "9 attention heads" in found.reason
    assert [a.change for a in found.alternatives] == ["-tp 1"]


def test_on_cpu_the_cache_is_as_large_as_the_users_need() -> None:
    found = solve_vllm(SMOL, machine(), Workload(context=4096, users=4), {})
    assert isinstance(found, Plan)
    assert isinstance(found.settings, VllmSettings)
    assert found.settings.kv_cache_memory_bytes is not None
    assert "4 sequences" in " ".join(found.reasons) or "4.0" in " ".join(found.reasons)
    assert found.devices[-1].layers == (0, 30)


def test_a_machine_without_room_is_refused_in_bytes() -> None:
    small = Machine(name="m", host=HOST_MACHINE, devices=(card(0, 4 * GIB),))
    found = solve_vllm(FULL, small, Workload(context=1024), {})
    assert isinstance(found, Refusal)
    assert "KV cache" in found.reason


def test_settings_of_llama_cpp_are_named() -> None:
    with pytest.raises(UsageError, match="n_gpu_layers"):
        solve_vllm(FULL, machine(24), Workload(), {"n_gpu_layers": 10})


def test_stages_can_be_pinned() -> None:
    settings = plan(24, 24, 24, 24, pipeline_parallel=2).settings
    assert isinstance(settings, VllmSettings)
    assert (settings.tensor_parallel, settings.pipeline_parallel) == (1, 2)


def test_too_many_users_are_offered_to_be_fewer() -> None:
    found = solve_vllm(FULL, machine(24), Workload(context=8192, users=64), {})
    assert isinstance(found, Refusal)
    assert found.alternatives[0].change.endswith("at once")
    count = int(found.alternatives[0].change.split()[0])
    assert isinstance(solve_vllm(FULL, machine(24), Workload(context=8192, users=count), {}), Plan)


def test_the_smallest_of_unequal_cards_caps_the_others() -> None:
    found = solve_vllm(FULL, machine(24, 8), Workload(context=131072, users=4), {})
    assert isinstance(found, Refusal)
    assert "CUDA1" in found.reason
    assert "GGUF" in found.reason
