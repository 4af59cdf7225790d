"""What is said in one API and comes back through another is what was said: roles, texts, thoughts, calls, ids."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from terazi.gateway.wire.anthropic_answer import MessageTranslator, message_of
from terazi.gateway.wire.anthropic_request import CountBody, MessagesBody, prompt_fields
from terazi.gateway.wire.anthropic_request import chat_fields as from_anthropic
from terazi.gateway.wire.bodies import read_body
from terazi.gateway.wire.errors import WireError
from terazi.gateway.wire.responses_answer import ResponseTranslator
from terazi.gateway.wire.responses_request import Item, ResponsesBody, items_of
from terazi.gateway.wire.responses_request import chat_fields as from_responses
from terazi.gateway.wire.stops import StopMatcher

#: Not ``st.text``: it reads a table from disk, which a core test may not do.
text = st.lists(st.sampled_from('ab1 "\\\n\t\0{}[]:,é世😀\u2028'), max_size=8).map("".join)
some_text = st.lists(st.sampled_from('ab1 "\\\n\t{}é世😀'), min_size=1, max_size=8).map("".join)
name = st.sampled_from(["weigh", "get_weight", "ls"])
value = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | text
arguments = st.dictionaries(some_text, value | st.lists(value, max_size=2), max_size=3)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
Message = dict[str, Any]


@st.composite
def assistant(draw: st.DrawFn, *, number: int) -> Message:
    """A turn of the assistant that says something."""
    calls = draw(st.lists(st.tuples(name, arguments), max_size=3))
    message: Message = {"role": "assistant", "content": draw(text if calls else some_text)}
    if draw(st.booleans()):
        message["reasoning_content"] = draw(some_text)
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{i}",
                "type": "function",
                "function": {"name": called, "arguments": json.dumps(given, ensure_ascii=False)},
            }
            for i, (called, given) in enumerate(calls)
        ]
    return message


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """A chat in OpenAI's shape, as templates take it."""
    messages: list[Message] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(some_text)})
    messages.append({"role": "user", "content": draw(some_text)})
    for number in range(draw(st.integers(0, 3))):
        said = draw(assistant(number=number))
        messages.append(said)
        calls = said.get("tool_calls", ())
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": draw(text)} for call in calls]
        if not calls or draw(st.booleans()):
            messages.append({"role": "user", "content": draw(some_text)})
    return messages


def to_anthropic(messages: list[Message]) -> Message:
    """The same chat in Anthropic's shape, by its documentation."""
    body: Message = {"model": "x", "max_tokens": 1, "messages": []}
    told = body["messages"]
    for message in messages:
        content = message["content"]
        if message["role"] == "system":
            body["system"] = content
        elif message["role"] == "assistant":
            blocks: list[Message] = []
            if "reasoning_content" in message:
                blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
            if content:
                blocks.append({"type": "text", "text": content})
            for call in message.get("tool_calls", ()):
                given = json.loads(call["function"]["arguments"])
                blocks.append(
                    {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": given}
                )
            told.append({"role": "assistant", "content": blocks})
        else:
            block = {"type": "text", "text": content}
            if message["role"] == "tool":
                block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
            if told and told[-1]["role"] == "user":
                told[-1]["content"].append(block)
            else:
                told.append({"role": "user", "content": [block]})
    return body


def to_responses(messages: list[Message]) -> Message:
    """The same chat as items of a response's input."""
    items: list[Message] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            items.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": content})
            continue
        if "reasoning_content" in message:
            part = {"type": "reasoning_text", "text": message["reasoning_content"]}
            items.append({"type": "reasoning", "summary": [], "content": [part]})
        if content or not message.get("tool_calls"):
            kind = "output_text" if role == "assistant" else "input_text"
            items.append({"type": "message", "role": role, "content": [{"type": kind, "text": content}]})
        items += [
            {"type": "function_call", "call_id": call["id"], **call["function"]}
            for call in message.get("tool_calls", ())
        ]
    return {"model": "x", "input": items}


@given(conversations())
def test_anthropic_brings_a_chat_back(messages: list[Message]) -> None:
    body = read_body(MessagesBody, json.dumps(to_anthropic(messages)).encode())
    assert from_anthropic(body, model="m")["messages"] == messages


@given(conversations())
def test_responses_bring_a_chat_back(messages: list[Message]) -> None:
    body = read_body(ResponsesBody, json.dumps(to_responses(messages)).encode())
    assert from_responses(body, items_of(body.input), model="m")["messages"] == messages


def chunked(draw: Callable[..., Any], message: Message) -> list[bytes]:
    """The engine's events for *message*, cut anywhere."""

    def cut(whole: str) -> list[str]:
        at = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=3)))
        return [whole[a:b] for a, b in zip([0, *at], [*at, len(whole)], strict=True)]

    deltas: list[Message] = [{"role": "assistant", "content": None}]
    deltas += [{"reasoning_content": piece} for piece in cut(message.get("reasoning_content", ""))]
    deltas += [{"content": piece} for piece in cut(message["content"])]
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        start = {"index": index, "id": call["id"], "type": "function", "function": {"name": function["name"]}}
        deltas.append({"tool_calls": [start]})
        for piece in cut(function["arguments"]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    finish = "tool_calls" if "tool_calls" in message else "stop"
    choices: list[Message] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    return [json.dumps({"choices": [choice]}).encode() for choice in choices]


def plain(message: Message) -> Message:
    """*message* with its arguments read, since they may be written differently."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls}


def last_of(fields: Message) -> Message:
    """The last message of a request."""
    last: Message = fields["messages"][-1]
    return last


@given(st.data())
def test_an_answer_can_be_given_back(data: st.DataObject) -> None:
    said = data.draw(assistant(number=0))
    hello: Message = {"role": "user", "content": "hello"}
    events = chunked(data.draw, said)

    one = MessageTranslator(message_id="msg_1", model="m")
    answer = message_of([event for each in events for event in one.feed(each)] + one.end())
    given_back = {"model": "x", "messages": [hello, {"role": "assistant", "content": answer["content"]}]}
    body = MessagesBody.model_validate_json(json.dumps(given_back))
    assert plain(last_of(from_anthropic(body, model="m"))) == plain(said)

    other = ResponseTranslator(key="k", created_s=1, echo={})
    for each in events:
        other.feed(each)
    other.end()
    items = [*items_of("hello"), *(Item.model_validate_json(json.dumps(item)) for item in other.output)]
    assert plain(last_of(from_responses(ResponsesBody(), items, model="m"))) == plain(said)


@given(st.lists(st.sampled_from(["a", "b", "ab", "aab", "ba"]), max_size=12), st.sets(text, max_size=3))
def test_stops_are_found_however_the_text_is_cut(pieces: list[str], more: set[str]) -> None:
    stops = sorted(more | {"aba", "bb"})
    whole = "".join(pieces)
    matcher = StopMatcher(stops)
    given_out = "".join([matcher.feed(piece) for piece in pieces])
    ends = [n for n in range(len(whole) + 1) if any(s and whole[:n].endswith(s) for s in stops)]
    if ends:
        assert matcher.matched is not None
        assert given_out + matcher.matched == whole[: ends[0]]
        assert matcher.matched == max((s for s in stops if s and whole[: ends[0]].endswith(s)), key=len)
    else:
        assert matcher.matched is None
        assert given_out + matcher.flush() == whole


blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "tool_use", "tool_result", "document", "thinking", "output_text"])},
    optional=dict.fromkeys(("text", "source", "id", "name", "input", "tool_use_id", "content", "title"), anything),
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "model": text | anything,
        "messages": anything
        | st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": st.lists(blocks)})),
        "input": anything | st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": st.lists(blocks)})),
        "system": anything | st.lists(blocks),
        "tools": anything,
        "tool_choice": anything,
        "text": anything,
        "max_tokens": anything,
    },
)


@given(anything | bodies)
def test_whatever_comes_is_translated_or_refused(body: object) -> None:
    raw = json.dumps(body).encode()
    for translate in (_messages, _count, _respond):
        caught: WireError | None = None
        try:
            translate(raw)
        except WireError as error:
            caught = error
        assert caught is None or caught.fault.status == 400


def _messages(raw: bytes) -> None:
    from_anthropic(read_body(MessagesBody, raw), model="m")


def _count(raw: bytes) -> None:
    prompt_fields(read_body(CountBody, raw), model="m")


def _respond(raw: bytes) -> None:
    body = read_body(ResponsesBody, raw)
    from_responses(body, items_of(body.input), model="m")
