"""What must hold for every machine, model and workload."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from specs import card, llama_spec, machine
from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST
from terazi.memory.settings import llama_cpp_settings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.forecast import Forecast, Interval, forecast
from terazi.placement.capacity import host_capacity
from terazi.placement.follow import follow
from terazi.placement.plan import Plan, Refusal, Verdict
from terazi.placement.solve import solve
from terazi.units import GIB

SPEEDS = [300e9, 600e9, 936e9, 1800e9]


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    sizes = draw(st.lists(st.sampled_from([2, 4, 6, 8, 12, 16, 24, 48]), max_size=8))
    devices: list[Device] = []
    for i, gib in enumerate(sizes):
        free = round(draw(st.floats(0.5, 1.0)) * gib * GIB)
        devices.append(replace(card(i, gib=gib, bandwidth=draw(st.sampled_from(SPEEDS))), memory_free_bytes=free))
    return machine(*devices, host_gib=draw(st.sampled_from([4, 8, 16, 64, 256])))


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    width = draw(st.sampled_from([1024, 4096, 8192]))
    experts = draw(st.sampled_from([0, 0, 8]))
    return llama_spec(
        layers=draw(st.integers(1, 40)),
        embedding=width,
        feed_forward=width * 3,
        heads=width // 128,
        kv_heads=draw(st.sampled_from([1, 8])),
        vocab=32000,
        dtype=draw(st.sampled_from(["Q4_K", "Q8_0", "F16"])),
        tied=draw(st.booleans()),
        context=draw(st.sampled_from([2048, 32768])),
        experts=experts,
        experts_used=min(2, experts),
    )


workloads = st.builds(
    Workload,
    context=st.sampled_from([None, 512, 4096, 32768, 131072]),
    users=st.integers(1, 9),
    prompt=st.integers(1, 4096),
    output=st.integers(1, 1024),
)


@settings(max_examples=40)
@given(models(), machines(), workloads)
def test_a_plan_fits_and_places_every_layer_once(spec: ModelSpec, on: Machine, work: Workload) -> None:
    answer = solve(spec, on, work, {})
    rows = answer.devices if isinstance(answer, Plan) else answer.closest
    placed = [i for row in rows if row.layers for i in range(row.layers[0], row.layers[1] + 1)]
    assert sorted(placed) == list(range(spec.block_count + 1))
    assert [row.id for row in rows] == [*(d.id for d in on.devices), HOST]
    assert sum(row.total_bytes for row in rows) == answer.bill.total_bytes
    if isinstance(answer, Refusal):
        assert answer.shortfall
        assert all(s.missing_bytes > 0 for s in answer.shortfall)
        return
    for row in rows:
        assert 0 <= row.total_bytes <= row.capacity_bytes
        assert row.headroom_bytes == row.capacity_bytes - row.total_bytes
        assert row.total_bytes <= row.peak_bytes <= answer.bill.needed_bytes(row.id) <= row.capacity_bytes
    growth = sum(line.bytes for line in answer.bill.growth if line.device == HOST)
    assert rows[-1].total_bytes + rows[-1].process_bytes + growth <= host_capacity(on.host)
    asked = work.context if work.context is not None else 1
    slots = llama_cpp_settings(answer.settings).n_parallel
    assert slots == work.users
    assert llama_cpp_settings(answer.settings).n_ctx >= slots * asked
    layers_at_host = rows[-1].layers not in (None, (spec.block_count,) * 2)
    chosen = llama_cpp_settings(answer.settings)
    experts_at_host = chosen.n_cpu_moe or any(place == "CPU" for _, place in chosen.override_tensor)
    assert (answer.verdict is Verdict.FITS_OFFLOADED) == bool(on.devices and (layers_at_host or experts_at_host))
    again = follow(spec, on, llama_cpp_settings(answer.settings), work)
    assert isinstance(again, Plan)
    assert (again.id, again.verdict, again.devices) == (answer.id, answer.verdict, answer.devices)


@settings(max_examples=15)
@given(models(), machines(), workloads)
def test_alternatives_of_a_refusal_fit(spec: ModelSpec, on: Machine, work: Workload) -> None:
    tight = replace(on, host=replace(on.host, ram_available_bytes=GIB))
    answer = solve(spec, tight, work, {})
    if isinstance(answer, Refusal):
        assert len(answer.alternatives) <= 3
        for alternative in answer.alternatives:
            again = follow(spec, tight, llama_cpp_settings(alternative.settings), work)
            assert isinstance(again, Plan)
            assert again.bill.total_bytes == alternative.total_bytes


@settings(max_examples=25)
@given(models(), machines(), workloads, st.integers(0, 8), st.integers(1, 16))
def test_more_memory_never_turns_a_fit_into_a_refusal(
    spec: ModelSpec, on: Machine, work: Workload, where: int, more: int
) -> None:
    if not isinstance(solve(spec, on, work, {}), Plan):
        return
    extra = more * GIB
    if where < len(on.devices):
        d = on.devices[where]
        grown = replace(
            d, memory_total_bytes=d.memory_total_bytes + extra, memory_free_bytes=d.memory_free_bytes + 2 * extra
        )
        larger = replace(on, devices=(*on.devices[:where], grown, *on.devices[where + 1 :]))
    else:
        h = on.host
        larger = replace(
            on,
            host=replace(
                h, ram_total_bytes=h.ram_total_bytes + extra, ram_available_bytes=h.ram_available_bytes + extra
            ),
        )
    assert isinstance(solve(spec, larger, work, {}), Plan)


def _intervals(said: Forecast) -> list[Interval]:
    found = [said.decode_tok_s, said.throughput_tok_s, said.prefill_tok_s, said.ttft_s, said.itl_s]
    return found + [i for i in (said.power_w, said.kwh_per_mtok) if i is not None]


@settings(max_examples=25)
@given(models(), machines(), workloads, st.integers(1, 2000))
def test_forecasts_are_ordered_positive_and_slower_with_depth(
    spec: ModelSpec, on: Machine, work: Workload, deeper: int
) -> None:
    answer = solve(spec, on, work, {})
    if not isinstance(answer, Plan):
        return
    said = forecast(spec, answer, on, work)
    for interval in _intervals(said):
        assert 0 < interval.low <= interval.mid <= interval.high < float("inf")
    assert said.basis
    further = forecast(spec, answer, on, replace(work, prompt=work.prompt + deeper))
    assert further.decode_tok_s.mid <= said.decode_tok_s.mid
    if answer.verdict is Verdict.FITS:  # with layers in RAM a batch of 32 moves to the card and may gain by it
        assert further.ttft_s.mid >= said.ttft_s.mid * (1 - 1e-9)
