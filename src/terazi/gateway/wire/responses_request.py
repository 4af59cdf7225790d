"""OpenAI's ``POST /v1/responses`` read from a client, and turned into a chat for the engine.

Items stand where messages do in a chat: text, reasoning and tool calls of one turn of the assistant are items of
their own here and one message there. A custom tool, whose input is any text, is a function with one text for the
engine. Tools that OpenAI's own servers would run are left out (``left_out`` names them).
"""

import json
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from terazi.gateway.wire.errors import Fault, WireError, bad_request
from terazi.gateway.wire.turns import Content, Part, Turns, function_call, image_part, plain, text_part

_ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_EFFORTS: Final = {"minimal": "low", "xhigh": "high", "max": "high"}
#: What OpenAI's own tools left in a conversation.
_SKIPPED: Final = {
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "computer_call",
    "computer_call_output",
    "mcp_list_tools",
    "mcp_call",
    "compaction",
}
_CUSTOM_INPUT: Final = "input"


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True)


class ContentPart(_Body):
    """A part of a message, of a reasoning, or of a tool's output."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None


class Item(_Body):
    """One item of the conversation; ``type`` says which of the fields it has, and a message may leave it out."""

    type: str = "message"
    id: str | None = None
    role: str | None = None
    content: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[ContentPart] | None = None


class ResponseTool(_Body):
    """A tool: ``function`` and ``custom`` ones are run by the client."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class NamedChoice(_Body):
    """The one tool to use."""

    type: str
    name: str | None = None


class TextFormat(_Body):
    """What the text shall be."""

    type: str
    name: str | None = None
    schema_: Annotated[dict[str, JsonValue] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextConfig(_Body):
    """How the text shall be."""

    format: TextFormat | None = None


class Reasoning(_Body):
    """How much to think."""

    effort: str | None = None


class ResponsesBody(_Body):
    """``POST /v1/responses``."""

    model: str | None = None
    input: str | list[Item] = ""
    instructions: str | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    background: bool | None = None
    conversation: JsonValue = None
    prompt: JsonValue = None


def items_of(given: str | list[Item]) -> list[Item]:
    """An input as items."""
    return [Item(role="user", content=given)] if isinstance(given, str) else list(given)


def chat_fields(body: ResponsesBody, items: Sequence[Item], *, model: str) -> dict[str, object]:
    """The engine's chat request, always as a stream; *model* is the id that the engine serves it under.

    Args:
        items: the whole conversation, earlier responses included.

    Raises:
        WireError: 400, something in it has no counterpart.
    """
    _check(body)
    asked: dict[str, object] = {"model": model, "messages": _messages(body.instructions, items), "stream": True}
    asked["stream_options"] = {"include_usage": True}
    limits = {"max_tokens": body.max_output_tokens, "temperature": body.temperature, "top_p": body.top_p}
    asked |= {name: value for name, value in limits.items() if value is not None}
    tools = _tools(body)
    asked |= tools
    if body.text is not None and body.text.format is not None:
        asked |= _format(body.text.format)
    if body.reasoning is not None and body.reasoning.effort is not None:
        asked["reasoning_effort"] = _EFFORTS.get(body.reasoning.effort, body.reasoning.effort)
    wants_logprobs = "message.output_text.logprobs" in (body.include or ())
    if wants_logprobs and not tools:  # llama-server refuses them beside tools in a stream
        asked |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    if body.user:
        asked["user"] = body.user
    return asked


def left_out(body: ResponsesBody) -> tuple[str, ...]:
    """The tools that only OpenAI's servers could run, by name or type."""
    return tuple(tool.name or tool.type for tool in body.tools or () if not _is_ours(tool))


def custom_tools(body: ResponsesBody) -> frozenset[str]:
    """Names of the tools whose input is any text."""
    return frozenset(tool.name for tool in body.tools or () if tool.type == "custom" and tool.name)


def custom_input(arguments: str) -> str:
    """The input of a custom tool in the arguments of the function that stood for it."""
    try:
        found = json.loads(arguments)
        given = found[_CUSTOM_INPUT]
    except (ValueError, RecursionError, KeyError, TypeError):
        return arguments
    return given if isinstance(given, str) else arguments


def _check(body: ResponsesBody) -> None:
    for name in ("background", "conversation", "prompt"):
        if getattr(body, name):
            message = f"'{name}' is not offered here: send the whole conversation with each request"
            raise WireError(Fault(status=400, message=message, code="unsupported_parameter"))


def _is_ours(tool: ResponseTool) -> bool:
    return tool.type in {"function", "custom"} and tool.name is not None


def _tools(body: ResponsesBody) -> dict[str, object]:
    tools, choice = [tool for tool in body.tools or () if _is_ours(tool)], body.tool_choice
    if isinstance(choice, NamedChoice):
        # engines know "required" but not all of them a name: the tool that is meant is then the only one there is
        tools = [tool for tool in tools if choice.name in {None, tool.name}]
        if not tools:
            raise WireError(bad_request(f"tool_choice: there is no tool '{choice.name}' that can be used here"))
        choice = "required"
    if not tools:
        return {}
    asked: dict[str, object] = {"tools": [_tool(tool) for tool in tools]}
    if choice is not None:
        asked["tool_choice"] = choice
    if body.parallel_tool_calls is not None:
        asked["parallel_tool_calls"] = body.parallel_tool_calls
    return asked


def _tool(tool: ResponseTool) -> dict[str, object]:
    parameters: object = tool.parameters or {"type": "object", "properties": {}}
    if tool.type == "custom":
        fields = {_CUSTOM_INPUT: {"type": "string"}}
        parameters = {"type": "object", "properties": fields, "required": [_CUSTOM_INPUT]}
    function: dict[str, object] = {"name": tool.name, "parameters": parameters}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _format(wanted: TextFormat) -> dict[str, object]:
    if wanted.type == "text":
        return {}
    if wanted.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    if wanted.type == "json_schema" and wanted.schema_ is not None:
        schema = {"name": wanted.name or "answer", "schema": wanted.schema_, "strict": wanted.strict is not False}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    raise WireError(
        bad_request("text.format must be of type 'text', 'json_object', or 'json_schema' with 'schema'")
    )


def _messages(instructions: str | None, items: Sequence[Item]) -> list[dict[str, object]]:
    turns = Turns()
    if instructions:
        turns.say("system", instructions)
    for item in items:
        _add(turns, item)
    if not turns.messages:
        raise WireError(bad_request("'input' is missing"))
    return turns.messages


def _add(turns: Turns, item: Item) -> None:
    kind = item.type
    if kind == "message":
        role = _ROLES.get(item.role or "")
        if role is None:
            raise WireError(bad_request(f"input: a message can't be of the role '{item.role}'"))
        turns.say(role, _content(item.content, glue="" if role == "assistant" else "\n"))
    elif kind == "reasoning":
        said = item.content or item.summary or []
        thinking = said if isinstance(said, str) else "".join(part.text or "" for part in said)
        if thinking:
            turns.say("assistant", "", thinking=thinking)
    elif kind in {"function_call", "custom_tool_call"}:
        arguments = item.arguments or "{}"
        if kind == "custom_tool_call":
            arguments = json.dumps({_CUSTOM_INPUT: item.input or ""}, ensure_ascii=False)
        call = function_call(_needed(item, "call_id"), _needed(item, "name"), arguments)
        turns.say("assistant", "", calls=[call])
    elif kind in {"function_call_output", "custom_tool_call_output"}:
        turns.answer(_needed(item, "call_id"), _content(item.output))
    elif kind not in _SKIPPED:
        raise WireError(bad_request(f"input: items of type '{kind}' are not taken here"))


def _needed(item: Item, name: str) -> str:
    value = getattr(item, name)
    if not isinstance(value, str) or not value:
        raise WireError(bad_request(f"input: an item of type '{item.type}' needs '{name}'"))
    return value


def _content(content: str | list[ContentPart] | None, *, glue: str = "\n") -> Content:
    if content is None or isinstance(content, str):
        return content or ""
    return plain([_part(part) for part in content], glue=glue)


def _part(part: ContentPart) -> Part:
    if part.type in {"input_text", "output_text", "text", "summary_text", "reasoning_text"}:
        return text_part(part.text or "")
    if part.type == "refusal":
        return text_part(part.refusal or "")
    if part.type == "input_image" and part.image_url:
        return image_part(part.image_url)
    message = f"content of type '{part.type}' can't be read here: text is, and images as a URL"
    raise WireError(Fault(status=400, message=message, code="unsupported_content"))
