"""Reads models of Ollama's store on this machine: the manifest, the header of the model's blob, its parameters."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from terazi.errors import ModelFileError, UsageError
from terazi.models.bounded_json import Json
from terazi.models.gguf_window import display
from terazi.models.ollama_store import (
    MANIFEST_LIMIT_BYTES,
    SMALL_LAYER_LIMIT_BYTES,
    OllamaManifest,
    OllamaName,
    parse_manifest,
    parse_name,
    parse_parameters,
)
from terazi.models.sources.files import is_directory, listing, read_whole
from terazi.models.sources.local import load_gguf
from terazi.models.spec import ModelSpec

#: Overrides where the store is; Ollama itself reads it too.
ENVIRONMENT = "OLLAMA_MODELS"
#: Where the packages for Linux keep the service's own store.
_SERVICE_STORE = "/usr/share/ollama/.ollama/models"
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaModel:
    """A model of the store: its header, and the files and options that come with it. Paths are absolute."""

    name: OllamaName
    spec: ModelSpec
    projectors: tuple[str, ...]
    adapters: tuple[str, ...]
    draft: str | None
    parameters: Mapping[str, Json]


def load_ollama(text: str, *, origin: str, store: str | None = None) -> OllamaModel:
    """The model that ``[ollama:][host/][namespace/]model[:tag]`` names.

    Args:
        text: the name.
        origin: what the user asked for.
        store: the folder with ``manifests`` and ``blobs``; None looks where Ollama keeps it.

    Raises:
        UsageError: there is no such model here; what there is, is said.
        ModelFileError: the store is damaged, or the model is of a kind that llama.cpp doesn't run.
    """
    name = parse_name(text)
    for home in (store,) if store else stores():
        path = _manifest_path(home, name)
        if path is not None:
            return _load(home, path, name, origin=origin)
    raise UsageError(
        f"There is no model {name} in Ollama's store here.", hint=_offer((store,) if store else stores())
    )


def stores() -> tuple[str, ...]:
    """The folders that can be Ollama's store on this machine, the likeliest first."""
    chosen = os.environ.get(ENVIRONMENT, "").strip().strip("\"'")
    if chosen:
        return (os.path.abspath(chosen),)  # noqa: PTH100 - the rest of this room uses os as well
    own = os.path.join(os.path.expanduser("~"), ".ollama", "models")  # noqa: PTH111, PTH118 - as above
    return (own, _SERVICE_STORE)


def _load(home: str, manifest_path: str, name: OllamaName, *, origin: str) -> OllamaModel:
    label = str(name)
    manifest = parse_manifest(read_whole(manifest_path, MANIFEST_LIMIT_BYTES), label)
    if manifest.model is None:
        raise _no_gguf(manifest, label)
    parameters: Mapping[str, Json] = {}
    if manifest.parameters is not None:
        parameters = parse_parameters(_small(home, manifest.parameters, label), label)
    return OllamaModel(
        name=name,
        spec=load_gguf(_blob(home, manifest.model, label), origin=origin),
        projectors=tuple(_blob(home, digest, label) for digest in manifest.projectors),
        adapters=tuple(_blob(home, digest, label) for digest in manifest.adapters),
        draft=_blob(home, manifest.draft, label) if manifest.draft else None,
        parameters=parameters,
    )


def _no_gguf(manifest: OllamaManifest, label: str) -> ModelFileError:
    if manifest.separate_tensors:
        return ModelFileError(
            f"{label} is stored tensor by tensor, which Ollama runs with MLX and not with llama.cpp.",
            hint="Weigh its GGUF version.",
        )
    return ModelFileError(
        f"{label} has no weights here: it runs on another machine.",
        hint="Only models that are in the store are weighed.",
    )


def _blob(home: str, digest: str, label: str) -> str:
    path = f"{home}/blobs/{digest}"
    if not os.path.lexists(path):
        raise ModelFileError(
            f"{label} is incomplete: its blob {digest[:19]}… is missing.",
            hint=f"Pull it again: ollama pull {label}",
        )
    return path


def _small(home: str, digest: str, label: str) -> bytes:
    return read_whole(_blob(home, digest, label), SMALL_LAYER_LIMIT_BYTES)


def _manifest_path(home: str, name: OllamaName) -> str | None:
    """The manifest's path; Ollama finds a name whose capitals differ as well."""
    folder = f"{home}/manifests"
    for part in name.path.split("/"):
        there = listing(folder)
        found = part if part in there else next((n for n in there if n.lower() == part.lower()), None)
        if found is None:
            return None
        folder = f"{folder}/{found}"
    return folder


def _names(home: str) -> Iterator[str]:
    manifests = f"{home}/manifests"
    for host in listing(manifests):
        for namespace in listing(f"{manifests}/{host}"):
            for model in listing(f"{manifests}/{host}/{namespace}"):
                for tag in listing(f"{manifests}/{host}/{namespace}/{model}"):
                    yield str(OllamaName(host=host, namespace=namespace, model=model, tag=tag))


def _offer(homes: tuple[str, ...]) -> str:
    names = [display(name) for home in homes for name in _names(home)]
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return f"There are {', '.join(names[:_SHOWN])}{more}."
    if any(is_directory(home) for home in homes):
        return "The store is empty, or not readable for this user; get a model with: ollama pull NAME"
    where = " or ".join(display(home) for home in homes)
    return f"No store was found at {where}; set {ENVIRONMENT} to where it is."
