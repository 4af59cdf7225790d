"""Makes a store as Ollama keeps it: manifests by name, blobs by digest."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

MEDIA = "application/vnd.ollama.image."


def add_blob(store: Path, data: bytes) -> str:
    """Store *data*; its digest."""
    digest = hashlib.sha256(data).hexdigest()
    folder = store / "blobs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"sha256-{digest}").write_bytes(data)
    return f"sha256:{digest}"


def add_model(
    store: Path,
    name: str,
    model: bytes | None,
    *,
    parameters: Mapping[str, object] | None = None,
    more: Sequence[tuple[str, bytes]] = (),
) -> Path:
    """Store a model under ``host/namespace/model/tag``; the path of its manifest.

    *more* are further layers, each with its use (``projector``, ``adapter``, ``draft`` …).
    """
    layers = [("model", model)] if model is not None else []
    if parameters is not None:
        layers.append(("params", json.dumps(parameters).encode()))
    document = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": add_blob(store, b"{}")},
        "layers": [
            {"mediaType": MEDIA + use, "digest": add_blob(store, data), "size": len(data)}
            for use, data in (*layers, *more)
        ],
    }
    path = store / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path
