"""What must hold of any forecast, whatever the card, the model and the load."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specs import card, llama_spec, machine
from terazi.memory.workload import Workload
from terazi.performance.collectives import Fabric, Wire
from terazi.performance.forecast import Forecast, forecast
from terazi.performance.many_users import users_within
from terazi.performance.queueing import Load, serve
from terazi.performance.routing import distinct_experts
from terazi.performance.stage import Rank, Stage
from terazi.performance.traffic import CacheRows
from terazi.placement.plan import Plan
from terazi.placement.solve import solve

SPEC = llama_spec()


def _said(work: Workload, *, bandwidth: float = 936e9, flops: float = 71e12) -> Forecast:
    on = machine(card(0, gib=80, bandwidth=bandwidth, flops=flops, name="Mystery RTX"))
    plan = solve(SPEC, on, work, {})
    assert isinstance(plan, Plan)
    return forecast(SPEC, plan, on, work)


works = st.builds(
    Workload,
    context=st.just(4096),
    users=st.integers(1, 8),
    prompt=st.integers(1, 2048),
    output=st.integers(1, 1024),
)


@given(work=works)
@settings(max_examples=20, deadline=None)
def test_low_is_below_mid_is_below_high(work: Workload) -> None:
    said = _said(work)
    for interval in (said.decode_tok_s, said.throughput_tok_s, said.prefill_tok_s, said.ttft_s, said.itl_s):
        assert 0 < interval.low <= interval.mid <= interval.high
    assert 0 <= said.prefill_share <= 1
    assert said.throughput_tok_s.mid * said.itl_s.mid == pytest.approx(work.users)


@given(work=works, more=st.floats(1.05, 3.0))
@settings(max_examples=20, deadline=None)
def test_a_faster_card_is_never_slower(work: Workload, more: float) -> None:
    slow, fast = _said(work), _said(work, bandwidth=936e9 * more, flops=71e12 * more)
    assert fast.decode_tok_s.mid >= slow.decode_tok_s.mid
    assert fast.ttft_s.mid <= slow.ttft_s.mid
    assert fast.itl_s.mid <= slow.itl_s.mid


@given(work=works, longer=st.integers(1, 1024))
@settings(max_examples=20, deadline=None)
def test_a_longer_prompt_is_never_sooner_and_never_makes_tokens_faster(work: Workload, longer: int) -> None:
    short, long = _said(work), _said(replace(work, prompt=work.prompt + longer))
    assert long.ttft_s.mid >= short.ttft_s.mid
    assert long.decode_tok_s.mid <= short.decode_tok_s.mid


@given(
    experts=st.integers(2, 256),
    used=st.integers(1, 16),
    tokens=st.integers(1, 512),
    skew=st.floats(0, 2),
)
@settings(max_examples=60, deadline=None)
def test_skewed_routing_touches_no_more_than_uniform(experts: int, used: int, tokens: int, skew: float) -> None:
    assume(used < experts)
    skewed = distinct_experts(experts, used, tokens, round(skew, 2))
    uniform = experts * (1 - (1 - used / experts) ** tokens)
    assert used * 0.999 <= skewed <= uniform * 1.001


loads = st.builds(Load, users=st.integers(1, 200), prompt=st.integers(1, 8192), output=st.integers(1, 2048))


@given(load=loads, slots=st.integers(1, 64), chunk=st.integers(64, 8192), tensor=st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=100, deadline=None)
def test_the_closed_loop_keeps_littles_law(load: Load, slots: int, chunk: int, tensor: int) -> None:
    stage = Stage(
        layers=32,
        hidden=4096,
        dense_bytes=15e9 / tensor,
        dense_flops=15e9 / tensor,
        caches=(CacheRows(131072 / tensor, None),),
        pair_flops=5e5 / tensor,
        tensor=tensor,
        fabric=Fabric(Wire.PCIE_P2P, 31.5e9),
    )
    rank = Rank(936e9, 0.79, 0.92, 71e12, 71e12, 0.65, 37e-6, 40e-6, 5e-4, 58e-6)

    def step(*, streams: int, depth: float, prompt_tokens: float = 0.0, prompt_depth: float = 0.0) -> float:
        return stage.step_s(
            rank, streams=streams, depth=depth, prompt_tokens=prompt_tokens, prompt_depth=prompt_depth
        )

    seen = serve(step, load, slots=slots, chunk=chunk)
    assert seen.running == min(load.users, slots)
    in_system = seen.ttft_s + (load.output - 1) * seen.tpot_s
    assert seen.throughput_tok_s / load.output * in_system == pytest.approx(load.users, rel=1e-6)
    assert seen.tpot_s >= seen.step_s
    assert seen.ttft_s >= seen.prompt_s
    assert 0 <= seen.prefill_share <= 1


@given(limit=st.floats(0.005, 0.2))
@settings(max_examples=10, deadline=None)
def test_a_looser_limit_never_takes_fewer_users(limit: float) -> None:
    work = Workload(context=2048, users=8, prompt=256, output=128)
    on = machine(card(0))
    plan = solve(SPEC, on, work, {})
    assert isinstance(plan, Plan)
    tight, loose = (users_within(SPEC, plan, on, work, itl_s=s, ttft_s=20.0) for s in (limit, 1.5 * limit))
    assert tight <= loose
