"""The files that are on offer for one model: the GGUF files of a folder, the quantisations of a repository."""

import os
from collections.abc import Sequence

from terazi.errors import UsageError
from terazi.models.hub import PREFIX, is_model, parse_reference, quants, tag_of
from terazi.models.layout import choose_files
from terazi.models.sources.files import is_directory, listing


def offers(argument: str) -> tuple[str, ...]:
    """MODEL arguments that *argument* may mean, one a file; itself alone if it names one.

    Raises:
        UsageError: it names nothing.
        SourceError: the hub can't be reached.
    """
    if argument.startswith(PREFIX):
        return _in_repository(argument)
    if is_directory(argument):
        names = listing(argument)
        files = [name for name in names if is_model(name)]
        if choose_files(names) is None and files:
            return tuple(f"{argument.rstrip('/')}/{name}" for name in files)
    return (argument,)


def with_quant(argument: str, quant: str) -> str:
    """The MODEL that is *argument* in another quantisation.

    Raises:
        UsageError: there is none of that name.
        SourceError: the hub can't be reached.
    """
    if argument.startswith("ollama:"):
        name = argument.removeprefix("ollama:").partition(":")[0]
        return f"ollama:{name}:{quant}"
    if argument.startswith(PREFIX):
        reference = parse_reference(argument)
        at = f"@{reference.revision}" if reference.revision else ""
        return f"{PREFIX}{reference.repository}{at}:{quant}"
    folder = argument if is_directory(argument) else os.path.dirname(argument) or "."  # noqa: PTH120 - as in files
    names = [name for name in listing(folder) if is_model(name)]
    found = [name for name in names if tag_of(name) == quant.upper()]
    if not found:
        raise UsageError(f"there is no {quant} of this model in {folder}", hint=_there(names))
    return f"{folder.rstrip('/')}/{_likest(found, os.path.basename(argument))}"  # noqa: PTH119 - as above


def _in_repository(argument: str) -> tuple[str, ...]:
    reference = parse_reference(argument)
    if reference.file is not None or reference.quant is not None:
        return (argument,)
    from terazi.models.sources.hub import names_of

    tags = quants(names_of(argument))
    return tuple(f"{argument}:{tag}" for tag in tags) or (argument,)


def _likest(names: Sequence[str], beside: str) -> str:
    """Of *names* the one that begins most like *beside*: a folder may hold several models."""

    def alike(name: str) -> tuple[int, int]:
        same = next((i for i, (a, b) in enumerate(zip(name, beside, strict=False)) if a != b), len(name))
        return same, -len(name)

    return max(names, key=alike)


def _there(names: Sequence[str]) -> str:
    tags = sorted({tag for name in names if (tag := tag_of(name))})
    return f"there are: {', '.join(tags)}" if tags else "give the file's name"
