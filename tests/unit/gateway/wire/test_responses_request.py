"""Requests for responses become chats that every template takes."""

import json
from typing import Any

import pytest

from coding_agents import CODEX
from terazi.gateway.wire.bodies import read_body
from terazi.gateway.wire.errors import WireError
from terazi.gateway.wire.responses_request import ResponsesBody, chat_fields, custom_tools, items_of, left_out


def asked(body: dict[str, object]) -> dict[str, Any]:
    """What the engine is asked for *body*."""
    read = read_body(ResponsesBody, json.dumps(body).encode())
    return chat_fields(read, items_of(read.input), model="m")


def refused(**body: object) -> str:
    """Why *body* is refused."""
    with pytest.raises(WireError) as caught:
        asked({"model": "x", **body})
    assert caught.value.fault.status == 400
    return caught.value.fault.message


def test_codex() -> None:
    fields = asked(CODEX)
    system, user, assistant, one, two = fields["messages"]
    assert system == {"role": "system", "content": "You are Codex.\n<permissions>read-only</permissions>"}
    assert user == {"role": "user", "content": "<environment_context/>\nlist the files"}
    assert assistant["content"] == "Listing."
    assert assistant["reasoning_content"] == "I shall list."
    assert [(call["id"], call["function"]["name"]) for call in assistant["tool_calls"]] == [
        ("call_1", "shell"),
        ("call_2", "apply_patch"),
    ]
    assert json.loads(assistant["tool_calls"][1]["function"]["arguments"]) == {"input": "*** Begin"}
    assert one == {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"}
    assert two["content"] == "done"
    assert [tool["function"]["name"] for tool in fields["tools"]] == ["shell", "apply_patch"]
    assert fields["tools"][0]["function"]["strict"] is False
    assert fields["tool_choice"] == "auto"
    assert fields["parallel_tool_calls"] is False
    assert fields["reasoning_effort"] == "medium"
    assert fields["stream"] is True
    read = ResponsesBody.model_validate(CODEX)
    assert left_out(read) == ("web_search",)
    assert custom_tools(read) == {"apply_patch"}


def test_a_text_is_a_users_message() -> None:
    fields = asked({"model": "x", "input": "hi", "max_output_tokens": 5, "temperature": 0, "top_p": 0.5})
    assert fields["messages"] == [{"role": "user", "content": "hi"}]
    assert (fields["max_tokens"], fields["temperature"], fields["top_p"]) == (5, 0, 0.5)
    assert "tools" not in fields


def test_images() -> None:
    parts = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "data:image/png;base64,QQ"},
    ]
    content = asked({"model": "x", "input": [{"role": "user", "content": parts}]})["messages"][0]["content"]
    assert content[1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ"}}


@pytest.mark.parametrize(
    ("wanted", "format_type"), [("json_object", "json_object"), ("json_schema", "json_schema"), ("text", None)]
)
def test_text_formats(wanted: str, format_type: str | None) -> None:
    schema = {"type": "object", "properties": {}}
    fields = asked(
        {"model": "x", "input": "a", "text": {"format": {"type": wanted, "name": "n", "schema": schema}}}
    )
    assert fields.get("response_format", {}).get("type") == format_type
    if wanted == "json_schema":
        assert fields["response_format"]["json_schema"]["schema"] == schema


def test_one_tool_that_must_be_used() -> None:
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("f", "g")]
    fields = asked({"model": "x", "input": "a", "tools": tools, "tool_choice": {"type": "function", "name": "g"}})
    assert fields["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in fields["tools"]] == ["g"]


def test_logprobs_only_where_the_engine_gives_them() -> None:
    body = {"model": "x", "input": "a", "include": ["message.output_text.logprobs"], "top_logprobs": 3}
    assert asked(body)["top_logprobs"] == 3
    tools = [{"type": "function", "name": "f"}]
    assert "logprobs" not in asked({**body, "tools": tools})


def test_what_is_refused() -> None:
    assert "'input' is missing" in refused(input=[])
    assert "'conversation'" in refused(input="a", conversation="conv_1")
    assert "'background'" in refused(input="a", background=True)
    assert "'local_shell_call'" in refused(input=[{"type": "local_shell_call"}])
    assert "'call_id'" in refused(input=[{"type": "function_call_output", "output": "x"}])
    assert "'input_file'" in refused(input=[{"role": "user", "content": [{"type": "input_file"}]}])
    assert "role 'tool'" in refused(input=[{"role": "tool", "content": "x"}])
    assert "text.format" in refused(input="a", text={"format": {"type": "json_schema"}})
    assert "no tool 'h'" in refused(input="a", tool_choice={"type": "function", "name": "h"})
