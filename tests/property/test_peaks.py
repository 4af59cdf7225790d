"""A rule for the peak of a tape says what playing the tape says, however its sizes compare."""

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from terazi.memory.llama_cpp.allocator import Arena
from terazi.memory.llama_cpp.dims import Values, monomial
from terazi.memory.llama_cpp.peaks import Peaks
from terazi.memory.llama_cpp.tape import GIVE, TAKE, TRIM, Event, Part, Size, Tape

#: Few enough that sizes are often the same, or sums of each other.
COEFFICIENTS = st.sampled_from([-64, 0, 1, 32, 64, 100, 128, 192, 4096])
MONOMIALS = (0, monomial(0), monomial(1), monomial(0, 1))


@st.composite
def sizes(draw: st.DrawFn) -> Size:
    """A polynomial in two variables, at least 0 for all that are at least 1, and what it is rounded up to."""
    terms = {m: draw(COEFFICIENTS) for m in draw(st.lists(st.sampled_from(MONOMIALS), min_size=1, unique=True))}
    below = sum(coefficient for coefficient in terms.values() if coefficient < 0)
    if below:
        # the largest of all monomials makes up for what is taken away
        terms[monomial(0, 1)] = abs(below) + max(terms.get(monomial(0, 1), 0), 0)
    return tuple(sorted(terms.items())), draw(st.sampled_from([1, 32, 128]))


@st.composite
def tapes(draw: st.DrawFn) -> Tape:
    """Tensors of a few sizes, made and given back in any order."""
    known = tuple(draw(st.lists(sizes(), min_size=1, max_size=5, unique=True)))
    events: list[Event] = []
    held: list[tuple[int, int]] = []
    tensors = 0
    for what in draw(st.lists(st.sampled_from([TAKE, TAKE, GIVE, TRIM]), min_size=5, max_size=50)):
        if what == TAKE:
            size = draw(st.integers(0, len(known) - 1))
            events.append((TAKE, tensors, size, 0))
            held.append((tensors, size))
            tensors += 1
        elif held:
            tensor, size = held.pop(draw(st.integers(0, len(held) - 1)))
            if what == GIVE:
                events.append((GIVE, tensor, size, 0))
            else:
                # what is kept of it is never given back: whether it was trimmed hangs on the sizes
                events.append((TRIM, tensor, draw(st.integers(0, len(known) - 1)), size))
    return Tape((Part(tuple(events)),), known, tensors)


def plainly(tape: Tape, values: Values) -> int:
    """By the allocator itself."""
    bytes_of = [-(-values.of(terms) // unit) * unit for terms, unit in tape.sizes]
    arena = Arena()
    address: dict[int, int] = {}
    for what, tensor, index, owned in tape.parts[0].events:
        size = bytes_of[index]
        if what == TAKE:
            address[tensor] = arena.take(size)
        elif what == GIVE:
            arena.release(address[tensor], size)
        elif bytes_of[owned] > size:
            arena.release(address[tensor] + size, bytes_of[owned] - size)
    return arena.peak


@examples(max_examples=150, deadline=None)
@given(tape=tapes(), asked=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=12))
def test_a_rule_says_what_the_allocator_does(tape: Tape, asked: list[tuple[int, int]]) -> None:
    peaks = Peaks(tape)
    for variables in (*asked, *asked):
        values = Values(variables)
        assert peaks.peak(values, ()) == plainly(tape, values), variables
