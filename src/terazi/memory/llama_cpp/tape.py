"""What the allocator does for one graph, noted down once and played again for other sizes.

Which tensor takes memory from which buffer, when it gives it back, and whose memory it takes over, depends on
the graph alone (``ggml/src/ggml-alloc.c``, build b11434); only the addresses depend on sizes. So a graph that was
drawn with ``dims`` for sizes is scheduled and recorded once: a tape a buffer. Playing a tape is the best fit of the
real allocator, with numbers put in.

A run of equal blocks (``abridge``) repeats a part of its tape. As soon as the buffer looks as it did after an
earlier copy, all further copies go round in the same circle: its peak is known, and so is where it ends.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from terazi.memory.llama_cpp.allocator import Allocator, Arena
from terazi.memory.llama_cpp.dims import Values, terms_of
from terazi.memory.llama_cpp.graph import Node
from terazi.units import pad

#: A size as it is put in: the polynomial of its bytes, and what it is rounded up to.
Size: TypeAlias = tuple[tuple[tuple[int, int], ...], int]
#: (what, tensor, size): 0 takes, 1 gives back; 2 gives back what is left of a third entry's size.
Event: TypeAlias = tuple[int, int, int, int]
TAKE, GIVE, TRIM = 0, 1, 2
#: Longer than the open end of any buffer.
_BEYOND = 1 << 63


class Part(NamedTuple):
    """A stretch of a tape.

    Args:
        events: in order.
        run: which run repeats them; None if they run once.
        carried: before each further copy, the addresses of these tensors (to, from) move on.
        shift: the tensors of a copy are numbered so many higher than those of the copy before.
    """

    events: tuple[Event, ...]
    run: int | None = None
    carried: tuple[tuple[int, int], ...] = ()
    shift: int = 0


class Tape(NamedTuple):
    """One buffer's tape: its parts, its sizes, and how many tensors it places."""

    parts: tuple[Part, ...]
    sizes: tuple[Size, ...]
    tensors: int


class Measure(NamedTuple):
    """How buffers measure tensors: bytes of a node in a buffer, and what each buffer rounds them up to."""

    bytes_of: Callable[[Node, int], int]
    alignments: tuple[int, ...]


class _Log(Arena):
    """Stands in for a buffer: notes instead of placing. An address is the number of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.sizes: dict[Size, int] = {}
        self.tensors = 0

    def size(self, n_bytes: int, alignment: int) -> int:
        """The number under which a size is kept."""
        return self.sizes.setdefault((terms_of(n_bytes), alignment), len(self.sizes))

    def take(self, size: int) -> int:
        self.events.append((TAKE, self.tensors, size, 0))
        self.tensors += 1
        return self.tensors - 1

    def release(self, address: int, size: int) -> None:
        self.events.append((GIVE, address, size, 0))


class _Recorder(Allocator):
    def __init__(self, measure: Measure) -> None:
        self.logs = logs = [_Log() for _ in measure.alignments]
        self._measure = measure

        def size_of(node: Node, buffer: int) -> int:
            return logs[buffer].size(measure.bytes_of(node, buffer), measure.alignments[buffer])

        super().__init__(len(logs), size_of)
        self.arenas = list(logs)

    def record(
        self, nodes: Sequence[tuple[Node, int]], leaves: Sequence[tuple[Node, int]], cuts: Sequence[int]
    ) -> list[list[tuple[int, int]]]:
        """Run, and say for each cut (a place among the nodes) how many events and tensors every log has there."""
        self._prepare(nodes, leaves)
        marks = []
        at = 0
        for cut in cuts:
            for node, buffer in nodes[at:cut]:
                self._step(node, buffer)
            at = cut
            marks.append([(len(log.events), log.tensors) for log in self.logs])
        for node, buffer in nodes[at:]:
            self._step(node, buffer)
        return marks

    def _trim(self, parent: Node, node: Node, buffer: int) -> None:
        log = self.logs[parent.owner]
        owned = self._size_of(parent, parent.owner)
        needed = log.size(self._measure.bytes_of(node, buffer), self._measure.alignments[buffer])
        if owned != needed:
            log.events.append((TRIM, parent.address, needed, owned))


def record(
    nodes: Sequence[tuple[Node, int]],
    leaves: Sequence[tuple[Node, int]],
    measure: Measure,
    runs: Sequence[tuple[int, int, int]],
) -> tuple[Tape, ...] | None:
    """The tape of every buffer.

    Args:
        nodes, leaves: in the allocator's order, each with its buffer.
        measure: how large tensors are.
        runs: where among the nodes the second, the third and the last copy of each run begin, in order.

    Returns:
        None if second and third copies differ, so that nothing is proven about further ones.
    """
    recorder = _Recorder(measure)
    marks = recorder.record(nodes, leaves, [cut for run in runs for cut in run])
    tapes = []
    for buffer, log in enumerate(recorder.logs):
        parts: list[Part] = []
        done = 0
        for number in range(len(runs)):
            second, third, last = (marks[3 * number + place][buffer] for place in range(3))
            carried = _carried(log.events, second, third, last)
            if carried is None:
                return None
            parts.append(Part(tuple(log.events[done : third[0]])))
            parts.append(Part(tuple(log.events[third[0] : last[0]]), number, carried, third[1] - second[1]))
            done = last[0]
        parts.append(Part(tuple(log.events[done:])))
        tapes.append(Tape(tuple(parts), tuple(log.sizes), log.tensors))
    return tuple(tapes)


def _carried(
    events: Sequence[Event], second: tuple[int, int], third: tuple[int, int], last: tuple[int, int]
) -> tuple[tuple[int, int], ...] | None:
    """What moves on from the third copy of a run to a further one: the tensors (to, from) that it inherits.

    The second and third copies must be the same, but for the tensors that each makes or inherits. None if they
    aren't, or if anything later asks for a tensor of the second.
    """
    shift = third[1] - second[1]
    before, copy = events[second[0] : third[0]], events[third[0] : last[0]]
    if len(before) != len(copy) or last[1] - third[1] != shift:
        return None
    inherited: dict[int, int] = {}
    for mine, other in zip(copy, before, strict=True):
        if mine[0] != other[0] or mine[2:] != other[2:]:
            return None
        if mine[1] - other[1] != shift or mine[1] < second[1]:
            return None
        if mine[1] < third[1]:
            inherited[mine[1]] = mine[1] + shift
    if any(second[1] <= event[1] < third[1] for event in events[last[0] :]):
        return None
    return tuple(inherited.items())


def play(tape: Tape, sizes: tuple[int, ...], repeats: tuple[int, ...]) -> int:
    """The peak of a buffer in bytes.

    Args:
        tape: as recorded.
        sizes: of ``tape.sizes``, rounded.
        repeats: how often the third copy of each run goes.
    """
    arena = Arena()
    address = [0] * tape.tensors
    for part in tape.parts:
        if part.run is None:
            _perform(part.events, arena, address, sizes)
        elif part.events:
            _circle(part, arena, address, sizes, repeats[part.run])
    return arena.peak


def _circle(part: Part, arena: Arena, address: list[int], sizes: Sequence[int], repeats: int) -> None:
    """Repeat a part, and leave out whole rounds of the circle once it is one."""
    own = [event[1] for event in part.events if event[0] == TAKE]
    # the second copy, which went before, is as good as a repetition
    before_all = (address[tensor - part.shift] for tensor in own)
    seen: dict[tuple[object, ...], int] = {(arena.ragged, *map(tuple, arena.blocks), *before_all): 0}
    done = 0
    while done < repeats:
        if done:
            for target, source in part.carried:
                address[target] = address[source]
        _perform(part.events, arena, address, sizes)
        done += 1
        state = (arena.ragged, *map(tuple, arena.blocks), *(address[tensor] for tensor in own))
        before = seen.setdefault(state, done)
        if before != done:
            done = repeats - (repeats - done) % (done - before)


def _perform(events: Sequence[Event], arena: Arena, address: list[int], sizes: Sequence[int]) -> None:
    """``Arena.take`` and ``Arena.release`` for one event after the other, the first written out: time goes here."""
    blocks, peak = arena.blocks, arena.peak
    for what, tensor, index, owned in events:
        size = sizes[index]
        if what == TAKE:
            if arena.ragged:
                # out of order, where the last is whichever comes last
                address[tensor] = at = arena.take(size)
                peak = max(peak, at + size)
                continue
            best_size = _BEYOND
            best = blocks[0]
            for block in blocks:
                # the open end is longer than all others and comes last, so it is the last resort
                if size <= block[1] <= best_size:
                    best = block
                    best_size = block[1]
            at = address[tensor] = best[0]
            best[0] = end = at + size
            if best_size == size:
                blocks.remove(best)
            else:
                best[1] = best_size - size
            peak = max(peak, end)
            continue
        at = address[tensor]
        if what == TRIM:
            at += size
            size = sizes[owned] - size
            if size <= 0:
                continue
        arena.release(at, size)
    arena.peak = peak


def rounded(tape: Tape, values: Values) -> tuple[int, ...]:
    """The sizes of *tape* for these values."""
    sizes = tuple(pad(values.of(terms), alignment) for terms, alignment in tape.sizes)
    if sizes and min(sizes) < 0:
        raise ArithmeticError(sizes)  # as ``Arena.take``
    return sizes
