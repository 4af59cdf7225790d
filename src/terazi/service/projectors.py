"""Which projector a served model gets: the one that was named, else the one that lies beside it."""

from dataclasses import replace
from pathlib import Path

from terazi.errors import ModelFileError, UsageError
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.projector_bill import weigh_projector
from terazi.memory.llama_cpp.resolve import resolve
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.hub import PREFIX, is_remote, projector_beside
from terazi.models.sources import load_companion, load_model
from terazi.service.wish import NO_PROJECTOR, Wish


def settle_projector(wish: Wish) -> Wish:
    """*wish* with the file of its projector, or ``none``.

    One that was found, and that the engine would refuse beside this model, is left alone.

    Raises:
        UsageError: the one that was named isn't here.
    """
    named = wish.mmproj
    if named is None:
        found = _found(wish.source)
        return replace(wish, mmproj=NO_PROJECTOR if found is None else found)
    if named == NO_PROJECTOR:
        return wish
    if is_remote(named) or named.startswith(PREFIX):
        raise UsageError(f"the projector {named} must be here to be loaded", hint="download it, and name the file")
    return replace(wish, mmproj=str(Path(named).absolute()))


def _found(source: str) -> str | None:
    if source.startswith("ollama:"):
        from terazi.models.sources.ollama import load_ollama

        found = next(iter(load_ollama(source, origin=source).projectors), None)
    else:
        path = Path(source).absolute()
        if not path.is_file():
            return None
        names = [file.name for file in path.parent.glob("*.gguf")]
        name = projector_beside(names, path.name)
        found = None if name is None else str(path.parent / name)
    return found if found is not None and _goes_with(source, found) else None


def _goes_with(source: str, projector: str) -> bool:
    spec, settings = load_model(source), LlamaCppSettings()
    try:
        beside = Companion("mmproj", "--mmproj", load_companion(projector, "mmproj", origin=projector))
        weigh_projector(beside, spec, settings, resolve(spec, settings, ()), ())
    except (UsageError, ModelFileError):
        return False
    return True
