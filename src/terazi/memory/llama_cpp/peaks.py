"""The peak of a tape as a rule over its sizes: what best fit decides is a question, asked once for all sizes alike.

In: a tape, and values for its variables. Out: the peak of its buffer. Sizes are linear in a few quantities
(products of variables, and sizes that have to be rounded up), and so is every address. A play notes each comparison
that isn't answered by the quantities being positive; the notes of all plays make a tree, at whose ends the peak is
the largest of a few sums. Whoever gives the same answers comes to the same end without playing.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from terazi.memory.llama_cpp.dims import Values
from terazi.memory.llama_cpp.tape import GIVE, TAKE, Event, Part, Tape, play, rounded
from terazi.units import pad

#: Quantity → coefficient; a sum of them.
Form: TypeAlias = tuple[tuple[int, int], ...]
#: A value, and the form that it has: all coefficients in one number, so that adding adds all of them.
Size: TypeAlias = tuple[int, int]

#: Bits for a coefficient. They are bytes at most, in this many bits with their sign.
_BITS: Final = 80
#: Bytes; larger coefficients might not add up in so many bits.
_LARGEST = 1 << 56
#: With more questions on the way, or with so many ends that each was reached less than twice, playing is no slower.
_QUESTIONS, _ENDS = 160, 16


class _Question:
    """Whether *form* is at least 0, and what comes next; None where nobody has gone yet."""

    __slots__ = ("form", "no", "yes")

    def __init__(self, form: Form) -> None:
        self.form = form
        self.yes: _Step | None = None
        self.no: _Step | None = None


class _End:
    """The peak is the largest of *forms*."""

    __slots__ = ("forms",)

    def __init__(self, forms: tuple[Form, ...]) -> None:
        self.forms = forms


_Step: TypeAlias = _Question | _End


class Peaks:
    """The peaks of one tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        even = [size for size in tape.sizes if all(coefficient % size[1] == 0 for _, coefficient in size[0])]
        #: the quantities: monomials, then sizes that don't come out even
        self._monomials = tuple({monomial: None for terms, _ in even for monomial, _ in terms})
        self._uneven = tuple(size for size in tape.sizes if size not in even)
        places = {what: place for place, what in enumerate((*self._monomials, *self._uneven))}
        self._forms = [
            1 << _BITS * places[size]
            if size in places
            else sum(coefficient << _BITS * places[monomial] for monomial, coefficient in size[0])
            for size in tape.sizes
        ]
        #: sizes that might be 0 or less; all others are sums of what is positive
        self._doubtful = tuple(size for size in tape.sizes if min((c for _, c in size[0]), default=0) <= 0)
        self._trees: dict[tuple[int, ...], _Question] = {}
        self._known: dict[int, Form | bool] = {}
        self._ends = self._asked = 0
        #: no tree is grown any more; nor ever, if a coefficient has no room
        self._plain = any(abs(c) >= _LARGEST for terms, _ in tape.sizes for _, c in terms)

    def peak(self, values: Values, repeats: tuple[int, ...]) -> int:
        """The peak of the buffer in bytes.

        Args:
            values: of the variables.
            repeats: how often the third copy of each run goes.

        Raises:
            ArithmeticError: for a size below 0.
        """
        if self._plain or (self._doubtful and any(values.of(terms) <= 0 for terms, _ in self._doubtful)):
            # empty tensors have ways of their own
            return play(self._tape, rounded(self._tape, values), repeats)
        self._asked += 1
        found = list(map(values.product, self._monomials))
        for terms, unit in self._uneven:
            found.append(pad(values.of(terms), unit))
        root = self._trees.get(repeats)
        if root is None:
            root = self._trees[repeats] = _Question(())
        step = root.yes
        while isinstance(step, _Question):
            total = 0
            for index, coefficient in step.form:
                total += coefficient * found[index]
            step = step.yes if total >= 0 else step.no
        if step is None:
            step = self._played(root, found, repeats)
            if step is None:
                return play(self._tape, rounded(self._tape, values), repeats)
        peak = 0
        for form in step.forms:
            total = 0
            for index, coefficient in form:
                total += coefficient * found[index]
            peak = max(peak, total)
        return peak

    def _played(self, root: _Question, found: list[int], repeats: tuple[int, ...]) -> _End | None:
        """Play once more for what was *found*, and grow the tree by its questions; None if they are too many."""
        arena = _Arena(self._known)
        sizes = [(sum(c * found[index] for index, c in _terms(form)), form) for form in self._forms]
        if not _perform(self._tape, arena, sizes, repeats):
            self._plain = True
            return None
        self._ends += 1
        self._plain = self._ends > _ENDS and self._ends * 2 > self._asked
        end = _End(arena.highest())
        step, answer = root, True
        for form, then in arena.asked:
            following = step.yes if answer else step.no
            if not isinstance(following, _Question):
                following = _Question(form)
                if answer:
                    step.yes = following
                else:
                    step.no = following
            step, answer = following, then
        if answer:
            step.yes = end
        else:
            step.no = end
        return end


class _Arena:
    """``allocator.Arena`` for tensors that all take room, with forms beside the values.

    Blocks are (address, its form, length, its form), the open end without a length. Whether two blocks touch is
    no question: what lies between them takes room, whatever the sizes.
    """

    def __init__(self, known: dict[int, Form | bool]) -> None:
        self.blocks: list[list[int]] = [[0, 0, 0, 0]]
        self.asked: list[tuple[Form, bool]] = []
        self._answers: dict[int, bool] = {}
        self._known = known
        #: how far tensors at the open end reach: form → value
        self._ends: dict[int, int] = {}

    def holds(self, value: int, form: int) -> bool:
        """Whether *value* is at least 0, as every place in the tree asks it."""
        answer = self._answers.get(form)
        if answer is None:
            known = self._known.get(form)
            if known is None:
                known = self._known[form] = _decided(form)
            if isinstance(known, bool):
                return known
            answer = self._answers[form] = value >= 0
            self.asked.append((known, answer))
        return answer

    def take(self, size: Size) -> Size:
        value, form = size
        blocks = self.blocks
        best: list[int] | None = None
        for block in blocks[:-1]:
            fits = self.holds(block[2] - value, block[3] - form)
            if fits and (best is None or self.holds(best[2] - block[2], best[3] - block[3])):
                best = block
        if best is None:
            best = blocks[-1]
            self._ends[best[1] + form] = best[0] + value
        elif self.holds(value - best[2], form - best[3]):
            blocks.remove(best)
            return best[0], best[1]
        else:
            best[2] -= value
            best[3] -= form
        address = best[0], best[1]
        best[0] += value
        best[1] += form
        return address

    def release(self, address: Size, size: Size) -> None:
        at, value = address[0], size[0]
        blocks = self.blocks
        place = next(place for place, block in enumerate(blocks) if block[0] > at)
        after = blocks[place]
        before = blocks[place - 1] if place and blocks[place - 1][0] + blocks[place - 1][2] == at else None
        if before is None:
            before = [at, address[1], 0, 0]
            blocks.insert(place, before)
            place += 1
        before[2] += value
        before[3] += size[1]
        if at + value != after[0]:
            return
        if place == len(blocks) - 1:
            before[2] = before[3] = 0
        else:
            before[2] += after[2]
            before[3] += after[3]
        del blocks[place]

    def highest(self) -> tuple[Form, ...]:
        """How far it was filled: the largest of these."""
        highest: list[int] = []
        for end in sorted(self._ends, key=self._ends.__getitem__, reverse=True):
            if not any(_decided(other - end) is True for other in highest):
                highest.append(end)
        return tuple(map(_terms, highest))


def _perform(tape: Tape, arena: _Arena, sizes: Sequence[Size], repeats: tuple[int, ...]) -> bool:
    """Play a tape with forms; False if it asks too much."""
    address: list[Size] = [(0, 0)] * tape.tensors
    for part in tape.parts:
        if part.run is None:
            _step(part.events, arena, address, sizes)
        elif part.events and not _circle(part, arena, address, sizes, repeats[part.run]):
            return False
        if len(arena.asked) > _QUESTIONS:
            return False
    return True


def _circle(part: Part, arena: _Arena, address: list[Size], sizes: Sequence[Size], repeats: int) -> bool:
    """Repeat a part, and leave out whole rounds of the circle once it is one (see ``tape``)."""
    own = [event[1] for event in part.events if event[0] == TAKE]
    before_all = (address[tensor - part.shift][1] for tensor in own)
    seen: dict[tuple[object, ...], int] = {(*((b[1], b[3]) for b in arena.blocks), *before_all): 0}
    done = 0
    while done < repeats:
        if done:
            for target, source in part.carried:
                address[target] = address[source]
        _step(part.events, arena, address, sizes)
        done += 1
        if len(arena.asked) > _QUESTIONS:
            return False
        state = (*((b[1], b[3]) for b in arena.blocks), *(address[tensor][1] for tensor in own))
        before = seen.setdefault(state, done)
        if before != done:
            done = repeats - (repeats - done) % (done - before)
    return True


def _step(events: Sequence[Event], arena: _Arena, address: list[Size], sizes: Sequence[Size]) -> None:
    for what, tensor, index, owned in events:
        size = sizes[index]
        if what == TAKE:
            address[tensor] = arena.take(size)
            continue
        at = address[tensor]
        if what != GIVE:
            more = sizes[owned]
            at = at[0] + size[0], at[1] + size[1]
            size = more[0] - size[0], more[1] - size[1]
            if arena.holds(-size[0], -size[1]):
                continue
        arena.release(at, size)


def _terms(form: int) -> Form:
    """The coefficients of a form."""
    terms = []
    index = 0
    while form:
        coefficient = form & (1 << _BITS) - 1
        if coefficient >> _BITS - 1:
            coefficient -= 1 << _BITS
        if coefficient:
            terms.append((index, coefficient))
        form = form - coefficient >> _BITS
        index += 1
    return tuple(terms)


def _decided(form: int) -> Form | bool:
    """Whether a form of positive quantities is at least 0, if its signs say so; else its coefficients."""
    terms = _terms(form)
    signs = {coefficient > 0 for _, coefficient in terms}
    return terms if len(signs) > 1 else signs != {False}
