"""The noun itself: what its sentence says, and that it survives its JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terazi.telemetry.reconciliation import (
    BufferRow,
    ProcessMemory,
    Reconciliation,
    Verdict,
    from_json,
    lines_held,
    to_json,
)

MIB = 1024 * 1024


def row(
    term: str = "kv", planned: int = 90 * MIB, actual: int = 90 * MIB, verdict: Verdict = Verdict.HELD
) -> BufferRow:
    return BufferRow(
        device="CUDA0",
        term=term,
        parts=((f"{term}.full", planned),),
        actual_bytes=actual,
        precision_bytes=5244,
        verdict=verdict,
    )


def found(*rows: BufferRow) -> Reconciliation:
    return Reconciliation(
        plan_id="ab12", engine="llama.cpp", build="b11434", model="demo", wall_s=1_796_000_000.25, rows=rows
    )


def test_all_held_is_said_with_the_count() -> None:
    reconciled = found(row(), row("weights"))
    assert reconciled.agreed is True
    assert reconciled.sentence().startswith("bill held: 2 of 2 buffers")


def test_a_difference_is_named_with_its_sign_and_device() -> None:
    reconciled = found(row(), row("compute", 16 * MIB, 18 * MIB, Verdict.DIFFERS))
    assert reconciled.agreed is False
    assert reconciled.sentence() == "bill DIFFERS in 1 of 2 buffers: CUDA0 compute +2.00 MiB"


def test_the_largest_differences_come_first_and_the_rest_is_counted() -> None:
    rows = [row(f"t{n}", 10 * MIB, (10 - n) * MIB, Verdict.DIFFERS) for n in range(1, 7)]
    told = found(*rows).sentence()
    assert told.startswith("bill DIFFERS in 6 of 6 buffers: CUDA0 t6 -6.00 MiB, CUDA0 t5 -5.00 MiB")
    assert told.endswith("and 2 more")


def test_no_rows_is_no_agreement() -> None:
    assert found().agreed is None
    assert "names no buffers" in found().sentence()


def test_a_bound_that_held_is_said_as_a_bound() -> None:
    assert "within an upper bound" in found(row(), row("compute", 10, 5, Verdict.WITHIN)).sentence()


def test_a_line_holds_only_if_all_its_rows_do() -> None:
    rows = (row(planned=5), row(planned=7, actual=9, verdict=Verdict.DIFFERS), row("weights", 3, 3))
    assert lines_held(rows) == {("CUDA0", "weights.full"): 3}


rows = st.builds(
    BufferRow,
    device=st.text(max_size=8),
    term=st.sampled_from(["weights", "kv", "state", "compute", "output"]),
    parts=st.lists(st.tuples(st.text(max_size=8), st.integers(0, 2**60)), max_size=3).map(tuple),
    actual_bytes=st.integers(0, 2**60),
    precision_bytes=st.integers(0, MIB),
    verdict=st.sampled_from(Verdict),
)
counts = st.none() | st.integers(0, 2**50)
processes = st.builds(
    ProcessMemory,
    anonymous_bytes=counts,
    file_bytes=counts,
    device_bytes=st.none()
    | st.dictionaries(st.text(max_size=6), st.integers(0, 2**40)).map(lambda d: tuple(d.items())),
)
reconciliations = st.builds(
    Reconciliation,
    plan_id=st.text(max_size=12),
    engine=st.just("llama.cpp"),
    build=st.text(max_size=12),
    model=st.text(max_size=12),
    wall_s=st.floats(0, 1e12),
    rows=st.lists(rows, max_size=4).map(tuple),
    process=processes,
)


@given(reconciliations)
def test_json_brings_back_the_same(reconciled: Reconciliation) -> None:
    assert from_json(json.loads(json.dumps(to_json(reconciled)))) == reconciled


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"schema": "terazi.reconciliation/2"}, {"schema": "terazi.reconciliation/1"}, "text", 3],
)
def test_what_is_no_reconciliation_is_none(document: object) -> None:
    assert from_json(document) is None


@given(
    reconciliations, st.sampled_from(["rows", "plan_id", "process", "wall_s"]), st.sampled_from([None, 7, "x", []])
)
def test_a_spoilt_document_never_raises(reconciled: Reconciliation, key: str, value: object) -> None:
    spoilt = {**to_json(reconciled), key: value}
    again = from_json(spoilt)
    assert again is None or isinstance(again, Reconciliation)
