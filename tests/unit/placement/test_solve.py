"""Choices that nobody pinned, on machines whose answer is plain."""

from dataclasses import replace

import pytest

from specs import card, llama_70b, llama_spec, machine, smollm2
from terazi.errors import UsageError
from terazi.memory.bill import HOST
from terazi.memory.settings import llama_cpp_settings
from terazi.memory.workload import Workload
from terazi.placement.plan import Plan, Refusal, Verdict
from terazi.placement.solve import context_steps, solve
from terazi.units import GIB


def _plan(answer: Plan | Refusal) -> Plan:
    assert isinstance(answer, Plan), answer
    return answer


def _said(plan: Plan, text: str) -> str:
    found = [r for r in plan.reasons if text in r]
    assert len(found) == 1, plan.reasons
    return found[0]


def test_one_card_when_it_fits_one_card_and_the_faster_of_two() -> None:
    slow, fast = card(0, gib=24, bandwidth=360e9), card(1, gib=24, bandwidth=936e9)
    plan = _plan(solve(llama_spec(), machine(slow, fast), Workload(context=8192), {}))
    assert llama_cpp_settings(plan.settings).devices == ("CUDA1",)
    assert [d.layers for d in plan.devices] == [None, (0, 32), None]
    assert "936 GB/s" in _said(plan, "holds them alone")
    assert _said(plan, "CUDA0 left unused")


def test_slow_card_takes_it_when_the_fast_one_is_too_small() -> None:
    plan = _plan(
        solve(llama_spec(), machine(card(0, gib=1), card(1, gib=24, bandwidth=360e9)), Workload(context=8192), {})
    )
    assert llama_cpp_settings(plan.settings).devices == ("CUDA1",)
    assert plan.verdict is Verdict.FITS


def test_two_equal_cards_share_evenly() -> None:
    plan = _plan(solve(llama_70b(), machine(card(0), card(1)), Workload(context=8192), {}))
    assert plan.verdict is Verdict.FITS
    assert llama_cpp_settings(plan.settings).n_gpu_layers == 81
    first, second = (d.layers for d in plan.devices[:2])
    assert first is not None
    assert second is not None
    assert (first[0], second[1]) == (0, 80)
    assert abs((first[1] + 1) - 40.5) <= 2
    assert llama_cpp_settings(plan.settings).tensor_split == (first[1] + 1, 80 - first[1])


def test_unequal_cards_hold_more_than_an_even_split_could() -> None:
    spec = llama_70b()
    unequal = machine(card(0, gib=34), card(1, gib=10))
    plan = _plan(solve(spec, unequal, Workload(context=4096), {}))
    assert plan.verdict is Verdict.FITS
    large, small = plan.devices[0].layers, plan.devices[1].layers
    assert large is not None
    assert small is not None
    assert large[1] - large[0] > 2 * (small[1] - small[0])


def test_rest_stays_in_ram_and_that_is_said() -> None:
    plan = _plan(solve(llama_70b(), machine(card(0)), Workload(context=8192), {}))
    assert plan.verdict is Verdict.FITS_OFFLOADED
    in_ram = plan.devices[-1].layers
    assert in_ram is not None
    assert f"{in_ram[1] + 1} of 81 layers stay in RAM" in _said(plan, "stay in RAM")
    # one layer more would not have fitted
    layer = 42.5e9 / 80
    assert plan.devices[0].headroom_bytes < 1.2 * layer


def test_routed_experts_go_to_ram_before_layers_do() -> None:
    moe = llama_spec(layers=24, embedding=2048, feed_forward=768, kv_heads=4, experts=128, experts_used=8)
    plan = _plan(solve(moe, machine(card(0, gib=6)), Workload(context=4096), {}))
    assert plan.verdict is Verdict.FITS_OFFLOADED
    assert 0 < llama_cpp_settings(plan.settings).n_cpu_moe < 24
    assert plan.devices[0].layers == (0, 24)
    assert _said(plan, "routed experts")


def test_no_accelerator_is_not_offloaded() -> None:
    plan = _plan(solve(smollm2(), machine(), Workload(), {}))
    assert plan.verdict is Verdict.FITS
    assert llama_cpp_settings(plan.settings).n_ctx == 8192
    assert llama_cpp_settings(plan.settings).devices == ()


def test_card_too_small_for_a_single_layer_is_said_not_silently_left() -> None:
    tiny = machine(card(0, gib=1))
    plan = _plan(solve(llama_70b(), tiny, Workload(context=8192), {}))
    assert plan.verdict is Verdict.FITS_OFFLOADED
    assert _said(plan, "on the CPU: no accelerator is used")


def test_repacked_weights_are_not_counted_twice() -> None:
    # 37 GiB are repacked; the mapped original is page cache that nobody reads again, so 56 GiB of RAM will do
    plan = _plan(solve(llama_70b(), machine(), Workload(context=8192), {}))
    assert llama_cpp_settings(plan.settings).mmap
    assert sum(line.bytes for line in plan.bill.page_cache) > 30 * 2**30
    assert plan.devices[-1].headroom_bytes >= 0


def test_every_user_gets_the_context_in_a_cache_of_his_own() -> None:
    plan = _plan(solve(smollm2(), machine(), Workload(context=1000, users=5), {}))
    assert llama_cpp_settings(plan.settings).n_parallel == 5
    assert llama_cpp_settings(plan.settings).kv_unified is False
    assert llama_cpp_settings(plan.settings).n_ctx == 5 * 1024
    assert llama_cpp_settings(plan.settings).fit is False


def test_unified_cache_if_pinned_holds_as_much_in_all() -> None:
    plan = _plan(solve(smollm2(), machine(), Workload(context=1024, users=4), {"kv_unified": True}))
    assert llama_cpp_settings(plan.settings).n_ctx == 4096
    assert "as pinned" in _said(plan, "--kv-unified")


def test_context_is_the_training_length_if_it_fits() -> None:
    plan = _plan(solve(llama_spec(context=32768), machine(card(0)), Workload(), {}))
    assert llama_cpp_settings(plan.settings).n_ctx == 32768
    assert "training length" in _said(plan, "Context")


def test_context_is_otherwise_the_longest_step_that_keeps_all_on_the_cards() -> None:
    spec, small = llama_spec(), machine(card(0, gib=12))
    plan = _plan(solve(spec, small, Workload(), {}))
    assert plan.verdict is Verdict.FITS
    chosen = llama_cpp_settings(plan.settings).n_ctx
    steps = context_steps(131072)
    assert chosen in steps
    following = steps[steps.index(chosen) + 1]
    longer = _plan(solve(spec, small, Workload(context=following), {}))
    assert longer.verdict is Verdict.FITS_OFFLOADED
    assert str(chosen) in _said(plan, "longest step")


def test_context_steps_are_powers_and_halves_between() -> None:
    assert context_steps(4096) == [512, 768, 1024, 1536, 2048, 3072, 4096]
    assert context_steps(5000)[-1] == 5000
    assert context_steps(100) == [100]


def test_pins_are_kept() -> None:
    pins = {"n_gpu_layers": 20, "type_k": "q8_0", "type_v": "q8_0", "n_ubatch": 128, "cache_ram_mib": 64}
    plan = _plan(solve(llama_spec(), machine(card(0)), Workload(context=4096), pins))
    for name, value in pins.items():
        assert getattr(plan.settings, name) == value
    assert plan.devices[0].layers == (13, 32)
    assert plan.verdict is Verdict.FITS_OFFLOADED
    whole = _plan(solve(llama_spec(), machine(card(0)), Workload(context=4096), {"n_gpu_layers": 99}))
    assert whole.devices[0].layers == (0, 32)


def test_pinned_split_is_the_engines_own_rule() -> None:
    plan = _plan(
        solve(llama_spec(), machine(card(0), card(1)), Workload(context=4096), {"tensor_split": (3.0, 1.0)})
    )
    assert llama_cpp_settings(plan.settings).tensor_split == (3.0, 1.0)
    # upper_bound(0.75, i/33): 25 of 33 (memory.md: load_tensors)
    assert plan.devices[0].layers == (0, 24)


def test_zero_gpu_layers_pinned_is_the_cpu() -> None:
    plan = _plan(solve(llama_spec(), machine(card(0)), Workload(context=4096), {"n_gpu_layers": 0}))
    assert plan.devices[-1].layers == (0, 32)
    assert plan.devices[0].total_bytes == 0
    assert plan.verdict is Verdict.FITS_OFFLOADED


def test_unknown_pin_and_unknown_device_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="n_gpu_layer"):
        solve(smollm2(), machine(), Workload(), {"n_gpu_layer": 3})
    with pytest.raises(UsageError, match="CUDA7"):
        solve(smollm2(), machine(card(0)), Workload(), {"devices": ("CUDA7",)})


def test_score_decides_among_what_fits() -> None:
    both = machine(card(0), card(1, bandwidth=800e9))
    first = _plan(solve(smollm2(), both, Workload(), {}))
    assert llama_cpp_settings(first.settings).devices == ("CUDA0",)
    other = _plan(
        solve(
            smollm2(),
            both,
            Workload(),
            {},
            score=lambda p: 1.0 if llama_cpp_settings(p.settings).devices == ("CUDA1",) else 0.0,
        )
    )
    assert llama_cpp_settings(other.settings).devices == ("CUDA1",)
    assert (other.rejected[0].option, other.rejected[0].why) == ("CUDA0 alone", "it scores 0 against 1")


def test_prompt_cache_takes_what_ram_leaves_and_no_more() -> None:
    roomy = _plan(solve(llama_spec(), machine(card(0), host_gib=64), Workload(context=4096), {}))
    assert llama_cpp_settings(roomy.settings).cache_ram_mib == 8192
    tight = _plan(solve(llama_spec(), machine(card(0), host_gib=4), Workload(context=4096), {}))
    cache_ram_mib = llama_cpp_settings(tight.settings).cache_ram_mib
    assert cache_ram_mib is not None
    assert 0 < cache_ram_mib < 8192
    growth = sum(line.bytes for line in tight.bill.growth if line.device == HOST)
    assert growth <= tight.devices[-1].room_bytes
    none = _plan(solve(llama_spec(), machine(card(0), host_gib=0.5), Workload(context=4096), {}))
    assert llama_cpp_settings(none.settings).cache_ram_mib == 0


def test_unified_memory_is_not_counted_twice() -> None:
    shared = card(0, gib=32, unified=True)
    one = replace(machine(shared, host_gib=32))
    answer = solve(llama_70b(), one, Workload(context=4096), {})
    assert isinstance(answer, Refusal)
    small = _plan(solve(llama_spec(), one, Workload(context=4096), {}))
    host_row = small.devices[-1]
    assert host_row.capacity_bytes == round(28 * GIB) - small.bill.needed_bytes("CUDA0")
