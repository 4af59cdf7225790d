"""The power report on machines whose watts others have measured, and its parts by themselves."""

from dataclasses import replace
from itertools import pairwise

import pytest

from specs import card, llama_70b, llama_spec, machine
from terazi.hardware.machine import Basis, Figure, Machine
from terazi.memory.workload import Workload
from terazi.performance.caps import LOWEST_SHARE, CapAdvice, cap_commands
from terazi.performance.efficiency import CardClass
from terazi.performance.energy import PowerReport, Tariff, power_report
from terazi.performance.forecast import Forecast, forecast, score
from terazi.performance.host_power import (
    Supply,
    check_psu,
    efficiency,
    heat_btu_h,
    host_watts,
    transient,
    wall_w,
)
from terazi.performance.phases import active_parameters, active_share, phases
from terazi.performance.power import DECODE, PREFILL, Load, draw, slowed
from terazi.placement.plan import Plan
from terazi.placement.solve import solve

WORKLOAD = Workload(context=8192, users=1, prompt=512, output=256)


def _planned(spec_machine: Machine, *, big: bool = False, users: int = 1) -> tuple[Plan, Forecast, Workload]:
    spec = llama_70b() if big else llama_spec()
    workload = replace(WORKLOAD, users=users)
    plan = solve(spec, spec_machine, workload, {}, score=score(spec, spec_machine, workload))
    assert isinstance(plan, Plan)
    return plan, forecast(spec, plan, spec_machine, plan.workload), plan.workload


def _report(where: Machine, *, big: bool = False, users: int = 1, supply: Supply | None = None) -> PowerReport:
    plan, said, workload = _planned(where, big=big, users=users)
    spec = llama_70b() if big else llama_spec()
    found = power_report(
        spec, plan, where, workload, said, supply=supply, tariff=Tariff(per_kwh=0.30, currency="EUR"), duty=0.25
    )
    assert isinstance(found, PowerReport)
    return found


def test_a_4090_computer_draws_at_the_wall_what_such_computers_do() -> None:
    """464 to 509 W at the peak of language models (geerlingguy/ai-benchmarks); 504 W in games (hwbusters.com)."""
    ada = card(0, name="GeForce RTX 4090", bandwidth=1008e9, flops=165e12, tdp=450)
    report = _report(machine(ada))
    decode = report.phases[-1]
    assert decode.wall_w.low < 509
    assert decode.wall_w.high > 464
    assert 60 < report.idle_wall_w.mid < 130


def test_tokens_in_cost_a_fraction_of_tokens_out() -> None:
    report = _report(machine(card(0)))
    by_direction = {p.tokens: p.kwh_per_mtok.mid for p in report.phases}
    assert by_direction["in"] < 0.1 * by_direction["out"]
    decode = report.phases[-1]
    assert decode.kwh_per_mtok.mid == pytest.approx(decode.wall_w.mid / 3.6 / decode.tok_s)
    assert decode.cost_per_mtok is not None
    assert decode.cost_per_mtok.mid == pytest.approx(0.30 * decode.kwh_per_mtok.mid)


def test_batches_save_energy() -> None:
    one, eight = _report(machine(card(0))), _report(machine(card(0)), users=8)
    assert eight.phases[-1].name == "8 streams"
    assert eight.phases[-1].kwh_per_mtok.mid < 0.4 * one.phases[-1].kwh_per_mtok.mid
    assert eight.phases[-1].wall_w.mid >= one.phases[-1].wall_w.mid


def test_a_split_takes_turns_so_both_cards_draw_little_more_than_one() -> None:
    """Each of two cards rests for half of the time: 205 W instead of 320."""
    report = _report(machine(card(0), card(1)), big=True)
    watts = report.phases[-1].cards_w
    assert set(watts) == {"CUDA0", "CUDA1"}
    assert all(150 < w < 250 for w in watts.values())


def test_the_knee_of_a_3090_lies_where_cap_tables_have_it() -> None:
    """Decode of a dense model: 230 to 330 of 370 W were the best of the table (club-3090 HARDWARE.md)."""
    cap = _report(machine(card(0))).cap
    assert cap is not None
    assert 200 <= cap.caps_w["CUDA0"] <= 320
    assert 0.85 < cap.speed < 1
    assert cap.saved_energy > 0.03
    assert cap_commands(cap, ["CUDA0"]) == (f"nvidia-smi -i 0 -pl {cap.caps_w['CUDA0']:.0f}",)


def test_the_curve_is_sound() -> None:
    cap = _report(machine(card(0))).cap
    assert cap is not None
    _assert_sound(cap)


def _assert_sound(cap: CapAdvice) -> None:
    curve = cap.curve
    assert curve[0].cap_share == pytest.approx(LOWEST_SHARE)
    assert curve[-1].cap_share == pytest.approx(1.0)
    assert curve[-1].speed == pytest.approx(1.0)
    for lower, higher in pairwise(curve):
        assert lower.speed <= higher.speed + 1e-9
        assert lower.wall_w <= higher.wall_w + 1e-9
    best = curve[cap.knee]
    assert all(best.speed / best.joules_per_token >= p.speed / p.joules_per_token - 1e-9 for p in curve)


def test_a_prompt_pays_more_for_a_cap_than_a_token() -> None:
    found = draw(card(0, cap=200), CardClass.GEFORCE)
    assert found is not None
    assert found.speed_at(PREFILL, 1.0) < found.speed_at(DECODE, 0.65) < 1


@pytest.mark.parametrize(
    ("dynamic", "core", "measured"),
    [
        (0.75, 1.0, 0.86),  # RTX 3090, 27B, prompts at 250 of 370 W
        (0.65, 1.0, 0.84),  # RTX 5090, long texts at 400 of 600 W
        (0.64, 0.65, 0.93),  # RTX 4090, 27B, decode at 260 W
        (0.57, 0.65, 0.84),  # RTX 3090, 35B-A3B, decode at 210 W
    ],
)
def test_speed_under_a_cap_as_measured(dynamic: float, core: float, measured: float) -> None:
    assert slowed(dynamic, core) == pytest.approx(measured, abs=0.07)


def test_small_caps_are_a_cliff() -> None:
    """An RTX 3090 at 100 W keeps a sixth of its speed (club-3090)."""
    assert slowed((100 - 22) / (320 - 22), 0.65) < 0.3


def test_a_cap_that_does_not_bind_costs_nothing() -> None:
    found = draw(card(0, cap=349), CardClass.GEFORCE)
    assert found is not None
    assert found.speed == 1.0


def test_no_board_power_is_said_and_not_guessed() -> None:
    where = machine(card(0, tdp=None))
    plan, said, workload = _planned(where)
    found = power_report(llama_spec(), plan, where, workload, said)
    assert isinstance(found, str)
    assert "isn't known" in found


def test_owners_own_figures_win() -> None:
    where = machine(card(0))
    said = Supply(host_idle_w=40, host_load_w=70, efficiency=0.94)
    assert host_watts(where, said)[:2] == (40, 70)
    assert wall_w(94, said) == pytest.approx(100)
    assert "as you said" in host_watts(where, said).words


def test_gold_supplies_are_best_at_half_their_rating() -> None:
    supply = Supply(psu_w=1000)
    assert efficiency(500, supply) == pytest.approx(0.90)
    assert efficiency(200, supply) == pytest.approx(0.87)
    assert efficiency(350, supply) == pytest.approx(0.885)
    assert efficiency(2000, supply) == pytest.approx(0.87)


def test_two_3090_on_a_small_supply() -> None:
    where = machine(card(0), card(1))
    draws = {d.id: found for d in where.devices if (found := draw(d, CardClass.GEFORCE)) is not None}
    assert check_psu(where, draws, 80, Supply(psu_w=650)).verdict == "too small"
    assert check_psu(where, draws, 80, Supply(psu_w=850)).verdict == "tight"
    assert check_psu(where, draws, 80, Supply(psu_w=1200, atx3=True)).verdict == "holds"
    asked = check_psu(where, draws, 80, Supply())
    assert asked.verdict == "not given"
    assert asked.suggested_w == 1000


def test_a_5090_spikes_as_measured() -> None:
    """901 of 575 W below a millisecond (Igor's Lab)."""
    blackwell = card(0, name="GeForce RTX 5090", tdp=575)
    assert transient(blackwell) * 575 == pytest.approx(901, abs=3)


def test_heat_is_all_of_it() -> None:
    assert heat_btu_h(293.07) == pytest.approx(1000, abs=1)


def test_a_months_bill() -> None:
    report = _report(machine(card(0)), supply=Supply(host_idle_w=50, host_load_w=80, efficiency=0.9))
    hours = 730.5
    expected = (0.25 * report.work_wall_w.mid + 0.75 * report.idle_wall_w.mid) * hours / 1000
    assert report.month.kwh.mid == pytest.approx(expected)
    assert report.month.tokens_in / report.month.tokens_out == pytest.approx(WORKLOAD.prompt / WORKLOAD.output)


def test_idle_draws_less_than_work() -> None:
    for where in (machine(card(0)), machine(card(0), card(1))):
        report = _report(where, big=len(where.devices) > 1)
        assert all(report.idle_wall_w.mid < p.wall_w.mid for p in report.phases)


def test_phases_stay_under_the_roofs() -> None:
    where = machine(card(0))
    plan, said, workload = _planned(where, users=4)
    for phase in phases(llama_spec(), plan, where, workload, said):
        for load in phase.loads.values():
            assert 0 <= load.memory <= 1
            assert 0 <= load.compute <= 1
            assert 0 < load.busy <= 1


def test_an_8b_model_multiplies_with_eight_billion_weights() -> None:
    assert active_parameters(llama_spec()) == pytest.approx(7.5e9, rel=0.02)
    assert active_share(llama_spec(), 8) == 1.0


def test_a_mixture_reads_what_it_routes_to() -> None:
    spec = llama_spec(experts=8, experts_used=2)
    one, many = active_share(spec, 1), active_share(spec, 64)
    assert 0.25 < one < 0.40
    assert many == pytest.approx(1.0, abs=0.01)


def test_waiting_is_between_idle_and_work() -> None:
    found = draw(card(0), CardClass.GEFORCE)
    assert found is not None
    idle, half, full = (found.wanted_w(Load(0.6, 0.02, busy)) for busy in (0.0, 0.5, 1.0))
    assert 22 < idle < half < full <= 350


def test_a_known_idle_is_not_called_assumed() -> None:
    measured = replace(card(0), idle_w=Figure(value=18.0, basis=Basis.MEASURED))
    assert not any("assumed" in text and "idle watts" in text for text in _report(machine(measured)).basis)


def test_caps_on_a_split_cost_prompts_and_hardly_tokens() -> None:
    """Six RTX 3090 from 350 to 200 W: decode -6 %, prompts -40 % (club-3090 HARDWARE.md, a mixture of experts)."""

    def speeds(cap: float | None) -> Forecast:
        where = machine(*(card(i, cap=cap) for i in range(6)))
        spec = llama_70b()
        plan = solve(spec, where, WORKLOAD, {"tensor_split": (1.0,) * 6})
        assert isinstance(plan, Plan)
        return forecast(spec, plan, where, plan.workload)

    free, capped = speeds(None), speeds(200)
    assert capped.decode_tok_s.mid / free.decode_tok_s.mid > 0.9
    assert 0.5 < capped.prefill_tok_s.mid / free.prefill_tok_s.mid < 0.8


def test_experts_on_the_host_leave_the_card_waiting() -> None:
    spec = llama_spec(experts=8, experts_used=2)
    where = machine(card(0))
    plan = solve(spec, where, WORKLOAD, {"n_cpu_moe": 16})
    assert isinstance(plan, Plan)
    said = forecast(spec, plan, where, plan.workload)
    token = phases(spec, plan, where, plan.workload, said)[1]
    assert token.host_busy > 0.5
    assert token.loads["CUDA0"].busy < 0.5
    assert token.host_busy + token.loads["CUDA0"].busy <= 1.0
