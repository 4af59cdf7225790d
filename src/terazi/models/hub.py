"""Names of models on the Hugging Face hub, and which file of a repository a short name means.

In: texts. Out: names. Nothing here asks the hub. The choice of a GGUF file is that of llama.cpp's ``-hf``
(``find_best_model``, ``get_split_files`` and ``find_best_mmproj`` in ``common/download.cpp``, build b11434).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from terazi.errors import UsageError
from terazi.models.gguf_window import display

PREFIX: Final = "hf:"
#: What is taken if no quantisation is named, in this order.
_USUAL: Final = ("Q4_K_M", "Q8_0")
#: Parts of the names of files that belong to a model but are none.
_COMPANIONS: Final = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_REPOSITORY: Final = re.compile(r"[\w.\-]{1,96}/[\w.\-]{1,96}", re.ASCII)
_FILE_ENDINGS: Final = (".gguf", ".safetensors", ".json")
_SPLIT: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_TAG: Final = re.compile(r"[-.]([A-Za-z0-9_]+)$")
#: Words of file names that don't tell models apart: what kind of file it is, and parts of quantisations.
_NO_NAME: Final = re.compile(
    r"mmproj|model|vision|projector|gguf|ud|i1|imat|qat|i?q\d|tq\d|b?f16|fp16|f32|mxfp4|[01kmsl]|x{1,2}[sl]"
)
_PAGE: Final = re.compile(r"https?://[^/]+/([^/]+/[^/]+)/(?:resolve|blob|raw)/([^/]+)/([^?#]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubReference:
    """What ``hf:org/repo[@revision][:file|:quant]`` says. ``file`` and ``quant`` exclude each other."""

    repository: str
    revision: str | None = None
    file: str | None = None
    quant: str | None = None

    def of(self, file: str, revision: str | None = None) -> "HubReference":
        """The same repository's *file*, at *revision* if that is known by now."""
        return replace(self, file=file, quant=None, revision=revision or self.revision)

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        chosen = self.file or self.quant
        return f"{PREFIX}{self.repository}{at}{f':{chosen}' if chosen else ''}"


def parse_reference(text: str) -> HubReference:
    """Read *text*, with or without its ``hf:``.

    Raises:
        UsageError: it names no repository.
    """
    name, colon, chosen = text.removeprefix(PREFIX).partition(":")
    repository, at, revision = name.partition("@")
    senseless = (colon and not chosen) or (at and not revision) or not (revision + chosen).isprintable()
    if senseless or not _REPOSITORY.fullmatch(repository) or ".." in f"{repository}/{revision}/{chosen}".split("/"):
        raise UsageError(
            f"{display(text[:200])} names no repository on the Hugging Face hub.",
            hint="Say hf:org/repo, hf:org/repo:Q4_K_M, hf:org/repo:file.gguf or hf:org/repo@revision.",
        )
    is_file = chosen.endswith(_FILE_ENDINGS)
    return HubReference(
        repository=repository,
        revision=revision or None,
        file=chosen if is_file else None,
        quant=chosen if chosen and not is_file else None,
    )


def from_flags(repository: str, file: str | None) -> HubReference:
    """What llama.cpp's ``-hf ORG/REPO[:QUANT]`` and ``-hff FILE`` say together; the file wins.

    Raises:
        UsageError: they name no repository.
    """
    reference = parse_reference(repository)
    return reference.of(file) if file else reference


def is_remote(path: str) -> bool:
    """Whether a ``ModelFile.path`` is on another machine."""
    return path.startswith((PREFIX, "https://", "http://"))


def parse_page(url: str, endpoint: str) -> HubReference | None:
    """The file that *url* shows or serves, if it is one of the hub at *endpoint*."""
    found = _PAGE.fullmatch(url.partition("?")[0])
    if found is None or not url.startswith(endpoint.rstrip("/") + "/"):
        return None
    repository, revision, file = found.groups()
    return parse_reference(f"{PREFIX}{repository}@{revision}:{file}")


def choose_gguf(names: Sequence[str], quant: str | None) -> str | None:
    """The model's GGUF file (of a split one, the first part) among *names*, which are in the hub's order.

    Without *quant* it is Q4_K_M, else Q8_0, else the first model; a *quant* that isn't there gives None.
    """
    models = [name for name in names if is_model(name)]
    for tag in (quant,) if quant else _USUAL:
        pattern = re.compile(re.escape(tag) + "[.-]", re.IGNORECASE)
        for name in models:
            if pattern.search(name):
                return name
    return None if quant else next(iter(models), None)


def parts_of(file: str, names: Sequence[str]) -> tuple[str, ...]:
    """*file*, and with it, if it is the first part of a split one, the others that are among *names*."""
    split = _SPLIT.fullmatch(file)
    if split is None:
        return (file,)
    found = (_SPLIT.fullmatch(name) for name in names)
    others = sorted(part[0] for part in found if part and part[1] == split[1] and part[3] == split[3])
    return tuple(others) or (file,)


def quants(names: Sequence[str]) -> tuple[str, ...]:
    """The quantisations that a repository offers, as their files are named."""
    tags = dict.fromkeys(tag_of(name) for name in names if is_model(name))
    return tuple(tag for tag in tags if tag)


def choose_projector(names: Sequence[str], model: str) -> str | None:
    """The ``mmproj`` file that ``-hf`` loads beside *model*: the nearest folder, then the closest quantisation."""
    folder = model.split("/")[:-1]
    found: list[tuple[int, int, str]] = []
    for name in names:
        if name.endswith(".gguf") and "mmproj" in name:
            home = name.split("/")[:-1]
            if folder[: len(home)] == home:
                found.append((-len(home), abs(_bits(name) - _bits(model)), name))
    return min(found, key=lambda row: row[:2])[2] if found else None


def projector_beside(names: Sequence[str], model: str) -> str | None:
    """The projector for the file *model* among the other *names* of its folder, by their names alone.

    Its name holds no word that the model's doesn't, as in ``mmproj-gemma-3-4b-it-f16.gguf``; or it is a general
    one, as ``mmproj-F16.gguf``, and no other model is in the folder. Of several the nearest quantisation is taken.
    """
    own = _words(model)
    alone = all(_words(name) == own for name in names if is_model(name))
    fitting = [n for n in names if "mmproj" in n and (words := _words(n)) <= own and (words or alone)]
    return choose_projector(fitting, model)


def _words(name: str) -> frozenset[str]:
    """What the name of a file says of its model: no quantisation, no part number, nothing that any file may say."""
    split = _SPLIT.fullmatch(name)
    base = split[1] if split else name.removesuffix(".gguf")
    return frozenset(w for w in re.split(r"[^a-z0-9]+", base.lower()) if w and not _NO_NAME.fullmatch(w))


def is_model(name: str) -> bool:
    """Whether *name* is a GGUF model, or the first part of a split one."""
    base = name.rsplit("/", 1)[-1]
    if not name.endswith(".gguf") or any(part in base for part in _COMPANIONS):
        return False
    split = _SPLIT.fullmatch(name)
    return split is None or int(split[2]) == 1 or int(split[3]) <= 1


def tag_of(name: str) -> str:
    """The quantisation that the file *name* carries in its name, in capitals; empty if there is none."""
    split = _SPLIT.fullmatch(name)
    found = _TAG.search(split[1] if split else name.removesuffix(".gguf"))
    return found[1].upper() if found else ""


def _bits(name: str) -> int:
    """``Q4_0`` → 4, ``F16`` → 16; 0 if the name has no number there (``extract_quant_bits``)."""
    digits = re.search(r"\d{1,4}", tag_of(name))
    return int(digits[0]) if digits else 0
