"""A sparse twin: files that an engine takes for a model, of which only the headers are real.

In: a ``ModelSpec``. Out: what to write where; the bytes come from whoever can read them. The engine maps a hole of
the file's size as it would the weights, so its buffers are the model's own, at the cost of the header on disk.
"""

from typing import NamedTuple

from terazi.errors import UsageError
from terazi.models.spec import ModelFile, ModelSpec
from terazi.models.split import split_path

#: Names of our own: the given ones may hold bytes that are no text, and a split file's name must have this form.
_NAME = "twin"


class TwinFile(NamedTuple):
    """One file of a twin.

    Args:
        name: within the twin's folder; the first file is the one that the engine is given.
        source: the part whose header it repeats, ``source.data_offset`` bytes from its beginning.
        size_bytes: how long the whole file is; behind the header it is a hole.
    """

    name: str
    source: ModelFile
    size_bytes: int


def twin_files(spec: ModelSpec) -> tuple[TwinFile, ...]:
    """The files of the twin of *spec*, first part first.

    Raises:
        UsageError: the model is no GGUF file, so llama.cpp can't be asked about it.
    """
    if spec.format != "gguf" or not spec.files:
        raise UsageError(
            f"{spec.name} is no GGUF file, so llama.cpp can't be asked about it.",
            hint="Name the .gguf file that llama.cpp would load.",
        )
    count = len(spec.files)
    return tuple(
        TwinFile(
            name=f"{_NAME}.gguf" if count == 1 else split_path(_NAME, number, count),
            source=file,
            size_bytes=file.size_bytes,
        )
        for number, file in enumerate(spec.files)
    )
