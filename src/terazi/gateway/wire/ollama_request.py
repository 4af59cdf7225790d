"""Ollama's requests, turned into requests to the engine's OpenAI endpoints.

Differences that matter: ``stream`` is on unless it is turned off; tool arguments are objects there and text
here; images are bare base64 there and data URIs here; options have other names. ``num_ctx`` changes nothing: the
context is what the plan loaded, and a request never reloads a model (aider#3594). ``context`` (token ids of an
earlier answer) is ignored, since no answer of this service hands them out.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from pydantic import JsonValue

from terazi.gateway.library import Preset
from terazi.gateway.wire.errors import WireError, bad_request
from terazi.gateway.wire.ollama_bodies import ChatBody, GenerateBody, Generation, Message, Options, ToolCall

CHAT_PATH: Final = "/v1/chat/completions"
TEXT_PATH: Final = "/v1/completions"
INFILL_PATH: Final = "/infill"
EMBED_PATH: Final = "/v1/embeddings"


G = TypeVar("G", bound=Generation)


class Shape(StrEnum):
    """Which of Ollama's answer objects a request gets."""

    CHAT = "chat"
    GENERATE = "generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCall:
    """What to ask the engine. ``fields`` is ``None`` when the request only wants the model to be loaded."""

    shape: Shape
    path: str
    fields: dict[str, object] | None
    stream: bool

    @property
    def body(self) -> bytes | None:
        """``fields`` as they go to the engine."""
        return None if self.fields is None else json.dumps(self.fields).encode()


def chat_call(body: ChatBody, *, model: str) -> EngineCall:
    """Turn a chat into the engine's chat; *model* is the id that the engine serves it under."""
    stream = body.stream is not False
    if not body.messages:
        return EngineCall(shape=Shape.CHAT, path=CHAT_PATH, fields=None, stream=stream)
    asked: dict[str, object] = {"model": model, "messages": _messages(body.messages)}
    if body.tools:
        asked["tools"] = body.tools
    asked |= _chat_settings(body)
    return EngineCall(shape=Shape.CHAT, path=CHAT_PATH, fields=_streaming(asked, stream=stream), stream=stream)


def generate_call(body: GenerateBody, *, model: str) -> EngineCall:
    """Turn a prompt into a chat of one message, a raw prompt into a completion, a suffix into an infill."""
    stream = body.stream is not False
    path, asked = CHAT_PATH, {"model": model}
    if body.template:
        raise WireError(bad_request("'template' can't be given with a request: the model's own is used"))
    if body.raw and body.system:
        raise WireError(bad_request("raw mode does not support template, system, or context"))
    if not body.prompt and not body.suffix:
        return EngineCall(shape=Shape.GENERATE, path=path, fields=None, stream=stream)
    prompt = body.prompt or ""
    if (body.raw or body.suffix) and body.images:
        raise WireError(bad_request("'images' can't go with 'raw' or 'suffix'"))
    settings: dict[str, object]
    if body.suffix:
        path = INFILL_PATH
        settings = {"input_prefix": prompt, "input_suffix": body.suffix, **_text_settings(body)}
    elif body.raw:
        path = TEXT_PATH
        settings = {"prompt": prompt, **_text_settings(body)}
    else:
        messages = [Message(role="system", content=body.system)] if body.system else []
        messages.append(Message(role="user", content=prompt, images=body.images))
        settings = {"messages": _messages(messages), **_chat_settings(body)}
    return EngineCall(
        shape=Shape.GENERATE, path=path, fields=_streaming({**asked, **settings}, stream=stream), stream=stream
    )


def with_preset(body: G, preset: Preset) -> G:
    """*body*, with what *preset* says where the request says nothing."""
    given = {} if body.options is None else body.options.model_dump(exclude_none=True)
    update: dict[str, object] = {"options": Options.model_validate({**preset.parameters, **given})}
    if isinstance(body, GenerateBody):
        if preset.system and body.system is None and not body.raw:
            update["system"] = preset.system
    elif isinstance(body, ChatBody) and body.messages:
        told = [Message.model_validate(message) for message in preset.messages]
        if preset.system and not any(message.role == "system" for message in (*told, *body.messages)):
            told.insert(0, Message(role="system", content=preset.system))
        update["messages"] = [*told, *body.messages]
    return body.model_copy(update=update)


def with_defaults(fields: Mapping[str, object], preset: Preset) -> dict[str, object]:
    """The same for a request in OpenAI's shape: a chat, or the completion of a prompt."""
    defaults = _sampling(Options.model_validate(preset.parameters))
    if fields.get("max_completion_tokens") is not None:
        defaults.pop("max_tokens", None)
    asked = {**defaults, **{name: v for name, v in fields.items() if v is not None or name not in defaults}}
    messages = fields.get("messages")
    if isinstance(messages, list) and messages:
        told = _messages([Message.model_validate(message) for message in preset.messages])
        roles = {message.get("role") for message in (*told, *messages) if isinstance(message, dict)}
        if preset.system and not roles & {"system", "developer"}:
            told.insert(0, {"role": "system", "content": preset.system})
        asked["messages"] = [*told, *messages]
    return asked


def without_oldest(fields: Mapping[str, object], drop: int) -> dict[str, object] | None:
    """A chat without its *drop* oldest messages: system messages and the last one stay, and no tool result stays
    without its call. None if there aren't so many.

    This is how Ollama makes a chat fit that is longer than the context (``server/prompt.go:chatPrompt``).
    """
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return None
    oldest = [i for i, message in enumerate(messages[:-1]) if message.get("role") != "system"]
    if drop > len(oldest):
        return None
    gone = set(oldest[:drop])
    for i in oldest[drop:]:
        if messages[i].get("role") != "tool":
            break
        gone.add(i)
    return {**fields, "messages": [message for i, message in enumerate(messages) if i not in gone]}


def embed_fields(texts: str | list[str] | list[str | list[int]], *, model: str) -> dict[str, object] | None:
    """The engine's embeddings request; ``None`` when there is nothing to embed. A text may be token ids."""
    return {"model": model, "input": texts, "encoding_format": "float"} if texts else None


def _streaming(asked: dict[str, object], *, stream: bool) -> dict[str, object]:
    asked["stream"] = stream
    if stream:
        asked["stream_options"] = {"include_usage": True}
    return asked


def _chat_settings(body: Generation) -> dict[str, object]:
    asked = _sampling(body.options)
    if body.format is not None:
        asked["response_format"] = _response_format(body.format)
    if body.think is not None:
        # llama-server reads both (b11434, server-common.cpp:oaicompat_chat_params_parse)
        asked["chat_template_kwargs"] = {"enable_thinking": body.think is not False}
        if isinstance(body.think, str) and body.think:
            asked["reasoning_effort"] = body.think
    if body.logprobs:
        asked["logprobs"] = True
        asked["top_logprobs"] = body.top_logprobs or 0
    return asked


def _text_settings(body: Generation) -> dict[str, object]:
    asked = _sampling(body.options)
    if body.format is not None:
        asked["json_schema"] = _schema(body.format)
    if body.logprobs:
        asked["logprobs"] = body.top_logprobs or 1
    return asked


def _sampling(options: Options | None) -> dict[str, object]:
    if options is None:
        return {}
    asked: dict[str, object] = options.model_dump(exclude_none=True, exclude={"num_ctx", "num_predict", "seed"})
    # Ollama's "no limit" (-1) and "fill the context" (-2) are what an engine does without a limit
    if options.num_predict is not None and options.num_predict > 0:
        asked["max_tokens"] = options.num_predict
    if options.seed is not None:
        asked["seed"] = options.seed % 2**32  # the engine's seed is unsigned, and -1 is "random" in both
    return asked


def _schema(wanted: JsonValue) -> dict[str, JsonValue]:
    if wanted == "json":
        return {"type": "object"}
    if isinstance(wanted, dict):
        return wanted
    raise WireError(bad_request("'format' must be \"json\" or a JSON schema"))


def _response_format(wanted: JsonValue) -> dict[str, object]:
    if wanted == "json":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": _schema(wanted), "strict": True}}


def _messages(messages: list[Message]) -> list[dict[str, object]]:
    """Messages in OpenAI's shape. Calls without an id get one, and their results find it again in order."""
    shaped: list[dict[str, object]] = []
    waiting: list[tuple[str, str]] = []  # (tool name, id) of calls that have no result yet
    for number, message in enumerate(messages):
        entry: dict[str, object] = {"role": message.role, "content": _content(message)}
        if message.thinking:
            entry["reasoning_content"] = message.thinking
        if message.tool_calls:
            calls = [(call, call.id or f"call_{number}_{i}") for i, call in enumerate(message.tool_calls)]
            entry["tool_calls"] = [_tool_call(call, call_id) for call, call_id in calls]
            waiting += [(call.function.name, call_id) for call, call_id in calls]
        if message.role == "tool":
            entry["tool_call_id"] = message.tool_call_id or _claim(waiting, message.tool_name)
        shaped.append(entry)
    return shaped


def _claim(waiting: list[tuple[str, str]], name: str | None) -> str:
    for i, (tool, call_id) in enumerate(waiting):
        if name is None or tool == name:
            del waiting[i]
            return call_id
    return "call_unknown"


def _tool_call(call: ToolCall, call_id: str) -> dict[str, object]:
    function = {"name": call.function.name, "arguments": json.dumps(call.function.arguments)}
    return {"id": call_id, "type": "function", "function": function}


def _content(message: Message) -> str | list[dict[str, object]]:
    text = message.content or ""
    if not message.images:
        return text
    parts: list[dict[str, object]] = [{"type": "text", "text": text}] if text else []
    return parts + [{"type": "image_url", "image_url": {"url": _data_uri(image)}} for image in message.images]


def _data_uri(image: str) -> str:
    """Base64 as a data URI; the type is told from the first bytes, as base64 writes each format's magic."""
    if image.startswith("data:"):
        return image
    magic = {"/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp"}
    kind = next((kind for start, kind in magic.items() if image.startswith(start)), "png")
    return f"data:image/{kind};base64,{image}"
