"""The table of failures names tests that exist, and each test here is in it."""

import re
from pathlib import Path

HERE = Path(__file__).parent
REPO = HERE.parents[2]
ROW = re.compile(r"^\| (\d+) \| (.+?) \| .+ \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"^(?:async )?def (test_\w+)\(.*?^    \"\"\"(.*?)\"\"\"", re.MULTILINE | re.DOTALL)


def told_by(path: Path) -> dict[str, str]:
    """Docstrings by the names of the tests in *path*; empty without a docstring."""
    text = path.read_text()
    return dict.fromkeys(re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE), "") | dict(
        TEST.findall(text)
    )


def test_all_thirty_are_shown_by_tests_that_exist() -> None:
    rows = ROW.findall((REPO / "docs/reference/failures.md").read_text())
    assert [int(number) for number, _, _ in rows] == list(range(1, 31))
    named = set()
    for number, links, shown in rows:
        ids = re.findall(r"`([\w/.]+)::(\w+)`", shown)
        assert ids, f"row {number} names no test"
        first_link = links.split(",")[0]
        for file, name in ids:
            path = REPO / file if "/" in file else HERE / file
            found = {test: doc for test, doc in told_by(path).items() if test.startswith(name)}
            assert found, f"row {number} names {file}::{name}, which isn't there"
            if path.parent == HERE:
                named |= set(found)
                assert name == f"test_{int(number):02d}"
                assert any(first_link in doc for doc in found.values()), f"row {number}: none says {first_link}"
    here = {t for path in HERE.glob("test_*.py") for t in told_by(path) if re.match(r"test_\d\d_", t)}
    assert here == named, "a test that no row names"
