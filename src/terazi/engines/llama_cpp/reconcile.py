"""Holds a bill against what llama-server's log says that it allocated, buffer by buffer.

In: ``Bill``, ``LoadReport``. Out: rows of the telemetry's kind. The log prints MiB with two decimals (build
b11434), so a figure holds if it is the nearest that can be printed.
"""

from collections.abc import Iterable
from dataclasses import replace

from terazi.engines.llama_cpp.observe import LoadedBuffer, LoadReport
from terazi.memory.bill import HOST, Bill, LineBasis, Term, line_label
from terazi.telemetry.reconciliation import BufferRow, Verdict
from terazi.units import MIB

#: Half of the last digit that the log prints.
PRECISION_BYTES = round(0.005 * MIB) + 1
#: The formula whose line the log calls the output buffer.
OUTPUT_FORMULA = "output-buffer"
#: With -sm tensor all devices are one in the log (``ggml-backend-meta.cpp``), and the largest of them is printed.
_TOGETHER = "Meta("
#: What the log speaks of, in the order of a page.
_TERMS = ("weights", "kv", "state", "compute", "output")
#: What is loaded beside the model, by the log's term: the bill's term, and its kind.
_BESIDE = {"adapter": ("weights", "adapter"), "encoder": ("compute", "encoder")}
#: Buffers that the engine makes without printing their size.
UNPRINTED = frozenset({"weights.projector", "weights.vector"})
#: A mapping is one buffer in the log, and these are the lines of one.
_MAPPED = frozenset({"weights.plain", "weights.mapped-gaps", "weights.lazy"})

_Group = tuple[str, str, str]


def reconcile(bill: Bill, report: LoadReport) -> tuple[BufferRow, ...]:
    """A row for each buffer that was planned or printed; none if the log names no buffers.

    Lines that no log speaks of (a driver's context, what may grow) are left out. A buffer that was planned and
    isn't printed counts as 0, since the engine prints each one that it has.
    """
    if not report.buffers:
        return ()
    planned: dict[_Group, list[tuple[tuple[str, int], ...]]] = {}
    bounds: set[_Group] = set()
    for group, parts, bound in _planned(bill):
        planned.setdefault(group, []).append(parts)
        if bound:
            bounds.add(group)
    together = next((buffer.device for buffer in report.buffers if buffer.device.startswith(_TOGETHER)), None)
    if together is not None:
        planned = _largest(planned, together)
        bounds = {(together, term, kind) for _, term, kind in bounds}
    printed: dict[_Group, list[int]] = {}
    for buffer in report.buffers:
        printed.setdefault(_group_of(buffer), []).append(buffer.bytes)
    rows: list[BufferRow] = []
    devices = list(dict.fromkeys(device for device, _, _ in (*planned, *printed)))
    for group in sorted({*planned, *printed}, key=lambda g: (devices.index(g[0]), _TERMS.index(g[1]), g[2])):
        rows += _rows(group, planned.get(group, []), printed.get(group, []), bound=group in bounds)
    return tuple(rows)


def _planned(bill: Bill) -> Iterable[tuple[_Group, tuple[tuple[str, int], ...], bool]]:
    """The buffers that *bill* foresees; the lines of one mapping are put together."""
    mapped: dict[tuple[str, str], list[tuple[str, int]]] = {}
    dropped = (line for line in bill.loading if line.part)  # a draft that is let go again is in the log, too
    for line in (*bill.lines, *bill.page_cache, *dropped):
        part, bound = (line_label(line), line.bytes), line.basis is LineBasis.UPPER_BOUND
        if line.term is Term.OVERHEAD and line.formula != OUTPUT_FORMULA:
            continue
        if line.formula in UNPRINTED:
            continue
        if line.formula in _MAPPED:
            mapped.setdefault((line.device, line.part), []).append(part)
        elif line.term is Term.OVERHEAD:
            yield (line.device, "output", ""), (part,), bound
        elif line.term is Term.WEIGHTS:
            yield (line.device, "weights", line.formula.partition(".")[2]), (part,), bound
        elif line.bytes:
            kind = "encoder" if line.formula.startswith("compute.encoder") else ""
            yield (line.device, line.term.value, kind), (part,), bound
    for (device, _), parts in mapped.items():
        yield (device, "weights", "plain"), tuple(parts), False


def _largest(
    planned: dict[_Group, list[tuple[tuple[str, int], ...]]], together: str
) -> dict[_Group, list[tuple[tuple[str, int], ...]]]:
    """*planned* with one device in the place of all accelerators: of each buffer, the largest of any one's."""
    found = {group: buffers for group, buffers in planned.items() if group[0] == HOST}
    most: dict[_Group, dict[tuple[str, ...], tuple[tuple[str, int], ...]]] = {}
    for (device, term, kind), buffers in planned.items():
        if device != HOST:
            kept = most.setdefault((together, term, kind), {})
            for parts in buffers:
                label = tuple(name for name, _ in parts)
                kept[label] = max(kept.get(label, ()), parts, key=_sum)
    return {**found, **{group: list(kept.values()) for group, kept in most.items()}}


def _group_of(buffer: LoadedBuffer) -> _Group:
    """Where the log's *buffer* belongs: device, term, and which kind of weights."""
    if buffer.term in _BESIDE:
        return buffer.device, *_BESIDE[buffer.term]
    kind = ""
    if buffer.term == "weights":
        kind = "device"
        for part, name in (("REPACK", "repack"), ("AMX", "amx"), ("_Host", "pinned"), ("CPU", "plain")):
            if part in buffer.buffer:
                kind = name
                break
    return buffer.device, buffer.term, kind


def _rows(
    group: _Group, planned: list[tuple[tuple[str, int], ...]], printed: list[int], *, bound: bool
) -> Iterable[BufferRow]:
    """Pairs by size where there are as many printed as planned; else sums (a split file is several mappings)."""
    device, term, _ = group
    if len(planned) == len(printed):
        pairs = zip(sorted(planned, key=_sum), ([n] for n in sorted(printed)), strict=True)
    else:
        pairs = zip([tuple(part for parts in planned for part in parts)], [printed], strict=True)
    for parts, figures in pairs:
        precision = PRECISION_BYTES * max(1, len(figures))
        row = BufferRow(
            device=device,
            term=term,
            parts=parts,
            actual_bytes=sum(figures),
            precision_bytes=precision,
            verdict=Verdict.DIFFERS,
        )
        gap = row.actual_bytes - row.planned_bytes
        if abs(gap) <= precision:
            row = replace(row, verdict=Verdict.HELD)
        elif bound and gap < 0:
            row = replace(row, verdict=Verdict.WITHIN)
        yield row


def _sum(parts: tuple[tuple[str, int], ...]) -> int:
    return sum(n for _, n in parts)
