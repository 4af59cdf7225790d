"""The keeper of models in memory: the failures that others have had, each as a short story in virtual seconds."""

from keeper_world import World
from terazi.policy.residency_messages import (
    Close,
    CloseModel,
    FreeMeasured,
    Load,
    LoadAsked,
    Measure,
    MemoryPressed,
    ModelWanted,
    Open,
    OpenModel,
    PlanAgain,
    UnitFailed,
    UnitForgotten,
    UnitKnown,
    UnitRestarting,
    Unload,
    UnloadAsked,
)
from terazi.policy.residency_state import Limits, Residence

RAM = {"RAM": 100}


def two(load_s: float = 2.0, room: int = 100, **terms: object) -> World:
    """Two models, and room for one of them."""
    world = World({"RAM": room}, Limits(min_stay_s=5, batch_s=10))
    for model in "ab":
        world.know(model, model, RAM, load_s, **terms)
    return world


def said(world: World, kind: type) -> list[tuple[float, str]]:
    return [
        (round(at, 1), getattr(c, "unit", getattr(c, "model", ""))) for at, c in world.log if isinstance(c, kind)
    ]


def test_a_busy_model_is_closed_after_the_bound_and_unloaded_when_it_has_finished() -> None:
    """llama.cpp#24849: a swap killed the model that was generating."""
    world = two()
    world.ask("a", 60)
    world.run(5)
    world.ask("b", 1)
    world.run(30)
    assert said(world, Close) == [(15.0, "a")], "served on until the bound, then it runs empty"
    world.ask("a", 1)
    world.run(100)
    assert said(world, Unload)[0] == (62.0, "a"), "when its request had finished"
    assert len(world.served) == 3


def test_a_closed_unit_stays_closed_while_it_runs_empty() -> None:
    world = two()
    world.ask("a", 60)
    world.run(5)
    world.ask("b", 1)
    for _ in range(20):
        world.run(world.now + 2)
        world.ask("a", 1)  # each time the queue is told of, and each time memory is measured again
    assert said(world, Open) == []
    assert len(said(world, Close)) == 1


def test_it_is_opened_again_when_nobody_waits_any_more() -> None:
    world = two()
    world.ask("a", 60)
    world.run(5)
    world.ask("b", 1)
    world.run(16)
    world.give_up("b")
    # its clients left, but a was closed for it: it is loaded all the same, so that their next try finds it
    world.run(90)
    assert world.keeper.residence("b") is Residence.READY


def test_what_was_loaded_for_requests_is_safe_until_they_came_in() -> None:
    """llama.cpp#28698: evicted between the load and the request that it was loaded for."""
    world = two(load_s=1.0)
    world.tell(ModelWanted(model="a", waiting=1, since=0.0))
    world.run(1.5)
    assert world.keeper.residence("a") is Residence.READY
    world.tell(LoadAsked(unit="b", evict=True))  # a person asks: no minimum stay is minded, but this is
    world.run(8)
    assert said(world, Unload) == []
    world.run(20)
    assert said(world, Unload) == [(11.0, "a")], "whoever it was for never came"


def test_other_patience_counts_from_then_on() -> None:
    world = two(load_s=1.0)
    world.keeper.relimit(Limits(min_stay_s=40, batch_s=10))
    world.ask("a", 1)
    world.run(5)
    world.ask("b", 1)
    world.run(100)
    assert said(world, Unload)[0] == (41.0, "a")


def test_two_cold_models_at_once_are_both_served() -> None:
    """llama.cpp#28443: one of two was queued for ever."""
    world = two()
    world.ask("a", 1)
    world.ask("b", 1)
    world.run(60)
    assert {request.model for request, _ in world.served} == {"a", "b"}


def test_a_loading_unit_is_no_victim() -> None:
    """llama.cpp#25528."""
    world = two(load_s=30.0)
    world.ask("a", 1)
    world.run(1)
    world.ask("b", 1)
    world.run(29)
    assert said(world, Unload) == []


def test_a_load_waits_until_freed_memory_is_seen_as_free() -> None:
    """llama-swap#97: the next model was started into memory that wasn't free yet."""
    world = two()
    world.lag_s = 3.0
    world.ask("a", 1)
    world.run(20)
    world.ask("b", 1)
    world.run(60)
    gone = said(world, Unload)[0][0]
    begun = said(world, Load)[1][0]
    assert 3.2 <= begun - gone <= 3.8
    assert len(said(world, Measure)) < 25, "it looks now and then, not all the time"


def test_memory_that_never_comes_back_is_waited_for_and_then_said() -> None:
    world = two()
    world.ask("a", 1)
    world.run(20)
    world.lag_s = 1e6
    world.ask("b", 1)
    world.run(120)
    assert said(world, PlanAgain), "there is no room for it as it is"
    assert [model for _, model in said(world, CloseModel)] == ["b"]
    assert len(world.turned_away) == 1


def test_a_model_that_fails_is_closed_for_longer_each_time() -> None:
    """LocalAI#10719: a broken model was started again at every request."""
    world = two()
    world.engines["a"].failing = [UnitFailed(unit="a", reason="broken")] * 4
    opened = []
    for _ in range(4):
        world.ask("a", 1)
        world.run(world.now + 2.5)
        closed_at = world.now
        while "a" in world.closed:
            world.run(world.now + 0.5)
        opened.append(world.now - closed_at)
    assert [round(pause / 10) for pause in opened] == [1, 2, 4, 8]
    world.keeper.relimit(Limits(cool_s=10, cool_most_s=30))
    world.engines["a"].failing = [UnitFailed(unit="a", reason="broken")]
    world.ask("a", 1)
    world.run(world.now + 2.5)
    closed_at = world.now
    while "a" in world.closed:
        world.run(world.now + 0.5)
    assert round((world.now - closed_at) / 10) == 3, "never longer than the most that is set"
    world.ask("a", 1)
    world.run(world.now + 10)
    assert len(world.served) == 1, "no hand was needed"


def test_a_model_that_cannot_work_stays_closed_until_its_terms_change() -> None:
    world = two()
    world.engines["a"].failing = [UnitFailed(unit="a", reason="no model", for_good=True)]
    world.ask("a", 1)
    world.run(4000)
    assert "a" in world.closed
    known = world.engines["a"].terms
    world.tell(UnitKnown(unit="a", model="a", needs=known.needs, load_s=3.0))
    world.tell(LoadAsked(unit="a"))
    world.run(4100)
    assert world.keeper.residence("a") is Residence.READY


def test_an_engine_without_memory_gets_one_more_try_with_all_the_room() -> None:
    world = World({"RAM": 300}, Limits(min_stay_s=5, batch_s=10))
    for model in "abc":
        world.know(model, model, RAM, 1.0)
    for model in "ab":
        world.ask(model, 1)
    world.run(20)
    world.engines["c"].failing = [UnitFailed(unit="c", reason="oom", no_memory=True)]
    world.ask("c", 1)
    world.run(40)
    assert sorted(unit for _, unit in said(world, Unload)) == ["a", "b"]
    assert [request.model for request, _ in world.served] == ["a", "b", "c"]
    assert not said(world, CloseModel)


def test_a_pinned_model_is_loaded_at_once_and_never_goes() -> None:
    world = World({"RAM": 200})
    world.know("kept", "kept", RAM, 1.0, pinned=True, idle_s=1.0)
    for model in "bc":
        world.know(model, model, RAM, 1.0)
    world.run(2)
    assert world.keeper.residence("kept") is Residence.READY
    for model in "bcbc":
        world.ask(model, 1)
        world.run(world.now + 60)
    world.tell(MemoryPressed(need={"RAM": 200}))
    assert "kept" not in {unit for _, unit in said(world, Unload)}


def test_an_idle_model_goes_after_its_time_and_not_while_it_is_used() -> None:
    world = two(idle_s=30.0)
    world.ask("a", 100)
    world.run(131)
    assert said(world, Unload) == []
    world.run(133)
    assert said(world, Unload) == [(132.0, "a")]


def test_what_is_asked_for_without_need_takes_only_what_is_free() -> None:
    world = two()
    world.ask("a", 1)
    world.run(30)
    world.tell(LoadAsked(unit="b", evict=False))
    world.run(300)
    assert world.keeper.residence("a") is Residence.READY
    assert world.keeper.residence("b") is Residence.COLD


def test_pressure_takes_the_idle_ones_that_cost_least_to_load() -> None:
    world = World({"RAM": 300})
    for model, load_s in (("dear", 60.0), ("cheap", 1.0), ("busy", 1.0)):
        world.know(model, model, RAM, load_s)
        world.ask(model, 500 if model == "busy" else 1)
    world.run(100)
    world.tell(MemoryPressed(need={"RAM": 50}))
    assert said(world, Unload) == [(100.0, "cheap")]


def test_an_engine_that_is_started_again_keeps_its_place() -> None:
    world = two()
    world.ask("a", 1)
    world.run(20)
    world.tell(UnitRestarting(unit="a"))
    world.ask("b", 1)
    world.run(25)
    assert said(world, Unload) == [], "it is loading"
    assert world.keeper.residence("a") is Residence.LOADING


def test_a_figure_that_is_out_of_date_loads_and_unloads_nothing() -> None:
    world = two()
    world.tell(FreeMeasured(free={"RAM": 100}))
    world.now = 50.0
    commands = world.keeper.step(ModelWanted(model="a", waiting=1, since=50.0), 50.0)
    assert [type(command) for command in commands if not hasattr(command, "at")] == [Measure]


def test_a_higher_priority_does_not_wait_for_the_bound() -> None:
    world = World({"RAM": 100}, Limits(min_stay_s=5, batch_s=100))
    world.know("low", "low", RAM, 1.0)
    world.know("high", "high", RAM, 1.0, priority=5)
    world.ask("low", 20)
    world.run(10)
    world.ask("high", 1)
    world.run(10.5)
    assert said(world, Close) == [(10.0, "low")]


def test_a_model_that_is_opened_again_is_not_loaded_later_for_those_who_came_in_then() -> None:
    world = two()
    world.ask("a", 60)
    world.run(5)
    world.ask("b", 1)
    world.run(16)
    world.ask("a", 1)  # a is closed, so this one waits
    world.tell(UnitForgotten(unit="b"))
    assert said(world, Open) == [(16.0, "a")]
    world.run(100)
    assert len(world.served) == 2
    world.tell(UnloadAsked(unit="a", reason="asked"))
    world.run(200)
    assert said(world, Load) == [(0.0, "a")]


def test_a_long_queue_of_old_requests_does_not_take_every_turn() -> None:
    """What is left of a's queue is older than b's requests: a went for b, and was loaded again before it."""
    world = two()
    for _ in range(30):
        world.ask("a", 8)
    world.run(1)
    world.ask("b", 1)
    world.run(300)
    turns = [unit for _, unit in said(world, Load)]
    assert turns == ["a", "b", "a"]
    assert len(world.served) == 31


def test_a_higher_priority_waits_for_the_stay_that_pays_for_a_load() -> None:
    world = World({"RAM": 100}, Limits(min_stay_s=5, batch_s=100))
    world.know("low", "low", RAM, 20.0)
    world.know("high", "high", RAM, 1.0, priority=5)
    world.ask("low", 200)
    world.run(1)
    world.ask("high", 1)
    world.run(300)
    assert said(world, Close) == [(60.0, "low")], "ready at 20, and twice that long in use"


def test_a_closed_model_opens_when_it_is_loaded_by_hand() -> None:
    world = two()
    world.engines["a"].failing = [UnitFailed(unit="a", reason="broken")]
    world.ask("a", 1)
    world.run(3)
    assert "a" in world.closed
    world.tell(LoadAsked(unit="a"))
    world.run(7)
    assert said(world, OpenModel) == [(5.0, "a")]
