"""The flag table against each binary's own ``--help``."""

import re
import subprocess

import pytest

import llama_engine
from terazi.engines.llama_cpp.flags import flag_values

pytestmark = pytest.mark.e2e

#: A help entry starts at the margin with its flags; one space and a value may follow, or an explanation further on.
_ENTRY = re.compile(r"^(-[^\s,]+(?:, +-[^\s,]+)*),?( \S)?")


def help_flags(tool: str) -> dict[str, bool]:
    """Flag → whether the help shows a value after it."""
    done = subprocess.run(
        [str(llama_engine.BINARIES / tool), "--help"], capture_output=True, text=True, check=False, timeout=60
    )
    found: dict[str, bool] = {}
    for line in (done.stdout + done.stderr).splitlines():
        match = _ENTRY.match(line)
        if match and not line.startswith("---"):
            flags = [flag.strip() for flag in match.group(1).split(",")]
            found.update(dict.fromkeys(flags, match.group(2) is not None))
    return found


@pytest.mark.parametrize("tool", ["llama-server", "llama-cli", "llama-fit-params"])
def test_table_has_every_flag_of_the_binary(tool: str) -> None:
    shown, table = help_flags(tool), flag_values(tool)
    assert len(shown) > 100
    # the help lists removed flags too, which the binary refuses
    removed = {flag for flag in shown if flag.startswith(("--draft", "--spec-ngram")) and flag not in table}
    assert set(shown) - removed <= set(table)
    for flag, valued in shown.items():
        if flag in table and valued:
            assert table[flag] > 0, flag


@pytest.mark.parametrize("tool", ["llama-server", "llama-cli", "llama-fit-params"])
def test_table_has_no_flag_that_the_binary_refuses(tool: str) -> None:
    """Flags that the help hides are tried: the parser names a flag that it doesn't have."""
    shown, table = help_flags(tool), flag_values(tool)
    for flag in sorted(set(table) - set(shown)):
        done = subprocess.run(
            [str(llama_engine.BINARIES / tool), flag, *["1"] * table[flag], "--no-such-flag"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert f"invalid argument: {flag}" not in done.stdout + done.stderr, flag
