"""What a binary's own texts say."""

from pathlib import Path

import pytest

from terazi.engines.llama_cpp.binary import MINIMUM_BUILD, parse_flags, parse_version, read_binary
from terazi.engines.llama_cpp.flags import flag_values
from terazi.errors import EngineError

HELP = (Path(__file__).parents[3] / "golden" / "llama_cpp" / "help.txt").read_text()


def test_flags_of_the_captured_help_are_those_of_the_source() -> None:
    assert parse_flags(HELP) == flag_values("llama-server").keys(), "the table was read from common/arg.cpp"


def test_flags_that_only_say_that_they_were_removed_are_none() -> None:
    assert "the argument has been removed" in HELP
    assert not {"--draft", "--draft-max", "--draft-min"} & parse_flags(HELP)


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("version: 0.6.0-dev (build 0, commit unknown)\nbuilt with GNU 12.2.0 for Linux x86_64", None),
        ("version: 0.6.0-dev (build 11434, commit 1a2b3c4)", 11434),
        ("ggml_cuda_init: found 1 ROCm devices\nversion: 8763 (ff5ef8278)\nbuilt with GNU 15.2.1", 8763),
        ("version: 0 (unknown)", None),
        ("version: 0.1.0-dev (build 1, commit 7e4c0a9)", None),
        ("llama 3", None),
    ],
)
def test_build_number(text: str, build: int | None) -> None:
    assert parse_version(text)[0] == build


def test_known_build_is_believed_before_the_package() -> None:
    binary = read_binary("/b", version="version: 9000 (abc)", help_text=HELP, build=11434)
    assert (binary.build, binary.label) == (9000, "b9000")
    unknown = read_binary("/b", version="version: 0.6.0-dev (build 0, commit unknown)", help_text=HELP)
    assert unknown.build is None
    assert unknown.label == "0.6.0-dev (build 0, commit unknown)"


def test_old_number_is_refused_even_with_all_flags() -> None:
    with pytest.raises(EngineError, match=rf"\(b{MINIMUM_BUILD - 1}\) is too old: Terazi needs b{MINIMUM_BUILD}"):
        read_binary("/b", version=f"version: {MINIMUM_BUILD - 1} (abc)", help_text=HELP)


def test_missing_flag_is_named_where_the_number_is_unknown() -> None:
    without = "\n".join(line for line in HELP.splitlines() if not line.startswith("-fit, "))
    with pytest.raises(EngineError, match="no --fit"):
        read_binary("/b", version="version: 0 (unknown)", help_text=without)
