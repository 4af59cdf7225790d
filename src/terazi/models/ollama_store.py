"""Names and manifests of Ollama's store on disk.

In: texts. Out: ``OllamaName`` and ``OllamaManifest``; the files are read in ``models.sources.ollama``. Sources, at
commit fb30760 (August 2026): ``ParseName`` and ``isValidPart`` in ``types/model/name.go``, ``BlobsPath`` in
``manifest/paths.go``, ``GetModel`` in ``server/images.go``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from terazi.errors import ModelFileError, UsageError
from terazi.models.bounded_json import Json, parse_object
from terazi.models.gguf_window import display

PREFIX: Final = "ollama:"
_HOST: Final = "registry.ollama.ai"
_NAMESPACE: Final = "library"
_TAG: Final = "latest"
#: Bytes of a manifest, and of a layer with parameters or a system prompt. Real ones have a few kilobytes.
MANIFEST_LIMIT_BYTES: Final = 1024**2
SMALL_LAYER_LIMIT_BYTES: Final = 4 * 1024**2
#: Layers of one manifest. A model of separate tensors (MLX) has some thousands.
_LAYERS_LIMIT: Final = 2**16

_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,79}")
_NAMESPACE_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,79}")
_HOST_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]{0,349}")
#: Nothing else may become a file's name.
_DIGEST: Final = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_MEDIA: Final = "application/vnd.ollama.image."


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaName:
    """A model's name with all four parts; each is safe as a part of a path."""

    host: str = _HOST
    namespace: str = _NAMESPACE
    model: str
    tag: str = _TAG

    @property
    def path(self) -> str:
        """Where its manifest lies, below ``manifests``."""
        return f"{self.host}/{self.namespace}/{self.model}/{self.tag}"

    def __str__(self) -> str:
        """The shortest form that means the same, with its tag."""
        home = "" if self.host.lower() == _HOST else f"{self.host}/{self.namespace}/"
        if not home and self.namespace.lower() != _NAMESPACE:
            home = f"{self.namespace}/"
        return f"{home}{self.model}:{self.tag}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaManifest:
    """What a model is made of: digests (``sha256-…``, the names of blobs) by their use.

    ``separate_tensors`` says that its weights are one blob each, which Ollama runs with MLX and not with llama.cpp.
    """

    model: str | None
    projectors: tuple[str, ...]
    adapters: tuple[str, ...]
    draft: str | None
    parameters: str | None
    template: str | None
    system: str | None
    config: str | None
    separate_tensors: bool


def parse_name(text: str) -> OllamaName:
    """Read ``[host/][namespace/]model[:tag]``, with or without ``ollama:`` before it.

    Raises:
        UsageError: a part is empty or has a character that Ollama doesn't allow.
    """
    rest = text.removeprefix(PREFIX).removeprefix("https://").removeprefix("http://")
    tag = _TAG
    if rest.rfind(":") > rest.rfind("/"):
        rest, _, tag = rest.rpartition(":")
    *home, model = rest.rsplit("/", 2)
    host, namespace = ([_HOST, *home] if len(home) == 1 else home) or [_HOST, _NAMESPACE]
    valid = (
        _HOST_PART.fullmatch(host)
        and _NAMESPACE_PART.fullmatch(namespace)
        and _PART.fullmatch(model)
        and _PART.fullmatch(tag)
    )
    if not valid:
        raise UsageError(
            f"{display(text[:200])!r} is no name of an Ollama model.",
            hint="Say ollama:llama3.2, or ollama:qwen3:8b.",
        )
    return OllamaName(host=host, namespace=namespace, model=model, tag=tag)


def parse_manifest(data: bytes, label: str) -> OllamaManifest:
    """Read a manifest; *label* names it in messages.

    Raises:
        ModelFileError: it is none, or a digest in it is no digest.
    """
    if len(data) > MANIFEST_LIMIT_BYTES:
        raise ModelFileError(f"{label} is too large for a manifest.", hint=_pull(label))
    document = parse_object(data, label, what="the manifest")
    layers = document.get("layers")
    if not isinstance(layers, list) or len(layers) > _LAYERS_LIMIT:
        raise ModelFileError(f"{label} has no sensible list of layers.", hint=_pull(label))
    by_use: dict[str, list[str]] = {}
    for layer in layers:
        media, digest = _layer(layer, label)
        by_use.setdefault(media.removeprefix(_MEDIA), []).append(digest)
    config = document.get("config")

    def last(*uses: str) -> str | None:
        return next((by_use[use][-1] for use in uses if use in by_use), None)

    return OllamaManifest(
        model=last("model"),
        projectors=tuple(by_use.get("projector", ())),
        adapters=tuple(by_use.get("adapter", ())),
        draft=last("draft"),
        parameters=last("params"),
        template=last("template", "prompt"),
        system=last("system"),
        config=_layer(config, label)[1] if isinstance(config, dict) and config.get("digest") else None,
        separate_tensors="tensor" in by_use,
    )


def parse_parameters(data: bytes, label: str) -> Mapping[str, Json]:
    """The options that a model brings (``num_ctx``, ``stop`` …).

    Raises:
        ModelFileError: the layer is too large, or no JSON object.
    """
    if len(data) > SMALL_LAYER_LIMIT_BYTES:
        raise ModelFileError(f"{label} is too large for a list of parameters.", hint=_pull(label))
    return parse_object(data, label, what="its parameters")


def _layer(layer: Json, label: str) -> tuple[str, str]:
    if isinstance(layer, dict):
        media, digest = layer.get("mediaType", ""), layer.get("digest")
        found = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
        if found is not None and isinstance(media, str):
            return media, f"sha256-{found[1]}"
    raise ModelFileError(f"{label} names a layer by something that is no digest.", hint=_pull(label))


def _pull(label: str) -> str:
    return f"Pull the model again: ollama pull {label}"
