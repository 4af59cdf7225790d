"""The bytes of headers, and twins made of them.

``HeaderBytes`` is what a source gives: the first bytes of one of a model's files. ``header_bytes`` reads them again
where they came from: on this machine, or by the same range requests elsewhere.
"""

import os
from collections.abc import Callable
from typing import TypeAlias

from terazi.errors import ModelFileError
from terazi.models.gguf_window import display
from terazi.models.spec import ModelFile, ModelSpec
from terazi.models.twin import twin_files

#: (file, n) → its first n bytes.
HeaderBytes: TypeAlias = Callable[[ModelFile, int], bytes]

#: How the paths of files begin that aren't on this machine.
_ELSEWHERE = ("hf:", "https://", "http://")
#: A header is a few MiB; of one that is larger than this, no twin is made.
_MOST = 1 << 30


def header_bytes(file: ModelFile, n_bytes: int) -> bytes:
    """The first *n_bytes* of *file*, wherever it lies.

    Raises:
        ModelFileError: it can't be read, or is shorter by now.
        SourceError: it lies elsewhere and can't be reached.
    """
    if not file.path.startswith(_ELSEWHERE):
        return local_header(file, n_bytes)
    from terazi.models.sources.hub import read_head

    head = read_head(file.path, n_bytes)
    if len(head) < n_bytes:
        raise ModelFileError(f"{display(file.path)} has become shorter while it was read.", hint="Weigh it again.")
    return head


def local_header(file: ModelFile, n_bytes: int) -> bytes:
    """The first *n_bytes* of a file on this machine.

    Raises:
        ModelFileError: it can't be read, or is shorter by now.
    """
    try:
        with open(file.path, "rb") as source:  # noqa: PTH123 - paths may hold bytes that are no text
            head = source.read(n_bytes)
    except OSError as error:
        raise ModelFileError(
            f"{display(file.path)} can't be read: {error.strerror}.", hint="Check that the file is still there."
        ) from error
    if len(head) < n_bytes:
        raise ModelFileError(
            f"{display(file.path)} has become shorter while it was read.", hint="Wait until its download has ended."
        )
    return head


def write_twin(spec: ModelSpec, folder: str, header: HeaderBytes = header_bytes) -> str:
    """Write the twin of *spec* into *folder*; returns the path of its first file.

    Raises:
        UsageError: the model is no GGUF file.
        ModelFileError: its header can't be had, or the disk takes no twin.
    """
    files = twin_files(spec)
    for file in files:
        offset = file.source.data_offset
        if offset > _MOST:
            raise ModelFileError(
                f"The header of {display(file.source.path)} is too large for a twin.",
                hint="Weigh without --verify.",
            )
        head = header(file.source, offset)
        try:
            with open(os.path.join(folder, file.name), "xb") as target:  # noqa: PTH118, PTH123 - as above
                target.write(head)
                target.truncate(file.size_bytes)
        except OSError as error:
            raise ModelFileError(
                f"No sparse file of {file.size_bytes:,} bytes can be made in {folder}: {error.strerror}.",
                hint="Set TMPDIR to a folder on a disk that takes sparse files of that size.",
            ) from error
    return os.path.join(folder, files[0].name)  # noqa: PTH118 - as above
