"""The files that a llama.cpp command line names beside the model itself.

Source: ``common/arg.cpp``, b11434. A flag that is repeated replaces what it named before, except where it adds up.
"""

from typing import NamedTuple


class ExtraFile(NamedTuple):
    """One file beside the model.

    Args:
        part: what it is for, as bill lines say it (``BillLine.part``).
        flag: the canonical flag that named it.
        path: where it lies.
    """

    part: str
    flag: str
    path: str


class FileFlag(NamedTuple):
    """What a flag that names a file is for. ``adds_up``: each further one adds a file, commas separate several."""

    part: str
    adds_up: bool = False


#: Canonical flag → what its file is for.
FILE_FLAGS = {"--spec-draft-model": FileFlag("draft")}


def with_file(files: tuple[ExtraFile, ...], flag: str, value: str) -> tuple[ExtraFile, ...]:
    """*files* after ``flag value`` was read."""
    kind = FILE_FLAGS[flag]
    if kind.adds_up:
        return (*files, *(ExtraFile(kind.part, flag, path) for path in value.split(",") if path))
    return (*(file for file in files if file.flag != flag), ExtraFile(kind.part, flag, value))
