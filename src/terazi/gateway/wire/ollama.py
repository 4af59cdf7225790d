"""Ollama's catalogue: version, tags, show, ps, as its clients read them.

Names carry a tag (``:latest`` when there is none), moments are ISO 8601 with an offset, because Open WebUI reads
``expires_at`` with ``datetime.fromisoformat`` and older Pythons don't take a ``Z`` there.
"""

import json
from collections.abc import Mapping
from typing import Final

from terazi.gateway.backend import Backend, ModelCard
from terazi.gateway.library import Preset, Progress
from terazi.gateway.wire.errors import Fault

#: The Ollama release whose API this follows. Clients compare it as numbers; VS Code wants at least 0.6.4.
API_VERSION: Final = "0.12.0"
#: What a browser or ``curl`` sees at ``/``; some clients look for exactly this text.
BANNER: Final = "Ollama is running"
#: Models stay until they are stopped. Ollama itself writes a date about 292 years ahead for that.
NEVER: Final = "2318-01-01T00:00:00+00:00"


def tagged(name: str) -> str:
    """*name* with a tag: ``a/b`` → ``a/b:latest``, ``a:8b`` stays."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def human_count(count: int | None) -> str:
    """A parameter count as Ollama writes it: ``134.52M``, ``8B``, ``70.6B``; empty when unknown."""
    if count is None:
        return ""
    for size, suffix, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count >= size:
            value = count / size
            return f"{value:.0f}{suffix}" if value == int(value) else f"{value:.{digits}f}{suffix}"
    return str(count)


def details(card: ModelCard) -> dict[str, object]:
    """The ``details`` object that tags, show and ps share."""
    return {
        "parent_model": "",
        "format": "gguf",
        "family": card.family,
        "families": [card.family],
        "parameter_size": human_count(card.parameter_count),
        "quantization_level": card.quantisation or "",
    }


def _named(card: ModelCard) -> dict[str, object]:
    name = tagged(card.id)
    return {"name": name, "model": name, "digest": card.digest, "details": details(card)}


def tags(cards: list[ModelCard], presets: list[tuple[Preset, ModelCard]]) -> dict[str, object]:
    """The answer of ``GET /api/tags``: what is served, then the names that were copied or created from it."""
    served = [{**_named(card), "modified_at": card.modified, "size": card.size_bytes or 0} for card in cards]
    made = [
        {
            **_named(card),
            "name": tagged(preset.name),
            "model": tagged(preset.name),
            "details": {**details(card), "parent_model": tagged(card.id)},
            "modified_at": preset.modified,
            "size": card.size_bytes or 0,
        }
        for preset, card in presets
    ]
    return {"models": served + made}


def ps(loaded: list[tuple[Backend, str | None]]) -> dict[str, object]:
    """The answer of ``GET /api/ps``: each engine, and when it will be unloaded (None: never)."""
    return {
        "models": [
            {
                **_named(backend.card),
                "size": backend.memory.size_bytes,
                "size_vram": backend.memory.size_vram_bytes,
                "expires_at": expires or NEVER,
                "context_length": backend.card.context_length or 0,
            }
            for backend, expires in loaded
        ],
    }


def show(card: ModelCard, preset: Preset | None = None) -> dict[str, object]:
    """The answer of ``POST /api/show``. ``model_info`` is never null: clients fail on that."""
    context = {} if card.context_length is None else {"num_ctx": card.context_length}
    parameters: dict[str, object] = {**context, **(preset.parameters if preset else {})}
    system = preset.system if preset else None
    template = card.template or ""
    info: dict[str, object] = {
        "general.architecture": card.architecture,
        "general.parameter_count": card.parameter_count,
        f"{card.architecture}.context_length": card.training_context_length,
        f"{card.architecture}.embedding_length": card.embedding_length,
        **card.model_info,
    }
    return {
        "license": "",
        "modelfile": _modelfile(card, template, system, preset),
        "parameters": "\n".join(_parameter_lines(parameters)),
        "template": template,
        **({"system": system} if system else {}),
        "details": details(card),
        "model_info": {key: value for key, value in info.items() if value is not None},
        "capabilities": list(card.capabilities),
        "modified_at": preset.modified if preset else card.modified,
    }


def _modelfile(card: ModelCard, template: str, system: str | None, preset: Preset | None) -> str:
    lines = [f"# Served by Terazi with {card.engine}", f"FROM {card.id}", f'TEMPLATE """{template}"""']
    if system:
        lines.append(f'SYSTEM """{system}"""')
    lines += [f"PARAMETER {line}" for line in _parameter_lines(preset.parameters if preset else {})]
    return "\n".join(lines) + "\n"


def _parameter_lines(parameters: Mapping[str, object]) -> list[str]:
    return [
        f"{name} {json.dumps(one)}"
        for name, value in parameters.items()
        for one in (value if isinstance(value, list) else [value])
    ]


def progress_line(progress: Progress) -> bytes:
    """One step of a pull or create, as NDJSON."""
    said = {
        "status": progress.status,
        "digest": progress.digest,
        "total": progress.total,
        "completed": progress.completed,
    }
    return json.dumps({key: value for key, value in said.items() if value is not None}).encode() + b"\n"


def not_offered(path: str, why: str) -> Fault:
    """501 for what this service doesn't do."""
    return Fault(status=501, message=f"{path} is not offered here: {why}", kind="not_supported_error")
