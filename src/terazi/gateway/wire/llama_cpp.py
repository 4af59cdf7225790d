"""llama-server's own endpoints (b11434): what of its answers is passed on, and what is said while nothing runs."""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from terazi.gateway.backend import ModelCard
from terazi.gateway.wire.chat_stream import mapping

#: Keys of ``/props`` that clients use; paths on this machine and switches of the engine's own page stay here.
_PROPS: Final = (
    "default_generation_settings",
    "total_slots",
    "modalities",
    "chat_template",
    "chat_template_caps",
    "chat_template_tool_use",
    "bos_token",
    "eos_token",
    "build_info",
    "is_sleeping",
)
#: What a slot says of the requests of others.
_PRIVATE: Final = frozenset({"prompt", "generated", "params"})


class _Body(BaseModel):
    """The engine reads the rest."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, frozen=True)

    model: str | None = None


class TokenizeBody(_Body):
    """``POST /tokenize``."""

    content: JsonValue = ""
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(_Body):
    """``POST /detokenize``."""

    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]]


class TemplateBody(_Body):
    """``POST /apply-template``."""

    messages: list[dict[str, JsonValue]]


class CompletionBody(_Body):
    """``POST /completion``."""

    prompt: JsonValue
    n_predict: int | None = None
    stream: bool | None = None


class InfillBody(_Body):
    """``POST /infill``."""

    input_prefix: str = ""
    input_suffix: str = ""
    prompt: str = ""
    n_predict: int | None = None
    stream: bool | None = None


def props(card: ModelCard, said: Mapping[str, object] | None) -> dict[str, object]:
    """The answer of ``GET /props``: what the engine *said*, or, while none runs, what the card knows."""
    names = {"model_alias": card.id, "model_path": card.id}
    if said is not None:
        return {**{key: said[key] for key in _PROPS if key in said}, **names}
    able = {"vision": "vision" in card.capabilities, "audio": "audio" in card.capabilities}
    return {
        "default_generation_settings": {"n_ctx": card.context_length, "params": {}},
        "total_slots": None,
        "modalities": able,
        "chat_template": card.template or "",
        "build_info": card.engine,
        "is_sleeping": True,
        **names,
    }


def slot(said: object) -> dict[str, object]:
    """One entry of ``GET /slots``, without what others asked."""
    return {key: value for key, value in mapping(said).items() if key not in _PRIVATE}
