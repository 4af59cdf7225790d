"""The page of a verification: every figure beside its plan, and an outcome that can't be misread."""

import json

import pytest

from terazi.cli.render_verification import render_verification
from terazi.service.verification import Asked, Verification, to_json
from terazi.telemetry.reconciliation import BufferRow, Verdict

MIB = 1024 * 1024


def row(verdict: Verdict, actual: int = 90 * MIB, device: str = "RPC0") -> BufferRow:
    return BufferRow(
        device=device,
        term="kv",
        parts=(("kv.full", 90 * MIB),),
        actual_bytes=actual,
        precision_bytes=5244,
        verdict=verdict,
    )


def asked(*rows: BufferRow, failure: str | None = None, tool: str = "llama-server") -> Asked:
    return Asked(tool=tool, argv=(tool, "-m", "a b.gguf"), seconds=1.25, rows=rows, failure=failure)


def found(*questions: Asked, unasked: tuple[str, ...] = ()) -> Verification:
    return Verification(build="b11434", asked=questions, confirmed=3, lines=5, unasked=unasked)


def test_agreement_counts_the_lines() -> None:
    page = render_verification(found(asked(row(Verdict.HELD), row(Verdict.WITHIN, 80 * MIB))))
    assert "the engine agrees: 3 of 5 lines of the bill" in page
    assert "(within the bound)" in page
    assert "llama-server -m 'a b.gguf'" in page


def test_a_difference_stands_in_its_row_and_in_the_outcome() -> None:
    page = render_verification(found(asked(row(Verdict.HELD), row(Verdict.DIFFERS, 100 * MIB, "RPC1"))))
    line = next(text for text in page.splitlines() if "DIFFERS" in text)
    assert all(part in line for part in ("RPC1", "90.00 MiB", "100.00 MiB", "+10.00 MiB", "kv.full"))
    assert "does NOT agree: 1 of 2 figures differ" in page


def test_a_failure_is_no_agreement() -> None:
    page = render_verification(found(asked(failure="it ended with 1: no")))
    assert "FAILED: it ended with 1: no" in page
    assert "1 of 1 questions failed" in page


def test_nothing_asked_is_nothing_verified() -> None:
    page = render_verification(found(unasked=("a real load: too large",)))
    assert "not asked: a real load: too large" in page
    assert "nothing is verified" in page


@pytest.mark.parametrize(
    ("questions", "agreed"),
    [
        ((), None),
        ((asked(row(Verdict.HELD)),), True),
        ((asked(row(Verdict.HELD)), asked(row(Verdict.DIFFERS, 1))), False),
        ((asked(row(Verdict.HELD)), asked(failure="x")), False),
        ((asked(),), False),
    ],
)
def test_agreement_is_of_all_questions(questions: tuple[Asked, ...], agreed: bool | None) -> None:
    document = json.loads(json.dumps(to_json(found(*questions))))
    assert document["agreed"] is agreed
    assert document["schema"] == "terazi.verification/1"
