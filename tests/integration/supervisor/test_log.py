"""The bounded log."""

from pathlib import Path

from terazi.supervisor.log import BoundedLog, parts, read_log


def test_short_log_is_kept_whole(tmp_path: Path) -> None:
    log = BoundedLog(str(tmp_path / "log"))
    log.write(b"one\ntw")
    log.write(b"o\nthr")
    assert log.tail == ("one", "two", "thr")
    log.close()
    assert read_log(str(tmp_path / "log")) == b"one\ntwo\nthr"


def test_long_log_keeps_beginning_and_end_within_its_cap(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    log = BoundedLog(path, cap_bytes=40_000, tail_lines=200)
    for i in range(50_000):
        log.write(f"line {i}\n".encode())
        if i % 5000 == 0:
            assert sum(p.stat().st_size for p in parts(path) if p.exists()) <= 40_200
    log.close()
    text = read_log(path).decode()
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 49999\n")
    assert "bytes of the log before this part were left out]" in text
    assert log.tail == tuple(f"line {i}" for i in range(49_800, 50_000))
    kept = [line for line in text.splitlines() if line.startswith("line ")]
    numbers = [int(line.split()[1]) for line in kept if line.split()[1].isdigit()]
    assert numbers[:2000] == list(range(2000))


def test_one_endless_line_stays_bounded(tmp_path: Path) -> None:
    log = BoundedLog(str(tmp_path / "log"), cap_bytes=10_000)
    for _ in range(1000):
        log.write(b"x" * 1000)
    log.close()
    assert len(log.tail[-1]) <= 4096
    assert len(read_log(str(tmp_path / "log"))) <= 10_200


def test_disk_that_refuses_costs_the_file_not_the_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = BoundedLog(str(tmp_path / "file" / "log"))
    log.write(b"still here\n")
    assert log.tail == ("still here",)
    log.close()


def test_new_log_replaces_the_old_one(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    old = BoundedLog(path, cap_bytes=1)
    old.write(b"old\n" * 5000)
    old.close()
    BoundedLog(path).close()
    assert read_log(path) == b""


def test_log_is_for_its_owner_only(tmp_path: Path) -> None:
    BoundedLog(str(tmp_path / "log")).close()
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0
