"""What the library holds, as a file: written whole through a second one, so that a crash leaves one of the two."""

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from terazi.gateway.library import Preset

_log = logging.getLogger(__name__)
_SCHEMA: Final = "terazi.library/1"
_MOST_BYTES: Final = 16 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A model file that the library serves.

    Args:
        name: what clients call it.
        model: the id that it is served under.
        source: its first file.
        digest: SHA-256 of that; empty if it was never read.
        files: those that go when it is deleted; none of a file that lies elsewhere.
    """

    name: str
    model: str
    source: str
    digest: str
    modified: str
    files: tuple[str, ...]


class Catalogue:
    """Reads the file once, and writes it with each change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, Held] = {}
        self._presets: dict[str, Preset] = {}
        self._read()

    def files(self) -> tuple[Held, ...]:
        """In the order in which they came."""
        return tuple(self._files.values())

    def presets(self) -> tuple[Preset, ...]:
        """In the order in which they were made."""
        return tuple(self._presets.values())

    def file(self, name: str) -> Held | None:
        """The one called *name*, ``:latest`` there or not."""
        return self._files.get(name) or self._files.get(name.removesuffix(":latest"))

    def preset(self, name: str) -> Preset | None:
        """The one called *name*, ``:latest`` there or not."""
        return self._presets.get(name) or self._presets.get(name.removesuffix(":latest"))

    def names_of(self, model: str) -> list[str]:
        """All names that lead to the served *model*."""
        files = [held.name for held in self._files.values() if held.model == model]
        return files + [preset.name for preset in self._presets.values() if preset.base == model]

    def put(self, held: Held) -> None:
        """Keep *held* in place of an earlier one of its name."""
        self._files[held.name] = held
        self._write()

    def put_preset(self, preset: Preset) -> None:
        """Keep *preset* in place of an earlier one of its name."""
        self._presets[preset.name] = preset
        self._write()

    def drop(self, name: str) -> None:
        """Forget the preset called *name*, or else the file."""
        if self._presets.pop(name, None) is None:
            self._files.pop(name, None)
        self._write()

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                document = json.loads(file.read(_MOST_BYTES))
            rows = {_SCHEMA: document}[document["schema"]]
            files = [Held(**{**row, "files": tuple(row["files"])}) for row in rows["files"]]
            presets = [Preset(**{**row, "messages": tuple(row["messages"])}) for row in rows["presets"]]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
            aside = self._path.with_suffix(".damaged")
            _log.warning("%s can't be read (%s); it lies in %s now", self._path, problem, aside)
            self._path.rename(aside)
            return
        self._files = {held.name: held for held in files}
        self._presets = {preset.name: preset for preset in presets}

    def _write(self) -> None:
        document: dict[str, Any] = {
            "schema": _SCHEMA,
            "files": [asdict(held) for held in self._files.values()],
            "presets": [asdict(preset) for preset in self._presets.values()],
        }
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        second = self._path.with_suffix(".new")
        with second.open("w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        second.replace(self._path)
