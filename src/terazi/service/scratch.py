"""The folder that a verification works in: gone when it ends, and swept by the next one if it was killed.

A folder belongs to who holds its lock, which the kernel takes back from the dead; so no pid is compared, and a
folder of another container that shares the temporary folder is left alone.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "terazi-verify-"
#: A folder is locked right after it is made; younger ones may be in between.
_YOUNG_S: Final = 60.0


@contextmanager
def scratch_folder() -> Iterator[str]:
    """A folder of this process's own. What verifications that were killed have left goes first."""
    sweep(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # on a file system without locks nothing is swept either
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
        finally:
            os.close(descriptor)


def sweep(top: str) -> int:
    """Remove this user's folders under *top* that nobody holds any more; returns how many."""
    removed = 0
    for path in Path(top).glob(f"{PREFIX}*"):
        with suppress(OSError):
            removed += _remove_if_left(path)
    return removed


def _remove_if_left(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _YOUNG_S:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
        return True
    finally:
        os.close(descriptor)
