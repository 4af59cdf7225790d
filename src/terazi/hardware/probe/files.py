"""Reading small files of /proc and /sys below a root, without ever failing: what can't be read is ``None``."""

import os
from typing import Final, NamedTuple

_MAX_TEXT: Final = 4 * 1024 * 1024


class Tree(NamedTuple):
    """A folder that holds ``proc`` and ``sys``: ``/`` for this machine, any other for a copy of one."""

    root: str

    @property
    def live(self) -> bool:
        """True if this is the machine that Terazi runs on."""
        return self.root == "/"

    def path(self, name: str) -> str:
        """*name* (``sys/class/drm`` or ``/sys/class/drm``) below the root."""
        return self.root.rstrip("/") + "/" + name.lstrip("/")

    def text(self, name: str) -> str | None:
        """A file's text, or ``None``. Attribute files of a lost card fail with any errno, hence the wide net."""
        return read_text(self.path(name))

    def names(self, folder: str) -> tuple[str, ...]:
        """What a folder holds, sorted; nothing if it isn't there."""
        try:
            return tuple(sorted(os.listdir(self.path(folder))))  # noqa: PTH208 - pathlib costs more than the listing
        except OSError:
            return ()


def read_text(path: str) -> str | None:
    """The text of an absolute path, or ``None``."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read(_MAX_TEXT)
    except (OSError, ValueError):
        return None
