"""Opening a model's file on this machine, with an error for each way that it can go wrong.

Only ``os`` is used, no ``pathlib``: this is on the path of every command that weighs, and paths may hold bytes
that aren't text, which ``os`` passes through.
"""

import os
from stat import S_ISDIR, S_ISREG

from terazi.errors import ModelFileError, UsageError
from terazi.models.gguf_window import Fetch, display


class opened:  # noqa: N801 - a context manager that reads as a verb
    """``with opened(path) as (fetch, size)``: bytes of a regular file, and its size.

    Raises:
        UsageError: there is no such file.
        ModelFileError: it is a folder or a device, or reading fails.
    """

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = _open(path)

    def __enter__(self) -> tuple[Fetch, int]:
        descriptor = self._descriptor
        status = os.fstat(descriptor)
        if S_ISREG(status.st_mode):
            return lambda offset, length: os.pread(descriptor, length, offset), status.st_size
        os.close(descriptor)
        if S_ISDIR(status.st_mode):
            raise ModelFileError(
                f"{display(self._path)} is a directory.", hint="Give a model's file, or the folder that holds it."
            )
        raise ModelFileError(
            f"{display(self._path)} is not a regular file.", hint="Give a .gguf file; pipes and devices won't do."
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        os.close(self._descriptor)
        if isinstance(error, OSError):
            raise ModelFileError(
                f"{display(self._path)} can't be read: {error.strerror}.",
                hint="Check the disk or the network mount.",
            ) from error


def read_whole(path: str, limit: int, *, whole: bool = True) -> bytes:
    """The bytes of the small file *path*; of a longer one than *limit*, one byte more than that, or the beginning.

    Raises:
        UsageError: there is no such file.
        ModelFileError: it can't be read.
    """
    with opened(path) as (fetch, size):
        return fetch(0, min(size, limit + whole))


def absolute(path: str) -> str:
    """*path* from the root on, with symbolic links left as they are.

    Raises:
        UsageError: it is relative, and the current folder has been removed.
    """
    try:
        return os.path.abspath(path)  # noqa: PTH100 - see above
    except FileNotFoundError:
        raise UsageError(
            f"There is no file {display(path)}: the current folder has been removed.",
            hint="cd to a folder that is there, or give the path from / on.",
        ) from None


def is_directory(path: str) -> bool:
    """Whether *path* is a folder that is there."""
    try:
        return S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116 - see above
    except (OSError, ValueError):
        return False


def exists(path: str) -> bool:
    """Whether anything is at *path*."""
    try:
        os.stat(path)  # noqa: PTH116 - see above
    except (OSError, ValueError):
        return False
    return True


def listing(folder: str) -> list[str]:
    """Names in *folder*, sorted; empty if it can't be listed."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - see above
    except (OSError, ValueError):
        return []


def _open(path: str) -> int:
    try:
        # Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"There is no file {display(path)}.", hint=_nearby(path)) from None
    except PermissionError:
        raise ModelFileError(
            f"{display(path)} can't be read: permission denied.",
            hint="Make it readable for this user, or run as the user that it belongs to.",
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{display(path)} can't be opened: {reason}.", hint="Check the path.") from None


def _nearby(path: str) -> str:
    folder = os.path.dirname(path)  # noqa: PTH120 - see above
    found = [display(name) for name in listing(folder) if name.endswith(".gguf")]
    if not found:
        return (
            "Give a .gguf file, a safetensors folder, hf:org/repo, ollama:name, or `demo` for the small demo model."
        )
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"In that folder there are {', '.join(found[:3])}{more}."
