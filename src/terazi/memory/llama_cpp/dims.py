"""Whole numbers that remember how they came about, so that one drawing of a graph serves many sizes.

A ``Dim`` is an ``int`` with a polynomial in a few variables behind it (tokens, cells, slots, ...). What is
computed from it is a ``Dim`` again; what is *decided* by it (a comparison, a rounding that doesn't come out even)
is noted as a condition. Whoever finds all conditions of a ``Trace`` to hold for other values would have gone the
same way, so the polynomials hold there too. (Elsewhere this is known as concolic execution.)

The one trap: what CPython does with an ``int`` without asking its class (``range``, an index) goes unnoted. The
graphs of this package do no such thing with a dimension, and tests hold every family's results against drawings
without variables.
"""

from typing import TypeAlias

#: Monomial → coefficient. A monomial is a number with four bits for the exponent of each variable.
Terms: TypeAlias = dict[int, int]
#: A polynomial that was compared with zero: (terms, whether "below" or "zero" was asked, the answer).
Condition: TypeAlias = tuple[tuple[tuple[int, int], ...], str, bool]

_EXPONENT_BITS = 4


class Trace:
    """The conditions under which a computation takes the way that it took."""

    __slots__ = ("conditions",)

    def __init__(self) -> None:
        self.conditions: dict[Condition, None] = {}

    def variable(self, index: int, value: int) -> "Dim":
        """The variable *index* (0, 1, ...), which is *value* (at least 1) this time."""
        return _dim(value, {monomial(index): 1}, self)

    def note(self, terms: Terms, asked: str, *, answer: bool) -> bool:
        """Note a decision and return it."""
        self.conditions[tuple(sorted(terms.items())), asked, answer] = None
        return answer


class Values:
    """What the variables are this time; every monomial is computed once."""

    __slots__ = ("_known", "variables")

    def __init__(self, variables: tuple[int, ...]) -> None:
        self.variables = variables
        self._known = {0: 1}

    def of(self, terms: tuple[tuple[int, int], ...]) -> int:
        """The value of a polynomial."""
        known = self._known
        total = 0
        for monomial, coefficient in terms:
            value = known.get(monomial)
            total += coefficient * (self.product(monomial) if value is None else value)
        return total

    def product(self, monomial: int) -> int:
        """The value of a monomial."""
        product = self._known.get(monomial)
        if product is None:
            product = 1
            rest = monomial
            for value in self.variables:
                product *= value ** (rest & ((1 << _EXPONENT_BITS) - 1))
                rest >>= _EXPONENT_BITS
            self._known[monomial] = product
        return product

    def meet(self, conditions: tuple[Condition, ...]) -> bool:
        """Whether all *conditions* come out as noted."""
        for terms, asked, answer in conditions:
            value = self.of(terms)
            if (value < 0 if asked == "below" else value == 0) != answer:
                return False
        return True


class Dim(int):
    """A number that depends on variables. All variables are at least 1."""

    terms: Terms
    trace: Trace

    def pin(self) -> int:
        """The plain number, on condition that it is the same next time."""
        value = int.__add__(self, 0)
        terms = dict(self.terms)
        terms[0] = terms.get(0, 0) - value
        self.trace.note(terms, "zero", answer=True)
        return value

    def __add__(self, other: int) -> int:
        terms = dict(self.terms)
        if isinstance(other, Dim):
            for monomial, coefficient in other.terms.items():
                terms[monomial] = terms.get(monomial, 0) + coefficient
        else:
            terms[0] = terms.get(0, 0) + other
        return _made(int.__add__(self, other), terms, self.trace)

    __radd__ = __add__

    def __neg__(self) -> int:
        return _dim(int.__neg__(self), {m: -c for m, c in self.terms.items()}, self.trace)

    def __sub__(self, other: int) -> int:
        return self + -other

    def __rsub__(self, other: int) -> int:
        return -self + other

    def __mul__(self, other: int) -> int:
        if type(other) is int:
            if other == 1:
                return self
            if not other:
                return 0
            made = int.__new__(Dim, int.__mul__(self, other))
            made.trace = self.trace
            mine = self.terms
            if len(mine) == 1:
                # by far the most: a product of dimensions
                for monomial in mine:
                    made.terms = {monomial: mine[monomial] * other}
            else:
                made.terms = {m: c * other for m, c in mine.items()}
            return made
        if not isinstance(other, Dim):
            return NotImplemented
        value = int.__mul__(self, other)
        terms: Terms = {}
        for left, factor in self.terms.items():
            for right, coefficient in other.terms.items():
                terms[left + right] = terms.get(left + right, 0) + factor * coefficient
        return _made(value, terms, self.trace)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int:
        if isinstance(other, Dim):
            terms = _divided(self.terms, other.terms)
            if terms is None:
                return self.pin() // other.pin()
            return _made(int.__floordiv__(self, other), terms, self.trace)
        if other == 1:
            return self
        if any(c % other for m, c in self.terms.items() if m):
            return self.pin() // other
        # a constant that is left over rounds on its own
        terms = {m: c // other for m, c in self.terms.items()}
        return _made(int.__floordiv__(self, other), terms, self.trace)

    def __rfloordiv__(self, other: int) -> int:
        return other // self.pin()

    def __mod__(self, other: int) -> int:
        if isinstance(other, Dim):
            return 0 if _divided(self.terms, other.terms) is not None else self.pin() % other.pin()
        if any(c % other for m, c in self.terms.items() if m):
            return self.pin() % other
        return self.terms.get(0, 0) % other

    def __rmod__(self, other: int) -> int:
        return other % self.pin()

    def __lt__(self, other: int) -> bool:
        return _below(self - other)

    def __ge__(self, other: int) -> bool:
        return not _below(self - other)

    def __gt__(self, other: int) -> bool:
        return _below(-self + other)

    def __le__(self, other: int) -> bool:
        return not _below(-self + other)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim):
            return self.terms == other.terms or _is_zero(self - other)
        if not isinstance(other, int):
            return False
        if len(self.terms) == 1 and other <= 0:
            # a product of dimensions: all are at least 1
            ((_, coefficient),) = self.terms.items()
            if coefficient > 0:
                return False
        return _is_zero(self - other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return not _is_zero(self)

    __hash__ = int.__hash__


def monomial(*variables: int) -> int:
    """The product of *variables*, as terms name it."""
    return sum(1 << (_EXPONENT_BITS * index) for index in variables)


def terms_of(number: int) -> tuple[tuple[int, int], ...]:
    """The polynomial of any number, as ``Values.of`` takes it."""
    return tuple(sorted(number.terms.items())) if isinstance(number, Dim) else ((0, number),)


def _dim(value: int, terms: Terms, trace: Trace) -> Dim:
    made = int.__new__(Dim, value)
    made.terms = terms
    made.trace = trace
    return made


def _made(value: int, terms: Terms, trace: Trace) -> int:
    """A ``Dim``, or a plain number if nothing variable is left."""
    if 0 in terms.values():
        terms = {m: c for m, c in terms.items() if c}
    if not terms or (len(terms) == 1 and 0 in terms):
        return value
    return _dim(value, terms, trace)


def _divided(terms: Terms, by: Terms) -> Terms | None:
    """The quotient by a single monomial, if there is no remainder."""
    if len(by) != 1:
        return None
    ((divisor, factor),) = by.items()
    quotient: Terms = {}
    for monomial, coefficient in terms.items():
        if coefficient % factor or not _contains(monomial, divisor):
            return None
        quotient[monomial - divisor] = coefficient // factor
    return quotient


def _contains(monomial: int, divisor: int) -> bool:
    mask = (1 << _EXPONENT_BITS) - 1
    while divisor:
        if monomial & mask < divisor & mask:
            return False
        monomial >>= _EXPONENT_BITS
        divisor >>= _EXPONENT_BITS
    return True


def _below(difference: int) -> bool:
    if not isinstance(difference, Dim):
        return difference < 0
    coefficients = difference.terms.values()
    # variables are at least 1, so the sum of coefficients bounds what has one sign only
    if min(coefficients) >= 0:
        return False
    if max(coefficients) < 0:
        return True
    constant = difference.terms.get(0, 0)
    rest = [c for m, c in difference.terms.items() if m]
    if min(rest) > 0 and sum(rest) + constant >= 0:
        return False
    if max(rest) < 0 and sum(rest) + constant < 0:
        return True
    return difference.trace.note(difference.terms, "below", answer=int.__lt__(difference, 0))


def _is_zero(difference: int) -> bool:
    if not isinstance(difference, Dim):
        return difference == 0
    rest = [c for m, c in difference.terms.items() if m]
    constant = difference.terms.get(0, 0)
    if (min(rest) > 0 and sum(rest) + constant > 0) or (max(rest) < 0 and sum(rest) + constant < 0):
        return False
    return difference.trace.note(difference.terms, "zero", answer=int.__eq__(difference, 0))
