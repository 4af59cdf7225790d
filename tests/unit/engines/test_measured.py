"""Which lines of a bill become measured, and which keep their basis."""

from terazi.engines.measured import confirm
from terazi.memory.bill import HOST, Bill, BillLine, LineBasis, Memory, Term


def line(formula: str, n: int, *, device: str = HOST, basis: LineBasis = LineBasis.EXACT) -> BillLine:
    return BillLine(
        term=Term.WEIGHTS, device=device, bytes=n, formula=formula, basis=basis, memory=Memory.DEVICE, note="why"
    )


def bill(*lines: BillLine) -> Bill:
    return Bill(engine="llama.cpp", build="b11434", lines=lines)


def bases(found: Bill) -> list[LineBasis]:
    return [item.basis for item in found.lines]


def test_only_lines_of_just_these_bytes_are_confirmed() -> None:
    given = bill(line("a", 5), line("b", 7, basis=LineBasis.MODELLED), line("c", 9))
    found = confirm(given, {(HOST, "a"): 5, (HOST, "b"): 8}, "b1 said so")
    assert bases(found) == [LineBasis.MEASURED, LineBasis.MODELLED, LineBasis.EXACT]
    assert found.lines[0].note == "why; b1 said so"
    assert found.total_bytes == given.total_bytes


def test_lines_of_one_formula_are_confirmed_together() -> None:
    given = bill(line("a", 5), line("a", 6))
    assert bases(confirm(given, {(HOST, "a"): 11}, "x")) == [LineBasis.MEASURED] * 2
    assert bases(confirm(given, {(HOST, "a"): 5}, "x")) == [LineBasis.EXACT] * 2


def test_a_stand_in_speaks_for_the_device_that_it_stands_for() -> None:
    given = bill(line("a", 5, device="CUDA0"), line("a", 5, device="CUDA1"))
    names = {"CUDA0": "RPC0", "CUDA1": "RPC1"}
    assert bases(confirm(given, {("RPC1", "a"): 5}, "x", names=names)) == [LineBasis.EXACT, LineBasis.MEASURED]


def test_an_empty_line_is_nothing_to_measure() -> None:
    assert bases(confirm(bill(line("a", 0)), {(HOST, "a"): 0}, "x")) == [LineBasis.EXACT]
