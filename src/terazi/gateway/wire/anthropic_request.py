"""Anthropic's ``POST /v1/messages`` read from a client, and turned into a chat for the engine.

The differences that matter: ``system`` stands beside the messages; content is always blocks; a user's turn carries
tool results, which are messages of their own for the engine; a turn may come in several messages of one role, which
many chat templates refuse; a last turn of the assistant is the beginning of the answer. Tools that Anthropic's own
servers would run are left out (``left_out`` names them).
"""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from terazi.gateway.wire.errors import Fault, WireError, bad_request
from terazi.gateway.wire.turns import Part, Turns, function_call, image_part, plain, text_part

#: What Claude Code puts before its system prompt: pairs of which ``cch`` differs in every request, so that no
#: prefix of the prompt would ever be found in a cache (llama.cpp#21793). Nothing in it is for the model.
_BILLING_HEADER: Final = re.compile(r"^x-anthropic-billing-header:(?:[ \t]*[A-Za-z_]+=[^;\n]*(?:;|\n|$))*\s*")
#: Blocks of an earlier conversation with Anthropic's servers that have no counterpart here.
_SKIPPED: Final = re.compile(r"redacted_thinking|container_upload|server_tool_use|.+_tool_result")

#: Templates know three.
_EFFORTS: Final = {"minimal": "low", "xhigh": "high", "max": "high"}


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True)


class Source(_Body):
    """Where the bytes of an image or a document are."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    content: "str | list[Block] | None" = None


class Block(_Body):
    """One block of content; ``type`` says which of the fields it has."""

    type: str
    text: str | None = None
    thinking: str | None = None
    source: Source | str | None = None
    title: str | None = None
    context: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, JsonValue] | None = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: "str | list[Block] | dict[str, JsonValue] | None" = None
    is_error: bool | None = None


Content = str | list[Block]


class InputMessage(_Body):
    """One message, or a part of a turn."""

    role: Annotated[str, Field(pattern="^(user|assistant|system)$")]
    content: Content


class ClientTool(_Body):
    """A tool that the client runs; one without a schema is run by Anthropic's servers."""

    type: str | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, JsonValue] | None = None


class ToolChoice(_Body):
    """How tools are to be used."""

    type: Annotated[str, Field(pattern="^(auto|any|tool|none)$")]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(_Body):
    """Whether to think aloud first, and at most how long."""

    type: str
    budget_tokens: Annotated[int, Field(ge=1)] | None = None


class OutputFormat(_Body):
    """A schema for the answer."""

    type: str
    schema_: Annotated[dict[str, JsonValue] | None, Field(alias="schema")] = None


class OutputConfig(_Body):
    """Effort and format."""

    effort: str | None = None
    format: OutputFormat | None = None


class Metadata(_Body):
    """Who asks, in the client's own words."""

    user_id: str | None = None


class CountBody(_Body):
    """``POST /v1/messages/count_tokens``: all that makes up a prompt."""

    model: str
    messages: Annotated[list[InputMessage], Field(min_length=1)]
    system: Content | None = None
    tools: list[ClientTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesBody(CountBody):
    """``POST /v1/messages``."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    metadata: Metadata | None = None


def chat_fields(body: MessagesBody, *, model: str) -> dict[str, object]:
    """The engine's chat request, always as a stream; *model* is the id that the engine serves it under.

    Stop sequences aren't in it: who has to say which one matched looks for them in the answer (``stops``).

    Raises:
        WireError: 400, something in it has no counterpart.
    """
    asked = prompt_fields(body, model=model)
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    for name in ("max_tokens", "temperature", "top_p", "top_k"):
        if (value := getattr(body, name)) is not None:
            asked[name] = value
    if body.metadata is not None and body.metadata.user_id:
        asked["user"] = body.metadata.user_id
    return asked


def prompt_fields(body: CountBody, *, model: str) -> dict[str, object]:
    """As much of the engine's request as its prompt depends on.

    Raises:
        WireError: as ``chat_fields``.
    """
    messages = _messages(body)
    asked: dict[str, object] = {"model": model, "messages": messages}
    if messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        # b11434 (server-common.cpp:oaicompat_chat_params_parse) wants both, and then streams only what is new
        asked |= {"continue_final_message": True, "add_generation_prompt": False}
    asked |= _tools(body)
    if body.thinking is not None:
        thinks = body.thinking.type != "disabled"
        asked["chat_template_kwargs"] = {"enable_thinking": thinks}
        if thinks and body.thinking.budget_tokens is not None:
            asked["thinking_budget_tokens"] = body.thinking.budget_tokens
    if body.output_config is not None:
        if body.output_config.effort is not None:
            asked["reasoning_effort"] = _EFFORTS.get(body.output_config.effort, body.output_config.effort)
        if body.output_config.format is not None:
            wanted = {"name": "answer", "schema": body.output_config.format.schema_ or {}, "strict": True}
            asked["response_format"] = {"type": "json_schema", "json_schema": wanted}
    return asked


def left_out(body: CountBody) -> tuple[str, ...]:
    """Names of the tools that only Anthropic's servers could run."""
    return tuple(tool.name for tool in body.tools or () if tool.input_schema is None)


def systemtext_part(content: Content) -> str:
    """A system prompt as one text, without what Claude Code puts before it for its billing."""
    texts = [content] if isinstance(content, str) else [block.text or "" for block in content]
    cleaned = (_BILLING_HEADER.sub("", text) for text in texts)
    return "\n".join(text for text in cleaned if text)


def _tools(body: CountBody) -> dict[str, object]:
    tools, choice = [tool for tool in body.tools or () if tool.input_schema is not None], body.tool_choice
    if choice is not None and choice.type == "tool":
        # engines know "required" but not all of them a name: the tool that is meant is then the only one there is
        tools = [tool for tool in tools if tool.name == choice.name]
        if not tools:
            raise WireError(bad_request(f"tool_choice: there is no tool '{choice.name}' that can be used here"))
    if not tools:
        return {}
    asked: dict[str, object] = {"tools": [_tool(tool) for tool in tools]}
    if choice is not None:
        asked["tool_choice"] = {"any": "required", "tool": "required"}.get(choice.type, choice.type)
        if choice.disable_parallel_tool_use is not None:
            asked["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    return asked


def _tool(tool: ClientTool) -> dict[str, object]:
    function: dict[str, object] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _messages(body: CountBody) -> list[dict[str, object]]:
    turns = Turns()
    if body.system and (system := systemtext_part(body.system)):
        turns.say("system", system)
    for message in body.messages:
        if message.role == "system":
            turns.say("system", systemtext_part(message.content))
        elif message.role == "assistant":
            _add_assistant(turns, _blocks(message.content))
        else:
            _add_user(turns, _blocks(message.content))
    if not turns.messages:
        raise WireError(bad_request("messages: there is no content in them"))
    return turns.messages


def _add_user(turns: Turns, blocks: Sequence[Block]) -> None:
    results = [block for block in blocks if block.type == "tool_result"]
    for block in results:
        if not block.tool_use_id:
            raise WireError(bad_request("a tool_result block needs a 'tool_use_id'"))
        parts = [part for inner in _blocks(block.content) for part in _parts(inner)]
        if block.is_error:
            parts.insert(0, text_part("The tool failed:"))
        turns.answer(block.tool_use_id, plain(parts))
    parts = [part for block in blocks if block.type != "tool_result" for part in _parts(block)]
    if parts or not results:
        turns.say("user", plain(parts))


def _add_assistant(turns: Turns, blocks: Sequence[Block]) -> None:
    thinking = "".join(block.thinking or "" for block in blocks if block.type == "thinking")
    calls = [_tool_call(block) for block in blocks if block.type == "tool_use"]
    parts = [part for block in blocks if block.type not in {"thinking", "tool_use"} for part in _parts(block)]
    text = "".join(str(part.get("text", "")) for part in parts)
    if text or thinking or calls:
        turns.say("assistant", text, thinking=thinking, calls=calls)


def _tool_call(block: Block) -> dict[str, object]:
    if not block.name or not block.id:
        raise WireError(bad_request("a tool_use block needs an 'id' and a 'name'"))
    return function_call(block.id, block.name, json.dumps(block.input or {}, ensure_ascii=False))


def _parts(block: Block) -> list[Part]:
    """A block as content parts of OpenAI's kind."""
    if block.type == "text":
        return [text_part(block.text)] if block.text else []
    if block.type == "image":
        return [image_part(_image_url(block.source))]
    if block.type == "document":
        about = [f"Document: {block.title}"] if block.title else []
        about += [block.context] if block.context else []
        return [*map(text_part, about), *_document(block.source)]
    if block.type == "search_result":
        inner = [part for one in _blocks(block.content) for part in _parts(one)]
        return [text_part(f"Search result: {block.title or ''} ({block.source or ''})"), *inner]
    if block.type == "tool_reference":
        return [text_part(f"Tool: {block.tool_name or ''}")]
    if _SKIPPED.fullmatch(block.type) or block.type == "thinking":
        return []
    raise WireError(bad_request(f"content blocks of type '{block.type}' are not taken here"))


def _document(source: Source | str | None) -> list[Part]:
    if isinstance(source, Source):
        if source.type == "text" and source.data is not None:
            return [text_part(source.data)]
        if source.type == "content" and source.content is not None:
            return [part for block in _blocks(source.content) for part in _parts(block)]
    kind = source.type if isinstance(source, Source) else "none"
    message = f"documents are taken as text; a source of type '{kind}' (PDF, URL, file) can't be read here"
    raise WireError(Fault(status=400, message=message, code="unsupported_content"))


def _image_url(source: Source | str | None) -> str:
    if isinstance(source, Source):
        if source.type == "base64" and source.data:
            return f"data:{source.media_type or 'image/png'};base64,{source.data}"
        if source.type == "url" and source.url:
            return source.url
    raise WireError(bad_request("an image needs a source of type 'base64' with 'data', or 'url' with 'url'"))


def _blocks(content: object) -> list[Block]:
    if isinstance(content, str):
        return [Block(type="text", text=content)]
    if isinstance(content, list) and all(isinstance(block, Block) for block in content):
        return content
    if content is None:
        return []
    raise WireError(bad_request("content must be a text or a list of blocks"))
