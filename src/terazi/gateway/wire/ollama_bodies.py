"""The bodies of Ollama's requests. What is known is checked, what isn't is ignored, as Ollama does."""

import math
import re
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from terazi.gateway.wire.errors import WireError, bad_request

#: Go's durations (``time.ParseDuration``), which Ollama's ``keep_alive`` and options are written in.
_UNITS_S: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


def parse_keep_alive(given: object) -> float | None:
    """Seconds that a model shall stay after a request; None is for ever, which any negative value means.

    Args:
        given: a number of seconds, or a text like ``5m``, ``1h30m``, ``-1`` or ``0``.

    Raises:
        WireError: 400, it is none of these.
    """
    seconds: float | None = None
    if isinstance(given, int | float) and not isinstance(given, bool):
        seconds = float(given)
    elif isinstance(given, str):
        seconds = _duration_s(given.strip())
    if seconds is None or math.isnan(seconds):
        raise WireError(bad_request("'keep_alive' must be seconds or a duration like \"5m\""))
    return None if seconds < 0 or math.isinf(seconds) else seconds


def _duration_s(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    parts = _PART.findall(digits)
    if not parts or "".join(number + unit for number, unit in parts) != digits:
        return None
    return sign * sum(float(number) * _UNITS_S[unit] for number, unit in parts)


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True)


def _none_if_empty(value: object) -> object:
    return None if value in ("", [], {}) else value


class Options(_Body):
    """The options that mean something here; others are ignored, as Ollama does."""

    num_ctx: int | None = None
    num_predict: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None


class ToolFunction(_Body):
    """The call inside a tool call."""

    name: str
    arguments: dict[str, JsonValue] = {}


class ToolCall(_Body):
    """One call that the model made earlier in the conversation."""

    id: str | None = None
    function: ToolFunction


class Message(_Body):
    """One message of a chat."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Generation(_Body):
    """What chat and generate have in common."""

    model: str
    stream: bool | None = None
    format: Annotated[JsonValue, BeforeValidator(_none_if_empty)] = None
    options: Options | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    keep_alive: float | str | None = None
    truncate: bool | None = None


class ChatBody(Generation):
    """``POST /api/chat``."""

    messages: list[Message] | None = None
    tools: list[dict[str, JsonValue]] | None = None


class GenerateBody(Generation):
    """``POST /api/generate``."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    images: list[str] | None = None


class EmbedBody(_Body):
    """``POST /api/embed``."""

    model: str
    input: str | list[str] = []
    dimensions: Annotated[int, Field(ge=1)] | None = None
    truncate: bool | None = None
    keep_alive: float | str | None = None


class EmbeddingsBody(_Body):
    """``POST /api/embeddings``, the older one."""

    model: str
    prompt: str = ""
    keep_alive: float | str | None = None


class NameBody(_Body):
    """A body that names a model: show, pull, push, delete; ``name`` is what older clients send."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None

    @property
    def wanted(self) -> str:
        """The name.

        Raises:
            WireError: 400, there is none.
        """
        if not (self.model or self.name):
            raise WireError(bad_request("'model' is missing"))
        return self.model or self.name or ""


class CopyBody(_Body):
    """``POST /api/copy``."""

    source: str = Field(min_length=1)
    destination: str = Field(min_length=1)


class CreateBody(NameBody):
    """``POST /api/create``. A Modelfile as text is what clients before Ollama 0.5.5 sent; it is refused."""

    from_: str | None = Field(default=None, alias="from")
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    quantize: str | None = None
    template: str | None = None
    license: str | list[str] | None = None
    system: str | None = None
    parameters: dict[str, JsonValue] | None = None
    messages: list[Message] | None = None
    modelfile: str | None = None
    path: str | None = None
