"""What a request will hold of an engine's KV cache, and how its prompt begins, told from its body alone.

A token of English, Turkish, code or anything escaped as JSON is three to five bytes of the body, one of indented
JSON eight; one of Chinese in UTF-8 two to three. So a third of a body's bytes, or half of them if there is more in
it than ASCII, is a little more than its tokens, as a rule. (SmolLM2's tokeniser counts 0.35 to 1.1 of that, and 2.4
times as many for base64; the end-to-end test has the texts.) The engine counts exactly, and what it counted is put
right afterwards.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

#: A little fewer than a token has on average, over languages and code: in ASCII, and in other UTF-8.
_BYTES_PER_TOKEN: Final = 3
_BYTES_PER_TOKEN_OF_UTF8: Final = 2
#: More than a token has on average in any text; lines that are mostly blanks come to 22.
_MOST_BYTES_PER_TOKEN: Final = 64
#: A picture or a sound, whatever its bytes: llama.cpp's vision models make a few hundred to a few thousand of it.
_ATTACHMENT_TOKENS: Final = 1024
#: Where an answer's bound is found, by API.
_BOUNDS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
#: These answer without generating: the last part of their paths.
_NO_OUTPUT: Final = ("/embedding", "/embeddings", "/rerank", "/reranking", "/tokenize", "/detokenize",
                     "/apply-template")  # fmt: skip
_INLINE: Final = b";base64,"
_SOUND: Final = b'"input_audio"'

BLOCK_CHARS: Final = 256
MOST_BLOCKS: Final = 32
_MOST_CHARS: Final = BLOCK_CHARS * MOST_BLOCKS
#: A number that Claude Code puts into the first block of its system prompt, new for each request. (llama.cpp#21793)
_NONCE: Final = re.compile(r"\bcch=[0-9A-Za-z]+")


def estimate_tokens(path: str, body: bytes, fields: Mapping[str, Any], context: int | None) -> int:
    """KV tokens that a request will hold at most: its prompt by its bytes, and what it may write.

    Args:
        path: the engine's.
        body, fields: as it came, and parsed.
        context: tokens that one request may have; None if that isn't known. No estimate is above it, for it is the
            engine that counts; and an answer without a bound of its own may fill it.
    """
    output: int | None = None
    for name in _BOUNDS:
        # bool is an int, too, but no number of tokens
        if name in fields and type(bound := fields[name]) is int and bound >= 0:
            output = bound
            break
    if path.endswith(_NO_OUTPUT):
        output = 0
    elif output is None and context is not None:
        return max(1, context)
    size, attached = _prompt_bytes(body, fields) if _has_parts(fields) else (len(body), 0)
    tokens = size // (_BYTES_PER_TOKEN if body.isascii() else _BYTES_PER_TOKEN_OF_UTF8)
    tokens += attached * _ATTACHMENT_TOKENS + 1
    if output is not None:
        if "n" in fields and isinstance(choices := fields["n"], int) and choices > 1:
            output *= min(choices, 128)
        tokens += output
    return tokens if context is None else max(1, min(tokens, context))


def fewest_tokens(fields: Mapping[str, Any]) -> int:
    """Tokens that its longest prompt has at the very least: above the context, no engine has to be asked.

    A request for embeddings or a ranking has many prompts, each with the whole context to itself. What else is in
    it (a schema, a table of biases, fields that nobody knows) makes no prompt longer.
    """
    return max(map(_fewest, _prompts(fields)), default=0)


def leading_blocks(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """Hashes of the prompt's first blocks of 256 characters; each stands for all the text up to its end.

    They are good within this process only. A last block that isn't full isn't counted.
    """
    parts: list[str] = []
    size = 0
    for part in _leading_text(fields):
        parts.append(part)
        size += len(part)
        if size >= _MOST_CHARS:
            break
    text = "\n".join(parts)
    if "cch=" in text[:2048]:
        text = _NONCE.sub("cch=", text[:2048]) + text[2048:]
    blocks: list[int] = []
    seen = 0
    for start in range(0, min(len(text), _MOST_CHARS) - BLOCK_CHARS + 1, BLOCK_CHARS):
        seen = hash((seen, text[start : start + BLOCK_CHARS]))
        blocks.append(seen)
    return tuple(blocks)


def _prompts(fields: Mapping[str, Any]) -> Iterator[object]:
    messages = [message for message in _list(fields.get("messages")) if isinstance(message, dict)]
    yield [text for message in messages for text in _texts(message)]
    for name in ("prompt", "input", "content", "documents"):
        held = fields.get(name)
        if isinstance(held, list) and held and not isinstance(held[0], int):
            yield from held
        else:  # one text, or one list of token ids
            yield held


def _texts(message: dict[str, Any]) -> Iterator[str]:
    content = message.get("content")
    for part in content if isinstance(content, list) else (content,):
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text


def _fewest(prompt: object) -> int:
    parts = prompt if isinstance(prompt, list) else (prompt,)
    characters = sum(len(part) for part in parts if isinstance(part, str))
    return characters // _MOST_BYTES_PER_TOKEN + sum(isinstance(part, int) for part in parts)


def _prompt_bytes(body: bytes, fields: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes of text in the request, and how many attachments stand in it in full."""
    if _INLINE not in body and _SOUND not in body:
        return len(body), 0
    attached = [len(text) for text in _attachments(fields)]
    return max(0, len(body) - sum(attached)), len(attached)


def _has_parts(fields: Mapping[str, Any]) -> bool:
    """Whether a message is more than a text. To ask this first saves looking through a long prompt's bytes."""
    messages = fields.get("messages")
    if type(messages) is list:
        for message in messages:
            if type(message) is dict and "content" in message and type(message["content"]) is list:
                return True
    return False


def _attachments(fields: Mapping[str, Any]) -> Iterator[str]:
    """Their encoded bytes."""
    for part in _content_parts(fields):
        for name in ("image_url", "input_audio"):
            held = part.get(name)
            inner = held.get("url", held.get("data")) if isinstance(held, dict) else held
            if isinstance(inner, str):
                yield inner


def _content_parts(fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for message in _list(fields.get("messages")):
        if isinstance(message, dict):
            for part in _list(message.get("content")):
                if isinstance(part, dict):
                    yield part


def _leading_text(fields: Mapping[str, Any]) -> Iterator[str]:
    """The prompt's text from its beginning, as far as templates agree on its order: tools, then messages."""
    for tool in _list(fields.get("tools")):
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict):
            yield str(function.get("name"))
    prompt = fields.get("prompt")
    if prompt is not None:
        yield prompt if isinstance(prompt, str) else str(_list(prompt)[:_MOST_CHARS])
    for message in _list(fields.get("messages")):
        if not isinstance(message, dict):
            continue
        yield str(message.get("role"))
        content = message.get("content")
        if isinstance(content, str):
            yield content
        for part in _list(content):
            if isinstance(part, dict):
                text = part.get("text")
                yield text if isinstance(text, str) else _fingerprint(part)


def _fingerprint(part: dict[str, Any]) -> str:
    """Enough of an attachment to tell it from another."""
    held = part.get("image_url", part.get("input_audio"))
    inner = held.get("url", held.get("data")) if isinstance(held, dict) else held
    return f"{len(inner)} {inner[-64:]}" if isinstance(inner, str) else str(part.get("type"))


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
