"""Budgets: free memory less the reserve, never the swap, never above the cgroup."""

from dataclasses import replace

from specs import card, host, machine
from terazi.memory.bill import HOST, Bill, BillLine, LineBasis, Memory, Term
from terazi.placement.capacity import capacity_of, device_capacity, host_capacity
from terazi.units import GIB, MIB


def _bill(**bytes_on: int) -> Bill:
    lines = tuple(
        BillLine(term=Term.WEIGHTS, device=d, bytes=n, formula="x", basis=LineBasis.EXACT, memory=Memory.DEVICE)
        for d, n in bytes_on.items()
    )
    return Bill(engine="llama.cpp", build="b", lines=lines)


def test_small_card_keeps_256_mib_and_large_one_three_percent() -> None:
    assert device_capacity(card(gib=4)) == 4 * GIB - 256 * MIB
    assert device_capacity(card(gib=80)) == 80 * GIB - round(0.03 * 80 * GIB)


def test_capacity_is_of_free_memory_not_of_all() -> None:
    busy = replace(card(gib=24), memory_free_bytes=10 * GIB)
    assert device_capacity(busy) == 10 * GIB - round(0.03 * 24 * GIB)
    assert device_capacity(replace(busy, memory_free_bytes=100 * MIB)) == 0


def test_host_keeps_an_eighth_and_ignores_swap() -> None:
    idle = host(gib=64)
    assert host_capacity(idle) == 56 * GIB
    assert host_capacity(replace(idle, swap_total_bytes=100 * GIB)) == 56 * GIB
    assert host_capacity(replace(idle, ram_available_bytes=20 * GIB)) == 12 * GIB


def test_cgroup_limit_is_never_passed() -> None:
    caged = host(gib=64, limit=16 * GIB, used=4 * GIB)
    assert host_capacity(caged) == 12 * GIB - 2 * GIB
    assert host_capacity(host(gib=64, limit=8 * GIB, used=8 * GIB)) == 0


def test_unified_memory_is_one_budget() -> None:
    budget = capacity_of(machine(card(gib=48, unified=True), host_gib=64))
    assert budget.of("CUDA0", _bill()) == min(48 * GIB - round(0.03 * 48 * GIB), 56 * GIB)
    assert budget.of(HOST, _bill()) == 56 * GIB
    assert budget.of(HOST, _bill(CUDA0=40 * GIB)) == 16 * GIB
    discrete = capacity_of(machine(card(gib=48), host_gib=64))
    assert discrete.of(HOST, _bill(CUDA0=40 * GIB)) == 56 * GIB
