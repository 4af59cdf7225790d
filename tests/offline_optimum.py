"""The fewest seconds of loading that a trace of requests can be served with, when the future is known."""

from collections.abc import Mapping, Sequence
from itertools import combinations


def optimum(needs: Mapping[str, int], load_s: Mapping[str, float], budget: int, order: Sequence[str]) -> float:
    """The least seconds of loading with which requests can be served in this order (Belady's rule with costs).

    Exact: the cheapest way to each set of resident models, request by request.
    """
    sets = [frozenset(c) for n in range(len(needs) + 1) for c in combinations(needs, n)]
    sets = [s for s in sets if sum(needs[model] for model in s) <= budget]
    best = {frozenset[str](): 0.0}
    for model in order:
        after: dict[frozenset[str], float] = {}
        for resident, cost in best.items():
            if model in resident:
                after[resident] = min(after.get(resident, cost), cost)
                continue
            for kept in sets:
                if model in kept and kept <= resident | {model}:
                    spent = cost + load_s[model]
                    after[kept] = min(after.get(kept, spent), spent)
        best = after
    return min(best.values())
