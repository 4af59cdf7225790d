"""How much models may take: what is free, less what was promised and isn't touched yet, within the budget."""

from dataclasses import replace

import pytest

from specs import llama_70b
from terazi.hardware.machine import Basis, Device, Figure, Host, Machine
from terazi.memory.workload import Workload
from terazi.placement.capacity import capacity_of
from terazi.placement.plan import Plan
from terazi.placement.solve import solve
from terazi.service.config import MemoryTable
from terazi.service.room import Holding, free_for_models, needs_of, with_room
from terazi.units import GIB

NONE = Figure(value=None, basis=Basis.ASSUMED)


def machine(*, unified: bool = False, limit: int | None = None) -> Machine:
    host = Host(
        cpu_name=None,
        isa=frozenset({"avx2"}),
        cores=8,
        sockets=1,
        ram_total_bytes=64 * GIB,
        ram_available_bytes=60 * GIB,
        memory_limit_bytes=limit,
        memory_limit_used_bytes=None if limit is None else 2 * GIB,
    )
    card = Device(
        id="CUDA0",
        name="card",
        vendor="x",
        backend="cuda",
        memory_total_bytes=24 * GIB,
        memory_free_bytes=20 * GIB,
        memory_bandwidth=NONE,
        flops_fp16=NONE,
        tdp_w=NONE,
        unified_memory=unified,
    )
    return Machine(name="m", host=host, devices=(card,))


def free(*holdings: Holding, memory: MemoryTable | None = None) -> dict[str, int]:
    return free_for_models(machine(), holdings, memory or MemoryTable())


def test_what_is_free_is_the_capacity_for_plans() -> None:
    capacity = capacity_of(machine())
    assert free() == {"Host": capacity.host_bytes, "CUDA0": capacity.device_bytes["CUDA0"]}


def test_what_was_promised_and_not_touched_is_not_free() -> None:
    """Mapped weights are page cache, which the kernel calls available; a second model must not be put there."""
    held = Holding(needs={"Host": 8 * GIB}, loading=False, host_bytes=1 * GIB)
    assert free()["Host"] - free(held)["Host"] == 7 * GIB


def test_what_a_loading_engine_holds_already_is_promised_anyway() -> None:
    held = Holding(
        needs={"Host": 8 * GIB, "CUDA0": 4 * GIB}, loading=True, host_bytes=3 * GIB, device_bytes={"CUDA0": 9 * GIB}
    )
    assert free(held)["Host"] - free()["Host"] == 3 * GIB
    assert free(held)["CUDA0"] - free()["CUDA0"] == 4 * GIB, "never more than it was promised"


def test_the_budget_is_for_all_together_and_the_reserve_for_others() -> None:
    held = Holding(needs={"Host": 8 * GIB, "CUDA0": 4 * GIB}, loading=False, host_bytes=8 * GIB)
    table = MemoryTable(budget={"RAM": 10 * GIB, "CUDA0": 5 * GIB}, reserve={"RAM": 1 * GIB})
    assert free(held, memory=table) == {"Host": 2 * GIB, "CUDA0": 1 * GIB}
    assert free(memory=MemoryTable(reserve={"CUDA0": 2 * GIB}))["CUDA0"] == free()["CUDA0"] - 2 * GIB
    assert free(held, memory=MemoryTable(budget={"RAM": 1}))["Host"] == 0


@pytest.mark.parametrize("limit", [None, 40 * GIB])
def test_a_machine_with_room_has_just_that_room(limit: int | None) -> None:
    room = {"Host": 7 * GIB, "CUDA0": 3 * GIB}
    capacity = capacity_of(with_room(machine(limit=limit), room))
    assert capacity.host_bytes == pytest.approx(room["Host"], abs=1)
    assert capacity.device_bytes["CUDA0"] == room["CUDA0"]
    more = with_room(machine(limit=limit), {"CUDA0": 22 * GIB})
    assert capacity_of(more).device_bytes["CUDA0"] == 22 * GIB, "what others will leave counts, too"


def test_a_plan_into_a_room_needs_no_more_than_that_room() -> None:
    room = {"Host": 50 * GIB, "CUDA0": 10 * GIB}
    small = with_room(machine(), room)
    outcome = solve(llama_70b(), small, Workload(context=4096), {})
    assert isinstance(outcome, Plan)
    needs = needs_of(outcome.devices, small)
    assert needs["CUDA0"] <= room["CUDA0"]
    assert 0 < needs["Host"] <= room["Host"]


def test_a_unified_device_draws_on_the_hosts_memory() -> None:
    shared = machine(unified=True)
    outcome = solve(llama_70b(), shared, Workload(context=4096), {})
    assert isinstance(outcome, Plan)
    needs = needs_of(outcome.devices, shared)
    assert set(needs) == {"Host"}
    assert needs["Host"] == sum(share.peak_bytes for share in outcome.devices)
    assert set(free_for_models(replace(shared), (), MemoryTable())) == {"Host"}
