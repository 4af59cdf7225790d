"""Names and keys of split GGUF files, as llama.cpp's loader wants them.

Rules: ``llama_split_path`` and ``llama_split_prefix`` in ``src/llama.cpp`` and the constructor of
``llama_model_loader``, build b11434. The engine is given the first part and finds the others beside it by name.
"""

from collections.abc import Sequence

from terazi.errors import ModelFileError
from terazi.models.gguf import GgufHeader
from terazi.models.gguf_window import display


def split_path(prefix: str, number: int, count: int) -> str:
    """Path of part *number* (from 0) of *count*."""
    return f"{prefix}-{number + 1:05d}-of-{count:05d}.gguf"


def other_parts(first: GgufHeader) -> tuple[str, ...]:
    """Paths of the parts that belong to *first*; empty if it is a whole model.

    Raises:
        ModelFileError: *first* isn't the first part, or its name doesn't lead to the others.
    """
    count = _number(first, "split.count", 0)
    if count <= 1:
        return ()
    label = display(first.path)
    number = _number(first, "split.no", None)
    suffix = split_path("", number, count)
    prefix = first.path.removesuffix(suffix)
    named = prefix != first.path and bool(prefix)
    if number:
        start = f"Give the first part, {display(split_path(prefix, 0, count))}" if named else "Give the first part"
        raise ModelFileError(
            f"{label} is part {number + 1} of {count} of a split model.",
            hint=f"{start}; the others are found beside it.",
        )
    if not named:
        raise ModelFileError(
            f"{label} is the first of {count} parts, but its name doesn't end in {suffix}.",
            hint="Give the parts their original names back; the engine finds them by name too.",
        )
    return tuple(split_path(prefix, i, count) for i in range(1, count))


def check_parts(parts: Sequence[GgufHeader]) -> None:
    """Check that *parts*, in order, are one model.

    Raises:
        ModelFileError: a part has the wrong number, a tensor is there twice, or the count of tensors is wrong.
    """
    if len(parts) < 2:
        return
    names: set[str] = set()
    for i, part in enumerate(parts):
        number = _number(part, "split.no", None)
        if number != i:
            raise ModelFileError(
                f"{display(part.path)} calls itself part {number + 1} but stands in the place of part {i + 1}.",
                hint="Give the parts their original names back, or download them again.",
            )
        for tensor in part.tensors:
            if tensor.name in names:
                raise ModelFileError(
                    f"{display(part.path)} holds tensor {display(tensor.name)}, which an earlier part holds too.",
                    hint="Parts of different downloads are mixed; download them again.",
                )
            names.add(tensor.name)
    expected = _number(parts[0], "split.tensors.count", None)
    if expected != len(names):
        raise ModelFileError(
            f"{display(parts[0].path)} announces {expected:,} tensors; its {len(parts)} parts hold {len(names):,}.",
            hint="Parts of different downloads are mixed; download them again.",
        )


def _number(header: GgufHeader, key: str, default: int | None) -> int:
    value = header.metadata.get(key, default)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    what = "lacks the key" if value is None else "has no sensible number under"
    raise ModelFileError(
        f"{display(header.path)} is part of a split model but {what} {key}.",
        hint="Split it again with llama-gguf-split, or download it again.",
    )
