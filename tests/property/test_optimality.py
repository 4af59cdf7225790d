"""The solver against exhaustive search under the real bill: every layout of small models on small machines.

So many of them that the suite stays quick; TERAZI_OPTIMALITY says how many times as many are tried, 10 for five
hundred and more (docs/reference/optimality.md has what came of it).
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specs import card, llama_spec, machine, read
from terazi.hardware.machine import Device, Machine, PcieLink
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.appraiser import Appraiser
from terazi.placement.capacity import capacity_of
from terazi.placement.judge import judge
from terazi.placement.plan import Plan
from terazi.placement.solve import base_settings, solve, with_context
from terazi.placement.sums import place
from terazi.units import MIB

TIMES = int(os.environ.get("TERAZI_OPTIMALITY", "1"))
#: Nothing but the layout is left to choose.
PINS = {"type_k": "f16", "type_v": "f16", "n_ubatch": 512}


@st.composite
def models(draw: st.DrawFn, layers: tuple[int, int] = (2, 4)) -> ModelSpec:
    return llama_spec(
        layers=draw(st.integers(*layers)),
        embedding=1024,
        feed_forward=draw(st.sampled_from([2048, 4096])),
        heads=8,
        kv_heads=draw(st.sampled_from([1, 8])),
        vocab=draw(st.sampled_from([2048, 32000])),
        dtype=draw(st.sampled_from(["Q4_K", "F16"])),
        tied=draw(st.booleans()),
        context=8192,
    )


@st.composite
def machines(draw: st.DrawFn, spec: ModelSpec, work: Workload, cards: int) -> Machine:
    """Up to three unequal cards, of which none or some hold all of *spec*, by the slowest and the fastest slot."""
    devices: list[Device] = []
    whole = judge(
        spec,
        machine(replace(card(0), context_bytes=read(0.0))),
        place(_base(spec, work), (replace(card(0), context_bytes=read(0.0)),), (spec.block_count + 1,)),
        capacity_of(machine(card(0))),
    ).bill.needed_bytes("CUDA0")
    for i in range(draw(st.integers(1, cards))):
        share = draw(st.sampled_from([0.2, 0.45, 0.6, 0.8, 1.3]))
        bandwidth, flops = draw(st.sampled_from([20e9, 100e9, 400e9, 1800e9])), draw(st.sampled_from([1e12, 30e12]))
        device = card(i, bandwidth=bandwidth, flops=flops)
        devices.append(
            replace(
                device,
                memory_free_bytes=round(share * whole) + 256 * MIB,
                memory_total_bytes=round(share * whole) + 256 * MIB,
                context_bytes=read(0.0),
                pcie=PcieLink(generation=draw(st.sampled_from([1, 4])), lanes=draw(st.sampled_from([1, 16]))),
            )
        )
    return machine(*devices, host_gib=draw(st.sampled_from([0.6, 8])))


workloads = st.builds(
    Workload,
    context=st.sampled_from([1024, 8192]),
    users=st.sampled_from([1, 1, 3]),
    prompt=st.sampled_from([1, 200, 512]),
    output=st.sampled_from([1, 64, 512]),
)


@st.composite
def instances(
    draw: st.DrawFn, layers: tuple[int, int] = (2, 4), cards: int = 3
) -> tuple[ModelSpec, Machine, Workload]:
    spec, work = draw(models(layers)), draw(workloads)
    return spec, draw(machines(spec, work, cards)), work


def _base(spec: ModelSpec, work: Workload) -> LlamaCppSettings:
    assert work.context is not None
    return with_context(base_settings(work, PINS), work.context)


def _every_plan(spec: ModelSpec, on: Machine, work: Workload) -> Iterator[Plan]:
    total = spec.block_count + 1
    for counts in product(range(total + 1), repeat=len(on.devices)):
        if sum(counts) > total:
            continue
        laid = place(_base(spec, work), on.devices, counts)
        judged = judge(spec, on, laid, capacity_of(on))
        if not judged.shortfall:
            yield Plan(
                id=repr(counts),
                engine="llama.cpp",
                settings=laid,
                workload=work,
                verdict=judged.verdict,
                devices=judged.shares,
                bill=judged.bill,
            )


def _assert_none_is_better(instance: tuple[ModelSpec, Machine, Workload], short_of: float = 1e-6) -> None:
    spec, on, work = instance
    appraiser = Appraiser(spec, on, work)
    found = solve(spec, on, work, PINS, score=appraiser)
    marks = [appraiser.score(plan) for plan in _every_plan(spec, on, work)]
    assert isinstance(found, Plan) == bool(marks)
    if isinstance(found, Plan):
        assert appraiser.score(found) >= max(marks) * (1 - short_of)


@settings(max_examples=50 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances())
def test_no_layout_scores_better(instance: tuple[ModelSpec, Machine, Workload]) -> None:
    _assert_none_is_better(instance)


@settings(max_examples=5 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(layers=(5, 8)))
def test_nor_of_up_to_eight_layers(instance: tuple[ModelSpec, Machine, Workload]) -> None:
    _assert_none_is_better(instance)


@settings(max_examples=2 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(layers=(9, 12), cards=2))
def test_of_more_layers_than_are_all_tried_none_is_much_better(
    instance: tuple[ModelSpec, Machine, Workload],
) -> None:
    """Times are summed and neighbours asked for here: what does not add up may be missed, by a twentieth."""
    _assert_none_is_better(instance, 0.05)
