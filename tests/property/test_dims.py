"""A number with variables behind it is the number that plain arithmetic gives, wherever its conditions hold."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from terazi.memory.llama_cpp.dims import Trace, Values, terms_of
from terazi.units import pad

Make = Callable[[list[int]], int]


def combined(left: Make, right: Make, how: str) -> Make:
    def make(v: list[int]) -> int:
        a, b = left(v), right(v)
        return {
            "+": lambda: a + b,
            "-": lambda: a - b,
            "*": lambda: a * b,
            "//": lambda: a // b if b else a,
            "%": lambda: a % b if b else a,
            "pad": lambda: pad(a, 64),
            "min": lambda: min(a, b),
            "if": lambda: a if a == b or a < b else b,
        }[how]()

    return make


leaves: st.SearchStrategy[Make] = st.one_of(
    st.integers(0, 2).map(lambda i: lambda v: v[i]), st.integers(0, 300).map(lambda n: lambda _: n)
)
operations = st.sampled_from(["+", "-", "*", "//", "%", "pad", "min", "if"])
computations = st.recursive(leaves, lambda inner: st.builds(combined, inner, inner, operations), max_leaves=6)
numbers = st.lists(st.integers(1, 600), min_size=3, max_size=3)


@given(make=computations, first=numbers, second=numbers)
def test_same_conditions_same_polynomial(make: Make, first: list[int], second: list[int]) -> None:
    trace = Trace()
    result = make([trace.variable(i, value) for i, value in enumerate(first)])
    assert int(result) == make(first)
    for values in (first, second):
        known = Values(tuple(values))
        if known.meet(tuple(trace.conditions)):
            assert known.of(terms_of(result)) == make(values)
    assert Values(tuple(first)).meet(tuple(trace.conditions))
