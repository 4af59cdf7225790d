"""llama-server under many users, and the most that fit within limits."""

from dataclasses import replace

import pytest

from specs import card, llama_spec, machine
from terazi.memory.workload import Workload
from terazi.performance.forecast import forecast
from terazi.performance.many_users import users_within
from terazi.placement.plan import Plan
from terazi.placement.solve import solve

ON = machine(card(0))
WORK = Workload(context=2048, users=8, prompt=512, output=128)


def _plan(work: Workload = WORK, **pins: object) -> Plan:
    plan = solve(llama_spec(), ON, work, pins)
    assert isinstance(plan, Plan)
    return plan


def test_others_prompts_come_between_the_tokens_of_a_stream() -> None:
    short, long = replace(WORK, prompt=32), replace(WORK, prompt=1024)
    few, many = (forecast(llama_spec(), _plan(w), ON, w) for w in (short, long))
    assert many.itl_s.mid > 1.5 * few.itl_s.mid
    assert many.prefill_share > 3 * few.prefill_share
    assert many.ttft_s.mid > few.ttft_s.mid


def test_users_without_a_slot_wait() -> None:
    plan = _plan(replace(WORK, users=4))
    served, crowded = (forecast(llama_spec(), plan, ON, replace(WORK, users=n)) for n in (4, 12))
    assert crowded.itl_s.mid == pytest.approx(served.itl_s.mid)
    assert crowded.ttft_s.mid > 5 * served.ttft_s.mid
    assert any("wait" in b for b in crowded.basis)


def test_most_users_within_limits() -> None:
    plan = _plan()
    assert users_within(llama_spec(), plan, ON, WORK, itl_s=1e-4) == 0
    most = users_within(llama_spec(), plan, ON, WORK, itl_s=0.02)
    assert 1 <= most < 8
    assert forecast(llama_spec(), plan, ON, replace(WORK, users=most)).itl_s.mid <= 0.02
    assert forecast(llama_spec(), plan, ON, replace(WORK, users=most + 1)).itl_s.mid > 0.02


def test_a_draft_head_shows_in_the_forecast() -> None:
    """Tokens guessed ahead are forecast, with the share that is right as given or assumed."""
    from terazi.memory.llama_cpp.settings import LlamaCppSettings
    from terazi.memory.llama_cpp.speculation import Speculation
    from terazi.placement.follow import follow

    one = replace(WORK, users=1)
    settings = LlamaCppSettings(
        n_ctx=2048, n_parallel=1, n_gpu_layers=99, speculation=Speculation(kinds=("ngram-simple",), n_max=3)
    )
    plan = follow(llama_spec(), ON, settings, one)
    assert isinstance(plan, Plan)
    plain = follow(llama_spec(), ON, replace(settings, speculation=Speculation(kinds=())), one)
    assert isinstance(plain, Plan)
    none, half, all_right = (forecast(llama_spec(), plan, ON, one, accepted=r) for r in (0.0, 0.5, 1.0))
    without = forecast(llama_spec(), plain, ON, one)
    assert none.decode_tok_s.mid < without.decode_tok_s.mid < half.decode_tok_s.mid < all_right.decode_tok_s.mid
    assumed = forecast(llama_spec(), plan, ON, one)
    assert any("assumed" in b for b in assumed.basis)
    assert assumed.decode_tok_s.high / assumed.decode_tok_s.low > half.decode_tok_s.high / half.decode_tok_s.low


def test_limits_of_the_workload_are_answered_with_an_interval() -> None:
    limited = replace(WORK, itl_limit_s=0.02)
    said = forecast(llama_spec(), _plan(), ON, limited).users_at_slo
    assert said is not None
    assert said.low <= said.mid <= said.high
    assert said.mid == users_within(llama_spec(), _plan(), ON, WORK, itl_s=0.02)
    assert forecast(llama_spec(), _plan(), ON, WORK).users_at_slo is None
