"""What OpenAI's forwarded endpoints take, for the OpenAPI document: the engine reads these bodies."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow", allow_inf_nan=False, frozen=True)

    model: str | None = None


class StreamOptions(BaseModel):
    """What a stream says besides."""

    include_usage: bool | None = None


class ChatMessage(BaseModel):
    """One message."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: Annotated[str, Field(pattern="^(system|developer|user|assistant|tool)$")]
    content: str | list[dict[str, JsonValue]]


class ChatCompletionsBody(_Body):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    stop: str | list[str] | None = None
    tools: list[dict[str, JsonValue]] | None = None
    response_format: dict[str, JsonValue] | None = None


class CompletionsBody(_Body):
    """``POST /v1/completions``."""

    prompt: str
    stream: bool | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    stop: str | list[str] | None = None


class TextsBody(_Body):
    """``POST /v1/embeddings``."""

    input: str | Annotated[list[str], Field(min_length=1)]
    encoding_format: Annotated[str, Field(pattern="^(float|base64)$")] | None = None


class MediaBody(_Body):
    """Audio and images as JSON."""


class MediaForm(_Body):
    """Audio and images as a form."""

    file: bytes | None = None
