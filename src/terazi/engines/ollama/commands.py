"""Reads an ``ollama`` command line: which model it runs, or which Modelfile it makes one of.

In: argv. Out: ``OllamaCommand``. Source: ``NewCLI`` in ``cmd/cmd.go``, Ollama at commit fb30760.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from terazi.errors import UsageError
from terazi.memory.ollama.settings import COMMIT

#: Flags of ``ollama run`` → whether a value follows. None of them moves memory.
_RUN_FLAGS: Final = {
    "--verbose": False, "--insecure": False, "--nowordwrap": False, "--hidethinking": False, "--truncate": False,
    "--experimental": False, "--experimental-yolo": False, "--experimental-websearch": False,
    "--keepalive": True, "--format": True, "--dimensions": True,
    "--width": True, "--height": True, "--steps": True, "--seed": True, "--negative": True,
}  # fmt: skip
_CREATE_FLAGS: Final = {"-f": True, "--file": True, "-q": True, "--quantize": True, "--experimental": False}
_HINT: Final = "give: ollama run NAME, or ollama create NAME -f Modelfile; or weigh the Modelfile itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaCommand:
    """What is to be weighed: a model of the store, or a Modelfile.

    Args:
        model: of ``ollama run``.
        modelfile: of ``ollama create``.
        unknown_flags: which Ollama would refuse.
        notes: for people.
    """

    model: str | None = None
    modelfile: str | None = None
    unknown_flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def parse_command(argv: Sequence[str]) -> OllamaCommand:
    """Read *argv* (program first).

    Raises:
        UsageError: it names no model.
    """
    verb = argv[1] if len(argv) > 1 else ""
    if verb == "run":
        words, _, unknown = _split(argv[2:], _RUN_FLAGS)
        if not words:
            raise UsageError("ollama run names no model", hint=_HINT)
        return OllamaCommand(model=words[0], unknown_flags=unknown)
    if verb == "create":
        _, values, unknown = _split(argv[2:], _CREATE_FLAGS)
        file = values.get("-f") or values.get("--file") or "Modelfile"
        quantise = values.get("-q") or values.get("--quantize")
        notes = (f"Weighed as it is, not quantised to {quantise}.",) if quantise else ()
        return OllamaCommand(modelfile=file, unknown_flags=unknown, notes=notes)
    if verb in {"serve", "start"}:
        raise UsageError(
            "ollama serve loads a model only when one is asked for",
            hint="say which, with the same variables: terazi weigh -- OLLAMA_NUM_PARALLEL=4 ollama run NAME",
        )
    raise UsageError(f"{f'ollama {verb}'.strip()} loads no model", hint=_HINT)


def unknown_flags_error(flags: tuple[str, ...]) -> UsageError:
    """The refusal of a command with flags that Ollama doesn't have."""
    return UsageError(
        f"ollama ({COMMIT}) has no flag {', '.join(flags)}, so it would not start",
        hint="compare with: ollama --help",
    )


def _split(arguments: Sequence[str], flags: dict[str, bool]) -> tuple[list[str], dict[str, str], tuple[str, ...]]:
    """Words, values of flags, and flags that aren't known. ``--flag=value`` and ``--think`` alone are fine."""
    words: list[str] = []
    values: dict[str, str] = {}
    unknown: list[str] = []
    rest = iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=")
        if not word.startswith("-") or word == "-":
            words.append(word)
        elif name == "--think":
            continue
        elif name not in flags:
            unknown.append(name)
        elif equals:
            values[name] = value
        elif flags[name]:
            values[name] = next(rest, "")
    return words, values, tuple(unknown)
