"""Refusals: what is missing, and alternatives that really fit."""

import pytest

from specs import card, llama_70b, llama_spec, machine, smollm2
from terazi.errors import UsageError
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.settings import llama_cpp_settings
from terazi.memory.workload import Workload
from terazi.placement.follow import follow
from terazi.placement.plan import Plan, Refusal, Verdict
from terazi.placement.solve import solve


def _refused(answer: Plan | Refusal) -> Refusal:
    assert isinstance(answer, Refusal), answer
    return answer


def test_refusal_names_device_and_missing_bytes() -> None:
    no = _refused(solve(llama_70b(), machine(card(0), host_gib=16), Workload(context=8192), {}))
    assert [s.device for s in no.shortfall] == ["Host"]
    gap = no.shortfall[0]
    assert gap.missing_bytes == gap.needed_bytes - gap.capacity_bytes > 0
    assert "Host lacks" in no.reason
    assert sum(d.total_bytes for d in no.closest) == no.bill.total_bytes


def test_alternatives_fit_when_followed() -> None:
    work = Workload(context=32768, users=4)
    no = _refused(solve(llama_70b(), machine(card(0), card(1), host_gib=8), work, {}))
    assert len(no.alternatives) == 3
    for alternative in no.alternatives:
        again = follow(
            llama_70b(), machine(card(0), card(1), host_gib=8), llama_cpp_settings(alternative.settings), work
        )
        assert isinstance(again, Plan)
        assert again.bill.total_bytes == alternative.total_bytes
        assert alternative.gives_up


def test_shorter_context_is_the_longest_that_fits() -> None:
    work, cpu = Workload(context=131072), machine(host_gib=16)
    no = _refused(solve(llama_spec(), cpu, work, {"type_k": "f16", "type_v": "f16"}))
    shorter = next(a for a in no.alternatives if a.change.startswith("context"))
    longer = Workload(context=llama_cpp_settings(shorter.settings).n_ctx + 256)
    assert isinstance(solve(llama_spec(), cpu, longer, {"type_k": "f16", "type_v": "f16"}), Refusal)


def test_pinned_cache_type_is_not_bargained_away() -> None:
    pins = {"type_k": "f16", "type_v": "f16"}
    no = _refused(solve(llama_spec(), machine(host_gib=16), Workload(context=131072), pins))
    assert all(llama_cpp_settings(a.settings).type_k == "f16" for a in no.alternatives)


def test_when_nothing_helps_it_says_what_would() -> None:
    no = _refused(solve(llama_70b(), machine(card(0, gib=8), host_gib=16), Workload(context=8192), {}))
    assert no.alternatives == ()
    assert "add" in no.reason
    # 7.5 + 14 GiB for 70.6e9 weights: a little over two bits
    assert "IQ1_S" in no.reason or "IQ2" in no.reason


def test_followed_command_line_keeps_its_layout_and_offers_another() -> None:
    asked = LlamaCppSettings(n_ctx=8192, n_parallel=1, n_gpu_layers=99, tensor_split=(1.0, 9.0), fit=False)
    both = machine(card(0), card(1))
    no = _refused(follow(llama_70b(), both, asked, Workload(context=8192)))
    assert [s.device for s in no.shortfall] == ["CUDA1"]
    assert no.settings == asked
    other = no.alternatives[0]
    assert "another layout" in other.change
    assert isinstance(follow(llama_70b(), both, llama_cpp_settings(other.settings), Workload()), Plan)


def test_followed_command_line_that_fits_is_told_as_it_is() -> None:
    asked = LlamaCppSettings(n_ctx=4096, n_parallel=1, n_gpu_layers=10)
    plan = follow(llama_spec(), machine(card(0)), asked, Workload())
    assert isinstance(plan, Plan)
    assert plan.settings == asked
    assert plan.verdict is Verdict.FITS_OFFLOADED
    assert [d.layers for d in plan.devices] == [(23, 32), (0, 22)]


def test_growth_that_has_no_room_is_a_warning_not_a_refusal() -> None:
    plan = follow(smollm2(), machine(host_gib=4), LlamaCppSettings(n_ctx=2048), Workload())
    assert isinstance(plan, Plan)
    assert any("--cache-ram" in r for r in plan.reasons)


def test_never_more_context_than_the_model_was_trained_for() -> None:
    work = Workload(context=2**31 - 1)
    no = _refused(solve(smollm2(), machine(host_gib=16), work, {}))
    assert "trained for 8192 tokens" in no.reason
    each = [llama_cpp_settings(a.settings) for a in no.alternatives]
    assert max(s.n_ctx // (s.n_parallel or 1) for s in each) == 8192


def test_several_users_are_offered_to_be_fewer() -> None:
    no = _refused(solve(llama_spec(), machine(host_gib=16), Workload(context=32768, users=8), {}))
    change = next(a.change for a in no.alternatives if "at once" in a.change)
    assert change.split()[0].isdigit()
    assert int(change.split()[0]) < 8


def test_more_users_than_slots_are_told_as_users() -> None:
    with pytest.raises(UsageError, match="256 users at once, not 100000") as refused:
        solve(smollm2(), machine(), Workload(users=100_000), {})
    assert "--users" in refused.value.hint
