"""Reads a Modelfile as Ollama's own parser does.

In: text. Out: ``Modelfile``. Source: ``ParseFile``, ``parseRuneForState`` and ``unquote`` in ``parser/parser.go``,
Ollama at commit fb30760.
"""

from dataclasses import dataclass
from typing import Final

from terazi.errors import UsageError

#: Bytes of a Modelfile; templates and licences make the largest.
LIMIT_BYTES: Final = 4 * 1024**2
_COMMANDS: Final = frozenset({
    "from", "license", "template", "system", "adapter", "draft", "renderer", "parser", "parameter", "message",
    "requires",
})  # fmt: skip
_ROLES: Final = frozenset({"system", "user", "assistant"})
_SPACE: Final = " \t"
_NEWLINE: Final = "\r\n"
_HINT: Final = "a Modelfile says FROM, PARAMETER, ADAPTER and the like, one a line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelfile:
    """What a Modelfile says that moves memory.

    Args:
        sources: of each ``FROM``: a path, or a model's name.
        parameters: names and values in order; ``stop`` may come several times.
        adapters, drafts: paths.
    """

    sources: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]
    adapters: tuple[str, ...]
    drafts: tuple[str, ...]


def is_modelfile(path: str) -> bool:
    """Whether *path* is called like one: ``Modelfile``, ``Modelfile.big``, ``big.modelfile``."""
    name = path.rsplit("/", 1)[-1].lower()
    return name.startswith("modelfile") or name.endswith(".modelfile")


def parse_modelfile(text: str) -> Modelfile:
    """Read *text*.

    Raises:
        UsageError: what Ollama refuses too, with its line.
    """
    commands = _commands(text.removeprefix("\ufeff"))
    sources = tuple(value for name, value in commands if name == "from")
    if not sources:
        raise UsageError("the Modelfile has no FROM line", hint="begin it with FROM and a model")
    return Modelfile(
        sources=sources,
        parameters=tuple(
            (name.removeprefix("parameter "), v) for name, v in commands if name.startswith("parameter ")
        ),
        adapters=tuple(value for name, value in commands if name == "adapter"),
        drafts=tuple(value for name, value in commands if name == "draft"),
    )


def _commands(text: str) -> list[tuple[str, str]]:
    """(command in lower case, value); a parameter's command is ``parameter NAME``."""
    found: list[tuple[str, str]] = []
    position, line = 0, 1
    while position < len(text):
        character = text[position]
        if character in _SPACE + _NEWLINE:
            line += character in _NEWLINE
            position += 1
            continue
        if character == "#":
            while position < len(text) and text[position] not in _NEWLINE:
                position += 1
            continue
        name, position = _word(text, position, line)
        command = name.lower()
        if command not in _COMMANDS:
            raise _refusal(line, f"{name[:40]!r} is no command")
        if command in {"parameter", "message"}:
            while position < len(text) and text[position] in _SPACE:
                position += 1
            name, position = _word(text, position, line)
            if command == "message" and name not in _ROLES:
                raise _refusal(line, "a MESSAGE is of system, user or assistant")
            command = f"{command} {name}"
        value, position, lines = _value(text, position, line)
        line += lines
        found.append((command, value))
    return found


def _word(text: str, position: int, line: int) -> tuple[str, int]:
    """Letters (and digits and ``_`` of a parameter) up to a blank, which must follow."""
    start = position
    while position < len(text) and text[position].isascii() and (text[position].isalnum() or text[position] == "_"):
        position += 1
    if position == start or position >= len(text) or text[position] not in _SPACE:
        raise _refusal(line, f"{text[start : start + 40].partition(chr(10))[0]!r} is no command with a value")
    return text[start:position], position + 1


def _value(text: str, position: int, line: int) -> tuple[str, int, int]:
    """The value that begins at *position*: to the end of the line, or of the quotes; and how many lines it took."""
    start = position
    end = start
    while True:
        while end < len(text) and text[end] not in _NEWLINE:
            end += 1
        raw = text[start:end].strip(" \t\r\n")
        value = _unquote(raw)
        if value is not None:
            return value, end, text.count("\n", start, end)
        if end >= len(text):
            raise _refusal(line, "a quote is not closed")
        end += 1


def _unquote(raw: str) -> str | None:
    """The value within its quotes; None while the closing ones are missing."""
    for quote in ('"""', '"'):
        if raw.startswith(quote):
            closed = len(raw) >= 2 * len(quote) and raw.endswith(quote)
            return raw[len(quote) : -len(quote)] if closed else None
    return raw


def _refusal(line: int, what: str) -> UsageError:
    return UsageError(f"line {line} of the Modelfile: {what}", hint=_HINT)
