"""Reads the header of a GGUF file on this machine, and of the other parts if it is split.

Only ``os`` is used, no ``pathlib``: this is on the path of every command that weighs.
"""

from terazi.errors import ModelFileError, UsageError
from terazi.models.from_gguf import build_spec
from terazi.models.gguf import GgufHeader, read_header
from terazi.models.gguf_window import display
from terazi.models.sources.files import absolute, is_directory, opened
from terazi.models.spec import ModelSpec
from terazi.models.split import other_parts


def load_path(path: str, *, origin: str) -> ModelSpec:
    """The model at *path*: a GGUF file, a safetensors folder, file or index, or a ``config.json``.

    Raises:
        UsageError: there is no such file.
        ModelFileError: it can't be read as a model, or a part is missing.
    """
    if not path:
        raise UsageError("The path of the model is empty.", hint="Give a .gguf file, or `demo`.")
    if path.endswith((".safetensors", ".safetensors.index.json")):
        from terazi.models.sources.folder import load_safetensors

        return load_safetensors(path, origin=origin)
    if path.endswith(".json"):
        from terazi.models.sources.folder import load_config

        return load_config(path, origin=origin)
    if is_directory(path):
        from terazi.models.sources.folder import load_folder

        return load_folder(path, origin=origin)
    return load_gguf(path, origin=origin)


def load_gguf(path: str, *, origin: str) -> ModelSpec:
    """The model in *path*, a single GGUF file or the first part of a split one.

    The paths in the result are absolute, with symbolic links left as they are: in a download cache the parts
    are links whose names alone lead from one to the next.

    Raises:
        UsageError: there is no such file.
        ModelFileError: it can't be read as a model, or a part is missing.
    """
    first = _read(absolute(path), 0)
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


def load_local_companion(path: str, part: str, *, origin: str) -> ModelSpec:
    """The GGUF file in *path* that goes beside a model: ``mmproj``, ``lora`` or ``control-vector``.

    Raises:
        UsageError: there is no such file.
        ModelFileError: it can't be read, or is no file of that kind.
    """
    from terazi.models.companions import build_companion

    if not path:
        raise UsageError(f"The path of the {part} file is empty.", hint="Give a .gguf file.")
    return build_companion(_read(absolute(path), 0), part, origin=origin)


def _read(path: str, file_index: int) -> GgufHeader:
    with opened(path) as (fetch, size):
        return read_header(fetch, size, path, file_index=file_index)
