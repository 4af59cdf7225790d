"""Anthropic's requests become chats that every template takes."""

import json
from typing import Any

import pytest

from coding_agents import CLAUDE_CODE
from terazi.gateway.wire.anthropic_request import CountBody, MessagesBody, chat_fields, left_out, prompt_fields
from terazi.gateway.wire.bodies import read_body
from terazi.gateway.wire.errors import WireError


def asked(body: dict[str, object]) -> dict[str, Any]:
    """What the engine is asked for *body*."""
    return chat_fields(read_body(MessagesBody, json.dumps(body).encode()), model="m")


def ask(*messages: object, **more: object) -> dict[str, Any]:
    """What the engine is asked for *messages*."""
    return asked({"model": "x", "max_tokens": 9, "messages": list(messages), **more})


def refused(*messages: object, **more: object) -> str:
    """Why *messages* are refused."""
    with pytest.raises(WireError) as caught:
        ask(*messages, **more)
    assert caught.value.fault.status == 400
    return caught.value.fault.message


def user(*blocks: object) -> dict[str, object]:
    """A user's message of blocks."""
    return {"role": "user", "content": list(blocks)}


def test_claude_code() -> None:
    fields = asked(CLAUDE_CODE)
    assert fields["model"] == "m"
    system, first, assistant, one, two, last = fields["messages"]
    assert system == {
        "role": "system",
        "content": "You are Claude Code, Anthropic's official CLI for Claude.\nBe brief.",
    }
    assert first["content"].endswith("</system-reminder>\nlist the files")
    assert assistant["content"] == "Listing."
    assert assistant["reasoning_content"] == "I shall list."
    assert [call["id"] for call in assistant["tool_calls"]] == ["toolu_01", "toolu_02"]
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"command": "ls", "n": 1}
    assert one == {"role": "tool", "tool_call_id": "toolu_01", "content": "a.txt"}
    assert two["tool_call_id"] == "toolu_02"
    assert "failed" in two["content"]
    assert two["content"].endswith("no such command")
    assert last == {"role": "user", "content": "go on"}
    assert [tool["function"]["name"] for tool in fields["tools"]] == ["Bash"]
    assert fields["tools"][0]["function"]["parameters"]["type"] == "object"
    assert left_out(MessagesBody.model_validate(CLAUDE_CODE)) == ("web_search",)
    assert fields["chat_template_kwargs"] == {"enable_thinking": True}
    assert fields["thinking_budget_tokens"] == 31999
    assert fields["stream"] is True
    assert fields["stream_options"] == {"include_usage": True}
    assert (fields["max_tokens"], fields["temperature"], fields["user"]) == (32000, 1, "user_1_account__session_2")
    assert "context_management" not in fields


@pytest.mark.parametrize(
    "header",
    [
        "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch={nonce};",
        "x-anthropic-billing-header: cc_version=2.1.9.{nonce}; cc_entrypoint=sdk-cli; cch={nonce};\n",
        "x-anthropic-billing-header: cc_version=2.1.9; cc_entrypoint=cli; cch={nonce}; cc_workload=x-y;\n\n",
        "x-anthropic-billing-header: cch={nonce}",
    ],
)
def test_a_nonce_in_the_system_prompt_does_not_change_the_prompt(header: str) -> None:
    def prompt(nonce: str, *, split: bool) -> object:
        texts = [header.format(nonce=nonce), "You are here."]
        if not split and not header.endswith(("\n", ";")):
            texts[0] += "\n"
        blocks = [{"type": "text", "text": text} for text in (texts if split else ["".join(texts)])]
        return ask(user(), system=blocks)["messages"]

    for split in (False, True):
        assert prompt("a5145", split=split) == prompt("0f9cc", split=split)
        assert prompt("a5145", split=split)[0]["content"] == "You are here."  # type: ignore[index]
    # and what only looks like it stays
    kept = "cch=a5145; is what x-anthropic-billing-header: says"
    assert ask(user(), system=kept)["messages"][0]["content"] == kept


def test_turns_of_one_role_are_joined() -> None:
    messages = ask(
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": [{"type": "text", "text": "d"}]},
        {"role": "system", "content": "now in French"},
    )["messages"]
    assert messages == [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "cd"},
        {"role": "user", "content": "now in French"},
    ]


def test_a_last_turn_of_the_assistant_is_continued() -> None:
    fields = ask({"role": "user", "content": "a"}, {"role": "assistant", "content": "The answer is ("})
    assert fields["continue_final_message"] is True
    assert fields["add_generation_prompt"] is False
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    assert "continue_final_message" not in ask(
        {"role": "user", "content": "a"}, {"role": "assistant", "content": [call]}
    )


def test_images_and_documents() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "QUJD"}}
    linked = {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}
    document = {
        "type": "document",
        "title": "T",
        "source": {"type": "text", "media_type": "text/plain", "data": "D"},
    }
    found = {
        "type": "search_result",
        "title": "S",
        "source": "s.example",
        "content": [{"type": "text", "text": "R"}],
    }
    shown = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    messages = ask(
        user({"type": "text", "text": "look"}, image, linked), {"role": "assistant", "content": "ok"}, user(shown)
    )["messages"]
    assert [part["type"] for part in messages[0]["content"]] == ["text", "image_url", "image_url"]
    assert messages[0]["content"][1]["image_url"]["url"] == "data:image/jpeg;base64,QUJD"
    assert messages[2]["content"][0]["image_url"]["url"] == "data:image/jpeg;base64,QUJD"
    told = ask(user(document, found))["messages"][0]["content"]
    assert told == "Document: T\nD\nSearch result: S (s.example)\nR"
    nested = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "N"}]}}
    assert ask(user(nested))["messages"][0]["content"] == "N"


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_tool_choice(choice: dict[str, object], wanted: dict[str, object]) -> None:
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("f", "g")]
    fields = ask(user(), tools=tools, tool_choice=choice)
    assert {name: fields[name] for name in wanted} == wanted
    named = ask(user(), tools=tools, tool_choice={"type": "tool", "name": "g"})
    assert named["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in named["tools"]] == ["g"]


def test_thinking_effort_and_format() -> None:
    assert ask(user(), thinking={"type": "disabled"})["chat_template_kwargs"] == {"enable_thinking": False}
    assert ask(user(), thinking={"type": "adaptive"})["chat_template_kwargs"] == {"enable_thinking": True}
    assert "chat_template_kwargs" not in ask(user())
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    fields = ask(user(), output_config={"effort": "max", "format": {"type": "json_schema", "schema": schema}})
    assert fields["reasoning_effort"] == "high"
    assert fields["response_format"]["json_schema"]["schema"] == schema


def test_counting_asks_for_the_same_prompt() -> None:
    body = {name: value for name, value in CLAUDE_CODE.items() if name != "max_tokens"}
    counted = prompt_fields(read_body(CountBody, json.dumps(body).encode()), model="m")
    whole = asked(CLAUDE_CODE)
    assert counted == {name: whole[name] for name in counted}


def test_what_is_refused() -> None:
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}}
    assert "documents are taken as text" in refused(user(pdf))
    assert "'video'" in refused(user({"type": "video"}))
    assert "image needs a source" in refused(user({"type": "image", "source": {"type": "file", "file_id": "f"}}))
    assert "'tool_use_id'" in refused(user({"type": "tool_result"}))
    assert "no tool 'h'" in refused(user(), tool_choice={"type": "tool", "name": "h"})
    assert "role" in refused({"role": "tool", "content": "x"})
    assert "max_tokens" in refused(user(), max_tokens=0)
    assert "messages" in refused()
    # what Anthropic's servers did earlier in a conversation is no reason to refuse it
    earlier = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "found"},
    ]
    messages = ask(user(), {"role": "assistant", "content": earlier}, user())["messages"]
    assert messages[1] == {"role": "assistant", "content": "found"}
