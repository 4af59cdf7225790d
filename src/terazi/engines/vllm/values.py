"""Values as vLLM's parser takes them: sizes such as ``4k`` and ``1M``, JSON, and JSON in pieces.

Source: ``vllm/utils/argparse_utils.py:human_readable_int``, ``FlexibleArgumentParser.parse_args``, vLLM 0.32.0.
"""

import json
import re
from collections.abc import Mapping
from typing import Final, TypeAlias

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

_HUMAN: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_POWER: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
#: A document longer than this is no setting.
_JSON_LIMIT: Final = 64 * 1024


def human_int(text: str) -> int:
    """``4096``, ``4k`` (4000), ``4K`` (4096), ``25.6k``.

    Raises:
        ValueError: it is none of these.
    """
    text = text.strip()
    match = _HUMAN.fullmatch(text)
    if match is None:
        return int(text)
    number, suffix = match.groups()
    power = _POWER[suffix.lower()]
    if suffix.islower():
        return int(float(number) * int(1000**power))
    return int(number) * int(1024**power)  # a fraction of a binary unit is refused


def length(text: str) -> int:
    """``--max-model-len``: a size, or ``auto`` and ``-1``.

    Raises:
        ValueError: it is none of these.
    """
    return -1 if text.strip().lower() in {"auto", "-1"} else human_int(text)


def json_object(text: str) -> dict[str, Json]:
    """A JSON object; bare sizes such as ``80m`` in it count as numbers.

    Raises:
        ValueError: it is no JSON object.
    """
    if len(text) > _JSON_LIMIT:
        raise ValueError("too long")
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", lambda m: str(human_int(m.group())), parts[index])
    try:
        value = json.loads("".join(parts))
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the caller handles bad text as one kind
    return value


def set_piece(whole: dict[str, Json], path: str, text: str) -> None:
    """``--speculative-config.method ngram``: *text* at the dotted *path* of *whole*, as JSON where it is JSON."""
    *outer, last = path.split(".")
    at = whole
    for name in outer:
        inner = at.setdefault(name, {})
        if not isinstance(inner, dict):
            inner = at[name] = {}
        at = inner
    if last.endswith("+"):
        items = at.setdefault(last[:-1], [])
        if isinstance(items, list):
            items += [scalar(item) for item in text.split(",")]
        return
    at[last] = scalar(text)


def scalar(text: str) -> Json:
    """A number, a switch or a text."""
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def whole_number(values: Mapping[str, Json], *names: str) -> int | None:
    """The first of *names* that is a whole number."""
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def text_value(values: Mapping[str, Json], *names: str) -> str | None:
    """The first of *names* that is a text."""
    return next((value for name in names if isinstance(value := values.get(name), str)), None)
