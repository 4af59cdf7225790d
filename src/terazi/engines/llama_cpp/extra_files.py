"""The files that a llama.cpp command line names beside the model itself.

Source: ``common/arg.cpp``, b11434. A flag that is repeated replaces what it named before, except where it adds up.
"""

import math
from typing import NamedTuple


class ExtraFile(NamedTuple):
    """One file beside the model.

    Args:
        part: what it is for, as bill lines say it (``BillLine.part``).
        flag: the canonical flag that named it.
        path: where it lies.
        scale: of an adapter; one of 0 is loaded but not applied.
    """

    part: str
    flag: str
    path: str
    scale: float = 1.0


class FileFlag(NamedTuple):
    """What a flag that names a file is for.

    Args:
        part: of the deployment.
        adds_up: each further one adds a file, commas separate several.
        scaled: a colon and a factor follow the name.
    """

    part: str
    adds_up: bool = False
    scaled: bool = False


#: Canonical flag → what its file is for.
FILE_FLAGS = {
    "--spec-draft-model": FileFlag("draft"),
    "--mmproj": FileFlag("mmproj"),
    "--lora": FileFlag("lora", adds_up=True),
    "--lora-scaled": FileFlag("lora", adds_up=True, scaled=True),
    "--control-vector": FileFlag("control-vector", adds_up=True),
    "--control-vector-scaled": FileFlag("control-vector", adds_up=True, scaled=True),
}


def with_file(files: tuple[ExtraFile, ...], flag: str, value: str) -> tuple[ExtraFile, ...]:
    """*files* after ``flag value`` was read.

    Raises:
        ValueError: for a value that the engine doesn't take.
    """
    kind = FILE_FLAGS[flag]
    if kind.adds_up:
        return (*files, *(_named(kind, flag, entry) for entry in value.split(",") if entry))
    return (*(file for file in files if file.flag != flag), ExtraFile(kind.part, flag, value))


def _named(kind: FileFlag, flag: str, entry: str) -> ExtraFile:
    if not kind.scaled:
        return ExtraFile(kind.part, flag, entry)
    words = entry.split(":")
    try:
        path, scale = words[0], float(words[1])
    except (ValueError, IndexError):
        path, scale = "", math.nan
    if len(words) != 2 or not path or not math.isfinite(scale):
        raise ValueError("it takes a file and a factor, like adapter.gguf:0.5")
    return ExtraFile(kind.part, flag, path, scale)


def as_typed(file: ExtraFile) -> tuple[str, str]:
    """The flag and the value that name *file*."""
    return file.flag, f"{file.path}:{file.scale:g}" if FILE_FLAGS[file.flag].scaled else file.path
