"""Says which engine a command line is of, and what stands before the command itself.

In: the words of a command line. Out: ``Spoken``.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from terazi.errors import UsageError

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
#: Programs that only start the one named after them; what they do doesn't move memory.
_WRAPPERS = frozenset({"env", "nohup", "exec", "sudo", "time"})
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")


class Spoken(NamedTuple):
    """A command line as it was typed.

    Args:
        engine: ``llama.cpp``, ``vllm`` or ``ollama``.
        environment: the ``NAME=value`` words before the command.
        argv: the command, program first.
    """

    engine: str
    environment: Mapping[str, str]
    argv: tuple[str, ...]


def recognise(words: Sequence[str]) -> Spoken:
    """Whose command *words* are.

    Raises:
        UsageError: there is no command, or its program is of no engine that can be weighed.
    """
    environment: dict[str, str] = {}
    rest = list(words)
    while rest and (_ASSIGNMENT.match(rest[0]) or rest[0] in _WRAPPERS):
        word = rest.pop(0)
        if word not in _WRAPPERS:
            name, _, value = word.partition("=")
            environment[name] = value
    if not rest:
        raise UsageError(
            "The command line is empty.", hint="Give an engine's command, such as llama-server -m FILE."
        )
    return Spoken(engine=_engine(rest), environment=environment, argv=tuple(rest))


def program_name(word: str) -> str:
    """The program that *word* starts, without folder and ``.exe``."""
    return word.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".exe")


def _engine(argv: Sequence[str]) -> str:
    name = program_name(argv[0])
    if name == "llama" or name.startswith("llama-"):
        return "llama.cpp"
    if name == "vllm" or (_PYTHON.fullmatch(name) and any(word.startswith("vllm.") for word in argv[1:4])):
        return "vllm"
    if name == "ollama":
        return "ollama"
    raise UsageError(
        f"{argv[0]!r} is no engine's program that can be weighed.",
        hint="Give a command of llama-server, llama-cli or llama-fit-params, vllm serve, or ollama.",
    )
