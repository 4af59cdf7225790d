"""A bill against logs that the real engine wrote, and against logs that say something else."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.engines.llama_cpp.observe import LoadReport, LogReader
from terazi.engines.llama_cpp.reconcile import reconcile
from terazi.memory.bill import HOST, Bill, BillLine, LineBasis, Memory, Term
from terazi.telemetry.reconciliation import BufferRow, Verdict

GOLDEN = Path(__file__).parents[3] / "golden" / "llama_cpp"
LOGS = {name: (GOLDEN / f"log-{name}.txt").read_text() for name in ("smollm2", "gemma", "rpc")}
MIB = 1024 * 1024


def report(text: str) -> LoadReport:
    reader = LogReader()
    reader.feed(text)
    reader.close()
    return reader.report


def line(
    term: Term, formula: str, mib: float, *, device: str = HOST, basis: LineBasis = LineBasis.EXACT
) -> BillLine:
    return BillLine(
        term=term,
        device=device,
        bytes=round(mib * MIB),
        formula=formula,
        basis=basis,
        memory=Memory.ANONYMOUS if device == HOST else Memory.DEVICE,
    )


def bill(*lines: BillLine, page_cache: tuple[BillLine, ...] = ()) -> Bill:
    return Bill(engine="llama.cpp", build="b11434", lines=lines, page_cache=page_cache)


SMOLLM2 = (
    line(Term.WEIGHTS, "weights.plain", 92.10),
    line(Term.KV, "kv.full", 90),
    line(Term.COMPUTE, "compute.replay", 16.64),
    line(Term.OVERHEAD, "output-buffer", 0.38),
)


def verdicts(rows: tuple[BufferRow, ...]) -> dict[tuple[str, str], Verdict]:
    return {(row.term, row.formula): row.verdict for row in rows}


def test_a_log_as_planned_holds_in_every_buffer() -> None:
    rows = reconcile(bill(*SMOLLM2), report(LOGS["smollm2"]))
    assert [row.term for row in rows] == ["weights", "kv", "compute", "output"]
    assert {row.verdict for row in rows} == {Verdict.HELD}
    assert sum(row.difference_bytes for row in rows) == 0


def test_a_hundredth_of_a_mebibyte_more_is_seen() -> None:
    off = (*SMOLLM2[:2], line(Term.COMPUTE, "compute.replay", 16.66), SMOLLM2[3])
    rows = reconcile(bill(*off), report(LOGS["smollm2"]))
    wrong = [row for row in rows if row.verdict is Verdict.DIFFERS]
    assert [row.term for row in wrong] == ["compute"]
    assert wrong[0].difference_bytes == pytest.approx(-0.02 * MIB, abs=2)


def test_what_the_engine_has_and_the_plan_has_not_differs() -> None:
    rows = reconcile(bill(*SMOLLM2[:3]), report(LOGS["smollm2"]))
    unplanned = [row for row in rows if not row.parts]
    assert [(row.term, row.formula, row.verdict) for row in unplanned] == [
        ("output", "not planned", Verdict.DIFFERS)
    ]


def test_what_the_plan_has_and_the_engine_has_not_differs() -> None:
    rows = reconcile(bill(*SMOLLM2, line(Term.KV, "kv.full", 10, device="CUDA1")), report(LOGS["smollm2"]))
    missing = next(row for row in rows if row.device == "CUDA1")
    assert (missing.actual_bytes, missing.verdict) == (0, Verdict.DIFFERS)


def test_a_mapping_and_its_gaps_are_one_buffer() -> None:
    parted = bill(
        line(Term.WEIGHTS, "weights.plain", 80),
        *SMOLLM2[1:],
        page_cache=(line(Term.WEIGHTS, "weights.mapped-gaps", 12.1),),
    )
    rows = reconcile(parted, report(LOGS["smollm2"]))
    assert verdicts(rows)["weights", "weights.plain + weights.mapped-gaps"] is Verdict.HELD


def test_two_caches_and_repacked_weights_are_told_apart() -> None:
    gemma = bill(
        line(Term.WEIGHTS, "weights.plain", 235.16),
        line(Term.WEIGHTS, "weights.repack", 12.66),
        line(Term.KV, "kv.window", 30),
        line(Term.KV, "kv.full", 24),
        line(Term.COMPUTE, "compute.replay", 23.28),
        line(Term.OVERHEAD, "output-buffer", 2),
    )
    rows = reconcile(gemma, report(LOGS["gemma"]))
    assert len(rows) == 6
    assert {row.verdict for row in rows} == {Verdict.HELD}
    assert verdicts(rows)["kv", "kv.window"] is Verdict.HELD


def test_rpc_buffers_are_held_against_their_devices() -> None:
    rows = reconcile(
        bill(line(Term.KV, "kv.full", 21, device="RPC0"), line(Term.KV, "kv.full", 7.5, device="RPC1")),
        report(LOGS["rpc"]),
    )
    kv = {row.device: row.verdict for row in rows if row.term == "kv"}
    assert (kv["RPC0"], kv["RPC1"]) == (Verdict.HELD, Verdict.HELD)


def test_an_upper_bound_holds_from_above_only() -> None:
    for planned, expected in ((20, Verdict.WITHIN), (10, Verdict.DIFFERS)):
        bound = line(Term.COMPUTE, "compute.bound", planned, basis=LineBasis.UPPER_BOUND)
        rows = reconcile(bill(*SMOLLM2[:2], bound, SMOLLM2[3]), report(LOGS["smollm2"]))
        assert verdicts(rows)["compute", "compute.bound"] is expected


def test_parts_of_a_split_file_are_summed_and_each_may_be_rounded() -> None:
    one = report(LOGS["smollm2"])
    weights = next(b for b in one.buffers if b.term == "weights")
    half = replace(weights, bytes=weights.bytes // 2)
    parts = replace(one, buffers=(half, half, *(b for b in one.buffers if b.term != "weights")))
    row = reconcile(bill(*SMOLLM2), parts)[0]
    assert row.verdict is Verdict.HELD
    assert row.precision_bytes > reconcile(bill(*SMOLLM2), one)[0].precision_bytes


def test_what_no_log_speaks_of_is_left_out() -> None:
    driver = line(Term.OVERHEAD, "driver-context", 400, device="CUDA0")
    assert all(row.device == HOST for row in reconcile(bill(*SMOLLM2, driver), report(LOGS["smollm2"])))


def test_devices_that_work_as_one_are_held_against_the_largest() -> None:
    """With -sm tensor the log says ``Meta()`` for all, and the size of the largest."""
    text = LOGS["smollm2"].replace("CPU_Mapped model", "Meta() model").replace("CPU KV", "Meta() KV")
    planned = bill(
        line(Term.WEIGHTS, "weights.device", 92.10, device="CUDA0"),
        line(Term.WEIGHTS, "weights.device", 80, device="CUDA1"),
        line(Term.KV, "kv.full", 40, device="CUDA0"),
        line(Term.KV, "kv.full", 90, device="CUDA1"),
        *SMOLLM2[2:],
    )
    rows = reconcile(planned, report(text))
    assert {(row.device, row.term): row.verdict for row in rows if row.device != HOST} == {
        ("Meta()", "weights"): Verdict.HELD,
        ("Meta()", "kv"): Verdict.HELD,
    }
    less = replace(planned, lines=planned.lines[:3] + planned.lines[4:])
    assert {row.verdict for row in reconcile(less, report(text)) if row.term == "kv"} == {Verdict.DIFFERS}


def test_a_silent_log_gives_no_rows() -> None:
    assert reconcile(bill(*SMOLLM2), LoadReport(loaded=True)) == ()


@given(st.lists(st.integers(-(2**22), 2**22), min_size=4, max_size=4))
def test_a_bill_is_held_exactly_where_it_is_within_half_of_the_last_digit(gaps: list[int]) -> None:
    planned = [replace(item, bytes=max(1, item.bytes + gap)) for item, gap in zip(SMOLLM2, gaps, strict=True)]
    printed = [92.10, 90.00, 16.64, 0.38]
    rows = reconcile(bill(*planned), report(LOGS["smollm2"]))
    for item, figure, row in zip(planned, printed, rows, strict=True):
        # the log rounds to two decimals; at the very edge it may go either way
        edge = abs(abs(item.bytes / MIB - figure) - 0.005)
        if edge > 2 / MIB:
            assert (row.verdict is Verdict.HELD) == (abs(item.bytes / MIB - figure) < 0.005)
