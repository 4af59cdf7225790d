"""The folder ``crashes``: one file for each engine that ended unasked, the latest ones only."""

import json
from contextlib import suppress
from pathlib import Path

from terazi.supervisor.death import Death

#: Files that are kept.
KEPT = 50
_MOST_BYTES = 4 * 1024 * 1024


def write_crash(folder: Path, death: Death) -> Path | None:
    """Keep *death* as ``MODEL-UNIXTIME-PID.json``, and drop the oldest files; None if the disk says no."""
    safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in death.model)[:80] or "model"
    path = folder / f"{safe}-{int(death.ended_wall_s)}-{death.pid}.json"
    new = path.with_suffix(".json.new")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.write_text(json.dumps(death.document(), indent=1))
        new.chmod(0o600)
        new.replace(path)
        for old in _files(folder)[:-KEPT]:
            old.unlink(missing_ok=True)
    except (OSError, ValueError, TypeError):  # the engine is started again whatever becomes of the file
        with suppress(OSError):
            new.unlink(missing_ok=True)
        return None
    return path


def read_crashes(folder: Path, model: str | None = None) -> tuple[dict[str, object], ...]:
    """What is kept, oldest first; of *model* only, if it is given. What can't be read is passed over."""
    found = []
    for path in _files(folder):
        with suppress(OSError, ValueError):
            if path.stat().st_size > _MOST_BYTES:
                continue
            document = json.loads(path.read_text())
            ours = isinstance(document, dict) and document.get("schema") == "terazi.crash/1"
            if ours and (model is None or document.get("model") == model):
                found.append({**document, "file": str(path)})
    return tuple(found)


def summary(document: dict[str, object]) -> list[str]:
    """A crash in a few lines, for the end of ``terazi logs``."""
    requests = document.get("requests")
    lost = len(requests) if isinstance(requests, list) else 0
    failure = document.get("failure")
    after = f"{_number(document.get('uptime_s')):.0f} s"
    lines = [
        f"last crash: the engine of {document.get('model')} {document.get('reason')}",
        f"  it was {document.get('phase')}, started {after} before, with {lost} requests in flight",
    ]
    if isinstance(failure, dict):
        lines.append(f"  cause: {failure.get('cause')}; {failure.get('remedy')}")
    if (peak := _peak(document.get("memory"))) is not None:
        lines.append(f"  memory: at most {peak / 2**20:.0f} MiB that only swap could take, in its last minutes")
    lines.append(f"  all of it: {document.get('file')}")
    return lines


def _peak(memory: object) -> int | None:
    samples = memory if isinstance(memory, list) else []
    held = [
        s["anonymous_bytes"] for s in samples if isinstance(s, dict) and isinstance(s.get("anonymous_bytes"), int)
    ]
    return max(held) if held else None


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _files(folder: Path) -> list[Path]:
    """Oldest first, by when they were written."""
    dated = []
    for path in folder.glob("*.json"):
        with suppress(OSError):
            dated.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(dated)]
