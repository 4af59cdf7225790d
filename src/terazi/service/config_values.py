"""What a value of ``terazi.toml`` may be written as: durations (``"15m"``) and sizes (``"20GiB"``)."""

import re
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from terazi.units import GIB, KIB, MIB, TIB

_SECONDS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {
    "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_DURATION: Final = r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+"
_SIZE: Final = r"\d+(?:\.\d+)?\s*(?:B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)"


class Table(BaseModel):
    """A table of the file: unknown keys are mistakes, and nothing is changed once it is read."""

    # what was typed is never shown in an error: it may be a key
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def read_duration(value: object) -> object:
    """Seconds: a number as it is, or a text such as ``90s``, ``15m`` or ``1h30m``.

    Raises:
        ValueError: the text is none.
    """
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if not re.fullmatch(_DURATION, text):
        raise ValueError('must be seconds or a duration such as "90s", "15m" or "1h30m"')
    return sum(float(n) * _SECONDS[unit] for n, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text))


def read_size(value: object) -> object:
    """Bytes: a whole number as it is, or a text such as ``512MiB`` or ``20 GB``.

    Raises:
        ValueError: the text is none.
    """
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", value.strip().lower())
    if found is None or found[2] not in _BYTES:
        raise ValueError('must be bytes or a size such as "512MiB" or "20GiB"')
    return round(float(found[1]) * _BYTES[found[2]])


#: Seconds.
Duration = Annotated[
    float,
    BeforeValidator(read_duration),
    Field(ge=0, allow_inf_nan=False),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^{_DURATION}$"}]}),
]
#: Bytes.
Size = Annotated[
    int,
    BeforeValidator(read_size),
    Field(ge=0),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": f"^{_SIZE}$"}]}),
]
