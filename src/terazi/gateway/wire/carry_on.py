"""The request that continues an answer: the client's own, with what was sent as its answer's beginning.

llama-server (b11434): a trailing assistant message with ``continue_final_message`` and without a generation prompt
is continued, and only the new text is streamed (``server-common.cpp:oaicompat_chat_params_parse``,
``server-task.cpp:task_result_state``). The same two fields are vLLM's. A completion is continued by its prompt with
the text behind it, as tokens where they are known. A grammar has to be told what is there already: llama-server
does so by itself in a chat; elsewhere ``generation_prompt`` says it, which is moved over for schemas and for
grammars of the type ``tool_calls`` (``common.h:common_grammar_needs_prefill``).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from terazi.gateway.wire.transcript import Transcript
from terazi.policy.resume import CHAT, Form, Powers, Shape

#: Fields that limit how many tokens are written.
_LIMITS: Final = ("max_tokens", "max_completion_tokens", "n_predict", "min_tokens")


def count_request(text: str, model: str) -> bytes:
    """The body for ``/tokenize``, in llama-server's words and in vLLM's."""
    words = {"content": text, "prompt": text, "add_special": False, "add_special_tokens": False, "model": model}
    return json.dumps(words).encode()


def read_tokens(body: bytes) -> list[int] | None:
    """The tokens in an answer of ``/tokenize``; None if it isn't one."""
    try:
        tokens = json.loads(body)["tokens"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return tokens if isinstance(tokens, list) and all(isinstance(token, int) for token in tokens) else None


def limit_of(fields: Mapping[str, Any]) -> int | None:
    """How many tokens may be written at most; None is as many as there is room for."""
    for name in ("max_completion_tokens", "max_tokens", "n_predict"):
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def continuation(
    fields: Mapping[str, Any],
    shape: Shape,
    powers: Powers,
    script: Transcript,
    *,
    tokens: Sequence[int] | None,
    spent: int,
) -> bytes:
    """The body that continues after *script*.

    Args:
        tokens: of the text that was sent, if they are known.
        spent: how many tokens that was, as far as is known; the limits shrink by it.
    """
    body = dict(fields)
    for name in _LIMITS:
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            body[name] = max(value - spent, 0 if name == "min_tokens" else 1)
    if shape.path == CHAT:
        _continue_chat(body, powers, script)
    else:
        _continue_prompt(body, script, tokens)
        if powers.forms and shape.form in {Form.SCHEMA, Form.GRAMMAR}:
            body["generation_prompt"] = script.content
            if body.get("grammar"):
                body["grammar_type"] = "tool_calls"
    return json.dumps(body).encode()


def _continue_chat(body: dict[str, Any], powers: Powers, script: Transcript) -> None:
    messages = [*body["messages"]]
    last: dict[str, Any] = {"role": "assistant"}
    begun = ""
    if messages[-1].get("role") == "assistant" and (body.get("continue_final_message") or powers.reasoning):
        # The client itself had begun the answer. Without the flag llama-server sends that beginning back first.
        last = dict(messages.pop())
        begun = last.get("content") or ""
        if not body.get("continue_final_message") and script.content.startswith(begun):
            begun = ""
    last["content"] = begun + script.content
    if script.reasoning:
        last["reasoning_content"] = script.reasoning
    body["messages"] = [*messages, last]
    # an empty text after reasoning may only mean that the reasoning isn't at its end
    within = bool(script.reasoning) and not last["content"]
    body["continue_final_message"] = "reasoning_content" if within else True
    body["add_generation_prompt"] = False


def _continue_prompt(body: dict[str, Any], script: Transcript, tokens: Sequence[int] | None) -> None:
    prompt = body["prompt"]
    ids = script.ids
    if isinstance(prompt, str):
        # ids come only from llama-server's own paths, where text and tokens may be mixed in a prompt
        body["prompt"] = [prompt, *ids] if ids and prompt else prompt + script.content
    elif isinstance(prompt, Mapping):
        body["prompt"] = {**prompt, "prompt_string": f"{prompt.get('prompt_string', '')}{script.content}"}
    else:
        known = ids or tokens
        body["prompt"] = [*prompt, *known] if known else [*prompt, script.content]
