"""Reads the header of a GGUF file on this machine, and of the other parts if it is split.

Only ``os`` is used, no ``pathlib``: this is on the path of every command that weighs, and paths may hold bytes
that aren't text, which ``os`` passes through.
"""

import os
from stat import S_ISDIR, S_ISREG

from terazi.errors import ModelFileError, UsageError
from terazi.models.from_gguf import build_spec
from terazi.models.gguf import GgufHeader, read_header
from terazi.models.gguf_window import display
from terazi.models.spec import ModelSpec
from terazi.models.split import other_parts


def load_local(path: str, *, origin: str) -> ModelSpec:
    """The model in *path*, a single file or the first part of a split one.

    The paths in the result are absolute, with symbolic links left as they are: in a download cache the parts
    are links whose names alone lead from one to the next.

    Raises:
        UsageError: there is no such file.
        ModelFileError: it can't be read as a model, or a part is missing.
    """
    first = _read(_absolute(path), 0)
    parts = [first]
    others = other_parts(first)
    for i, other in enumerate(others, start=1):
        try:
            parts.append(_read(other, i))
        except UsageError as error:
            raise ModelFileError(
                f"Part {i + 1} of {len(others) + 1} is missing: there is no file {display(other)}.",
                hint="Download all parts into one folder; the engine needs them beside each other.",
            ) from error
    return build_spec(parts, origin=origin)


def load_companion(path: str, part: str, *, origin: str) -> ModelSpec:
    """The file in *path* that goes beside a model: ``mmproj``, ``lora`` or ``control-vector``.

    Raises:
        UsageError: there is no such file.
        ModelFileError: it can't be read, or is no file of that kind.
    """
    from terazi.models.companions import build_companion

    return build_companion(_read(_absolute(path), 0), part, origin=origin)


def _absolute(path: str) -> str:
    if not path:
        raise UsageError("The path of the model is empty.", hint="Give a .gguf file, or `demo`.")
    return os.path.abspath(path)  # noqa: PTH100 - see above


def _read(path: str, file_index: int) -> GgufHeader:
    descriptor = _open(path)
    try:
        status = os.fstat(descriptor)
        if S_ISDIR(status.st_mode):
            raise _is_directory(path)
        if not S_ISREG(status.st_mode):
            raise ModelFileError(
                f"{display(path)} is not a regular file.", hint="Give a .gguf file; pipes and devices won't do."
            )
        return read_header(
            lambda offset, length: os.pread(descriptor, length, offset), status.st_size, path, file_index=file_index
        )
    except OSError as error:
        raise ModelFileError(
            f"{display(path)} can't be read: {error.strerror}.", hint="Check the disk or the network mount."
        ) from error
    finally:
        os.close(descriptor)


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


def _listing(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - see above
    except (OSError, ValueError):
        return []


def _nearby(path: str) -> str:
    folder = os.path.dirname(path)  # noqa: PTH120 - see above
    found = [display(name) for name in _listing(folder) if name.endswith(".gguf")]
    if not found:
        return "Give the path of a .gguf file, or `demo` for the small demo model."
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"In that folder there are {', '.join(found[:3])}{more}."


def _is_directory(path: str) -> ModelFileError:
    names = _listing(path)
    found = [display(name) for name in names if name.endswith(".gguf")]
    if found:
        hint = f"Give one of the files in it, such as {found[0]}."
    elif any(name.endswith(".safetensors") for name in names):
        hint = "Safetensors folders are not supported yet; give a .gguf file of this model."
    else:
        hint = "Give a .gguf file."
    return ModelFileError(f"{display(path)} is a directory.", hint=hint)
