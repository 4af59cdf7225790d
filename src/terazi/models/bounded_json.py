"""Reads JSON that strangers wrote, in time and memory that follow its length and no number inside it.

In: bytes. Out: the object, or ``ModelFileError``.
"""

import json
import re
from typing import Final, TypeAlias

from terazi.errors import ModelFileError
from terazi.models.gguf_window import display

#: What a JSON text can hold. Whole numbers and fractions stay apart.
Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

#: Values (counted by their commas and brackets) that one text may hold: some 200 MB as Python objects. A header
#: with 2**17 tensors has 1.3 million.
VALUES_LIMIT: Final = 2**21
#: An escape that may be half a character, which no output, digest or file name can hold.
_HALF_CHARACTER: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_AGAIN: Final = "Download it again; the link may need a login or lead to a page about the file."


def parse_object(data: bytes, label: str, *, what: str, unique: bool = False) -> dict[str, Json]:
    """The JSON object that *data* is.

    Args:
        data: the text, in UTF-8; its caller has bounded its length.
        label: names the file in messages.
        what: names the text in messages, e.g. ``its config``.
        unique: refuse an object that has a name twice (else the last one counts, as in most readers).

    Raises:
        ModelFileError: it is no JSON object, is nested too deeply, or holds more values than any real one.
    """
    if sum(map(data.count, (b",", b"[", b"{"))) > VALUES_LIMIT:
        raise ModelFileError(
            f"{label} is damaged or hostile: {what} holds more than {VALUES_LIMIT:,} values.",
            hint="No real model's has as many; download it again from where it was published.",
        )
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique if unique else None)
        if _HALF_CHARACTER.search(data):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ModelFileError(
            f"{label} is damaged or hostile: {what} is nested too deeply.", hint="Download it again."
        ) from None
    except ValueError as error:  # JSONDecodeError, UnicodeError, a repeated name, a number of 5,000 digits
        reason = display(str(error)[:120])
        raise ModelFileError(f"{label} can't be read: {what} is not valid JSON ({reason}).", hint=_AGAIN) from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{label} can't be read: {what} is not a JSON object.", hint=_AGAIN)
    return value


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    names = dict(pairs)
    if len(names) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {name[:60]!r} is there twice")
            seen.add(name)
    return names
