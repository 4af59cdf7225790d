"""How llama.cpp's parser reads the values of its flags, build b11434 (``common/arg.cpp``).

A bad value is a ``ValueError`` with a sentence that says what is allowed.
"""

from collections.abc import Callable
from typing import TypeAlias

from terazi.memory.llama_cpp.cache_types import CACHE_TYPES
from terazi.memory.llama_cpp.layers import ALL_LAYERS
from terazi.memory.llama_cpp.settings import LlamaCppSettings

#: Takes settings and a value, returns new settings.
Setter: TypeAlias = Callable[[LlamaCppSettings, str], LlamaCppSettings]

TRUTHY = frozenset({"on", "enabled", "true", "1"})
FALSEY = frozenset({"off", "disabled", "false", "0"})


def read_int(value: str) -> int:
    """Read a number as ``std::stoi`` does: leading digits count, what follows them is dropped."""
    text = value.lstrip()
    end = 1 if text[:1] in {"+", "-"} else 0
    while end < len(text) and text[end] in "0123456789":
        end += 1
    digits = text[:end]
    if not digits.strip("+-"):
        raise ValueError("it takes a whole number")
    if len(digits) > 32:  # Python itself refuses to read thousands
        raise ValueError("it takes a number of 32 bits")
    number = int(digits)
    if not -(2**31) <= number < 2**31:
        raise ValueError("it takes a number of 32 bits")
    return number


def read_switch(value: str) -> bool:
    """Read a boolean as ``parse_bool_value`` does."""
    if value in TRUTHY:
        return True
    if value in FALSEY:
        return False
    raise ValueError("it takes on or off")


def read_count(value: str, of: str) -> int:
    """Read a number that isn't negative."""
    number = read_int(value)
    if number < 0:
        raise ValueError(f"it takes a number of {of} from 0")
    return number


def read_cache_type(value: str) -> str:
    """Read a cache type; its spelling is the engine's."""
    if value not in CACHE_TYPES:
        raise ValueError(f"it takes one of {', '.join(CACHE_TYPES)}")
    return value


def read_gpu_layers(value: str) -> int | None:
    """Read a number of layers for devices; None is the engine's own choice."""
    if value == "auto":
        return None
    if value == "all":
        return ALL_LAYERS
    try:
        number = read_int(value)
    except ValueError:
        raise ValueError("it takes a number of layers, auto or all") from None
    return None if number < 0 else number


def read_names(value: str) -> tuple[str, ...]:
    """Read a list of names."""
    names = tuple(name for name in value.split(",") if name)
    if not names:
        raise ValueError("it takes a list of names, separated by commas")
    return names


def read_overrides(value: str) -> tuple[tuple[str, str], ...]:
    """Read pairs of a tensor pattern and a buffer type (``parse_tensor_buffer_overrides``)."""
    pairs = []
    for part in value.split(","):
        pattern, equals, buffer_type = part.partition("=")
        if not equals or not buffer_type:
            raise ValueError("it takes pairs of a tensor pattern and a buffer type, like exps=CPU")
        if _repeats_repeats(pattern):
            raise ValueError("a repeat inside a repeated group takes for ever to match; write it with one repeat")
        pairs.append((pattern, buffer_type))
    return tuple(pairs)


def _repeats_repeats(pattern: str) -> bool:
    """Whether a group that holds ``*``, ``+`` or ``{`` is repeated itself, so that matching may never end."""
    holds, escaped, in_class = [False], False, False
    for i, c in enumerate(pattern):
        if escaped or c == "\\":
            escaped = not escaped
        elif in_class or c == "[":
            in_class = c != "]"
        elif c == "(":
            holds.append(False)
        elif c == ")" and len(holds) > 1:
            inner, repeated = holds.pop(), pattern[i + 1 : i + 2] in {"*", "+", "{"}
            if inner and repeated:
                return True
            holds[-1] = holds[-1] or inner or repeated
        elif c in "*+{":
            holds[-1] = True
    return False
