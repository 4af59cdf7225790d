"""Compute buffers of many settings of one model: each kind of graph is drawn once, and played for each size.

In: where everything lies, settings, caches, states. Out: what ``compute.compute_bytes`` would say, to the byte.
Contexts, slots, batches and outputs are variables of the drawing (``dims``); equal blocks stand for each other
(``abridge``); what is left is a tape a buffer (``tape``). Whatever isn't proven to be the same is drawn anew.
"""

from typing import TYPE_CHECKING

from terazi.memory.llama_cpp.abridge import abridge
from terazi.memory.llama_cpp.abridged import (
    all_parts,
    blocks_of,
    cuts_of,
    draw_kind,
    looks_of,
    parts_of,
    plays,
    what_is_kept,
)
from terazi.memory.llama_cpp.compute import (
    Reservation,
    compute_bytes,
    may_be_refused,
    measure_of,
    named,
    reservations,
    runs_beside_caches,
    setup_of,
)
from terazi.memory.llama_cpp.dims import Trace, Values
from terazi.memory.llama_cpp.family import Family
from terazi.memory.llama_cpp.peaks import Peaks
from terazi.memory.llama_cpp.resolve import Resolved
from terazi.memory.llama_cpp.scene import Kind, Layout, Probe, Scene, Take, Weighed, kind_of, question_of
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.llama_cpp.sketch import Batch
from terazi.memory.llama_cpp.tape import Tape, record
from terazi.memory.llama_cpp.weights import Placement
from terazi.models.spec import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Hashable


class Replays:
    """The recordings of one model on the same devices.

    Args:
        spec, family: of the model.
        patience: so many times nothing is recorded: whoever asks that seldom is served faster without.
    """

    def __init__(self, spec: ModelSpec, family: Family, patience: int) -> None:
        self._spec, self._family = spec, family
        self._scenes: dict[Hashable, tuple[Kind, Scene]] = {}
        self._takes: dict[Hashable, list[Take]] = {}
        self._unproven: set[Hashable] = set()
        self._peaks: dict[Tape, Peaks] = {}
        self._probes: dict[Hashable, tuple[Kind, Scene, list[Probe]]] = {}
        #: which blocks look alike, with fused attention and without; nothing else tells blocks apart by number
        self._looks: dict[bool, dict[int, int]] = {}
        #: a number for each kind of block, and for each look of one
        self._numbers: dict[Hashable, int] = {}
        self._layouts = 0
        self._patience = patience
        self._plays = plays(spec, family)

    def layout(self, settings: LlamaCppSettings, resolved: Resolved, placements: tuple[Placement, ...]) -> Layout:
        """A layout of this model."""
        self._layouts += 1
        return Layout(self._layouts, setup_of(self._spec, self._family, settings, resolved, placements))

    def compute_bytes(self, asked: Weighed) -> dict[str, int]:
        """As ``compute.compute_bytes``.

        Raises:
            UsageError: if the engine would abort over the size of the graph.
        """
        setup, resolved = asked.layout.setup, asked.resolved
        if self._patience > 0 or not self._plays:
            self._patience -= 1
            return compute_bytes(
                self._spec,
                self._family,
                asked.settings,
                resolved,
                caches=asked.caches(),
                placements=setup.placements,
                states=asked.states,
            )
        fused = self._fuses(asked)
        sizes: list[int] = []
        for reservation in reservations(self._spec, resolved):
            peaks, parts = self._reserve(asked, reservation, fused=fused)
            setup.check(parts, resolved)
            sizes = [max(pair) for pair in zip(sizes, peaks, strict=True)] if sizes else peaks
        return named(setup, sizes)

    def _fuses(self, asked: Weighed) -> bool:
        """As ``compute.fuses_attention``, which is asked once where the same drawing comes to the same end."""
        resolved, settings, setup = asked.resolved, asked.settings, asked.layout.setup
        if not resolved.flash_attn or not may_be_refused(settings, resolved, [g.device for g in asked.groups]):
            return resolved.flash_attn
        slots = resolved.n_seq_max
        reservation = Reservation(slots, slots, slots)
        key, form, variables = question_of(asked, reservation, fused=True)
        if key not in self._probes:
            kind, batch = kind_of(asked, reservation, form, fused=True)
            self._probes[key] = kind, self._scene(asked, kind, batch), []
        kind, scene, known = self._probes[key]
        values = Values(variables)
        probe = next((probe for probe in known if values.meet(probe.conditions)), None)
        if probe is None:
            trace = Trace()
            drawing = draw_kind(asked, kind, variables, trace, scene.blocks)
            parts, repeated = parts_of(drawing, scene)
            fused = runs_beside_caches(setup, resolved, drawing.graph, drawing.caches)
            probe = Probe(tuple(trace.conditions), fused, parts, repeated)
            known.append(probe)
        setup.check(all_parts(probe.parts, probe.repeated, scene), resolved)
        return probe.fused

    def _reserve(self, asked: Weighed, reservation: Reservation, *, fused: bool) -> tuple[list[int], int]:
        """The peak of every buffer, and the nodes and leaves of the graph."""
        key, form, variables = question_of(asked, reservation, fused=fused)
        kept = self._scenes.get(key)
        if kept is None:
            kind, batch = kind_of(asked, reservation, form, fused=fused)
            kept = self._scenes[key] = kind, self._scene(asked, kind, batch)
        kind, scene = kept
        known = scene.peaks.get(variables)
        if known is None:
            values = Values(variables)
            take = next((take for take in scene.takes if values.meet(take.conditions)), None)
            if take is None:
                take = self._record(asked, scene, kind, variables)
            if take.copies_blocks and not asked.layout.exact_types:
                asked.layout.exact_types = True
                return self._reserve(asked, reservation, fused=fused)
            peaks = [tape.peak(values, scene.repeats) for tape in take.tapes]
            known = scene.peaks[variables] = peaks, all_parts(take.parts, take.repeated, scene)
        return known

    def _scene(self, asked: Weighed, kind: Kind, batch: Batch) -> Scene:
        """What to draw for *kind* in this layout, with the recordings that others have made of the same."""
        layout, setup, caches = asked.layout, asked.layout.setup, asked.caches()
        blocks = blocks_of(self._spec, self._family, caches)
        if blocks is None or batch.draft_head:
            return Scene(None, (), [])
        by_block = {cache.block: cache for cache in caches}
        states = {state.block: state for state in asked.states}
        drawn = self._looks.get(kind.batch.flash_attn)
        if drawn is None:
            looks = looks_of(setup._replace(settings=asked.settings), batch, caches, asked.states)
            numbers = self._numbers
            drawn = self._looks[kind.batch.flash_attn] = {
                b: numbers.setdefault(look, len(numbers)) for b, look in looks.items()
            }
        kinds = [
            self._numbers.setdefault(what, len(self._numbers))
            for what in (
                (
                    setup.layer_backends[block],
                    what_is_kept(setup, by_block.get(block), states.get(block)),
                    drawn.get(block),
                    layout.weights.get(block),
                )
                for block in blocks
            )
        ]
        short = abridge(kinds)
        pattern = (
            tuple(kinds[block] for block in short.blocks),
            tuple(run[:2] for run in short.runs),
            layout.loose,
            setup.layer_backends[-1],
            len(setup.backends),
            asked.resolved.pipeline,
            setup.settings.op_offload,
            setup.settings.kv_offload,
            kind,
        )
        if pattern in self._unproven:
            return Scene(None, (), [])
        chosen = tuple(blocks[place] for place in short.blocks)
        return Scene(chosen, short.runs, self._takes.setdefault(pattern, []), pattern)

    def _record(self, asked: Weighed, scene: Scene, kind: Kind, variables: tuple[int, ...]) -> Take:
        """Draw, schedule and record once more, for these *variables* and all that go the same way."""
        trace, setup = Trace(), asked.layout.setup
        drawing = draw_kind(asked, kind, variables, trace, scene.blocks)
        parts, repeated = parts_of(drawing, scene)
        nodes, leaves = setup.scheduler(drawing.graph, pipeline=asked.resolved.pipeline).ordered()
        cuts = cuts_of(drawing.sketch, [node for node, _ in nodes], scene)
        tapes = record(nodes, leaves, measure_of(setup.devices), cuts)
        if tapes is None:
            # equal blocks leave different marks: nothing may stand for anything here
            self._unproven.add(scene.pattern)
            scene.be_whole()
            return self._record(asked, scene, kind, variables)
        take = Take(
            conditions=tuple(trace.conditions),
            tapes=tuple(map(self._peaks_of, tapes)),
            parts=parts,
            repeated=repeated,
            copies_blocks=any(node.kind[0] > 1 and node.home is None and node.view is None for node, _ in nodes),
        )
        scene.takes.append(take)
        return take

    def _peaks_of(self, tape: Tape) -> Peaks:
        peaks = self._peaks.get(tape)
        if peaks is None:
            peaks = self._peaks[tape] = Peaks(tape)
        return peaks
