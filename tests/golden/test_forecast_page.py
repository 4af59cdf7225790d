"""The error tables of ``docs/guides/forecast.md`` are what ``benchmarks/forecast_table.py`` writes now."""

from benchmark_scripts import script


def test_tables_are_those_of_the_benchmark() -> None:
    table = script("forecast_table")
    page = table.PAGE.read_text(encoding="utf-8")
    assert table.written(page) == page
