"""How many loads the keeper needs beside the offline optimum, which knows the future, on random traces."""

import random
from collections.abc import Sequence
from statistics import mean

import pytest

from keeper_world import Request, World
from offline_optimum import optimum


def trace(chance: random.Random, models: Sequence[str], per_s: float, kind: str) -> list[Request]:
    """Five minutes of requests: all models alike, some asked for more, or the same one several times in a row."""
    weights = [1 / (n + 1) for n in range(len(models))] if kind == "skewed" else [1.0] * len(models)
    found: list[Request] = []
    now = 0.0
    while (now := now + chance.expovariate(per_s)) < 300:
        again = kind == "in bursts" and found and chance.random() < 0.7
        model = found[-1].model if again else chance.choices(models, weights)[0]
        found.append(Request(model, now, chance.uniform(0.5, 1.5)))
    return found


def test_the_optimum_is_beladys_on_a_case_worked_by_hand() -> None:
    needs, load_s = {"a": 1, "b": 1, "c": 1}, {"a": 1.0, "b": 1.0, "c": 1.0}

    assert optimum(needs, load_s, 2, "abcab") == 4  # c takes b's place, then b takes c's or a's
    assert optimum(needs, load_s, 2, "abcb") == 3
    assert optimum(needs, load_s, 3, "abcabc") == 3
    assert optimum(needs, {**load_s, "a": 10.0}, 2, "abcbca") == 14  # keeping a saves ten


@pytest.mark.parametrize("kind", ["alike", "skewed", "in bursts"])
@pytest.mark.parametrize(("count", "fit"), [(3, 2), (4, 2), (5, 3)])
def test_loading_is_within_half_as_much_again_of_the_optimum(count: int, fit: int, kind: str) -> None:
    ratios, longest = [], 0.0
    for seed in range(10):
        chance = random.Random(f"{kind} {count} {seed}")  # noqa: S311 - a test's
        models = [f"m{n}" for n in range(count)]
        needs = {model: 100 if count == 3 else chance.choice([80, 100, 120]) for model in models}
        load_s = {model: chance.choice([1.0, 2.0, 4.0]) for model in models}
        requests = trace(chance, models, 0.4, kind)
        world = World({"RAM": 100 * fit})
        for model in models:
            world.know(model, model, {"RAM": needs[model]}, load_s[model])

        world.play(requests)

        assert len(world.served) == len(requests)
        spent = sum(engine.loads * engine.load_s for engine in world.engines.values())
        ratios.append(spent / optimum(needs, load_s, 100 * fit, [r.model for r in requests]))
        longest = max(longest, *(at - r.arrived for r, at in world.served))
    assert mean(ratios) <= 1.5
    assert longest < 120
