"""Ollama's catalogue: version, tags, show, ps, as its clients read them.

Names carry a tag (``:latest`` when there is none), moments are ISO 8601 with an offset, because Open WebUI reads
``expires_at`` with ``datetime.fromisoformat`` and older Pythons don't take a ``Z`` there.
"""

from typing import Final

from terazi.gateway.backend import Backend, ModelCard
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
        "quantization_level": card.quantisation,
    }


def _named(card: ModelCard) -> dict[str, object]:
    name = tagged(card.id)
    return {"name": name, "model": name, "digest": card.digest, "details": details(card)}


def tags(cards: list[ModelCard]) -> dict[str, object]:
    """The answer of ``GET /api/tags``."""
    return {
        "models": [{**_named(card), "modified_at": card.modified, "size": card.size_bytes} for card in cards],
    }


def ps(backends: list[Backend]) -> dict[str, object]:
    """The answer of ``GET /api/ps``."""
    return {
        "models": [
            {
                **_named(backend.card),
                "size": backend.memory.size_bytes,
                "size_vram": backend.memory.size_vram_bytes,
                "expires_at": NEVER,
                "context_length": backend.card.context_length,
            }
            for backend in backends
        ],
    }


def show(card: ModelCard) -> dict[str, object]:
    """The answer of ``POST /api/show``. ``model_info`` is never null: clients fail on that."""
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
        "modelfile": f'# Served by Terazi with {card.engine}\nFROM {card.id}\nTEMPLATE """{template}"""\n',
        "parameters": f"num_ctx {card.context_length}",
        "template": template,
        "details": details(card),
        "model_info": {key: value for key, value in info.items() if value is not None},
        "capabilities": list(card.capabilities),
        "modified_at": card.modified,
    }


def not_offered(path: str) -> Fault:
    """501 for what changes the model store: the models here are those that the service was started with."""
    return Fault(
        status=501,
        message=f"{path} is not offered here: start the service with the models that it shall serve",
        kind="not_supported_error",
    )
