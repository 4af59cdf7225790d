"""OpenAI's envelope, lists, and when a stream is complete."""

import pytest

from serving import CARD
from terazi.gateway.wire.errors import WireError
from terazi.gateway.wire.openai import is_complete, model_entry, read_envelope


def test_envelope() -> None:
    envelope = read_envelope(b'{"model": "a/b", "stream": true, "messages": []}')
    assert (envelope.model, envelope.stream) == ("a/b", True)
    envelope = read_envelope(b'{"model": "", "stream": "yes"}')
    assert (envelope.model, envelope.stream) == (None, False)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"model": 3}',
        b"\xff\xff\xff",
        b"[" * 200_000,
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_junk_is_a_clean_400(raw: bytes) -> None:
    with pytest.raises(WireError) as caught:
        read_envelope(raw)
    assert caught.value.fault.status == 400


@pytest.mark.parametrize(
    ("tail", "complete"),
    [
        (b'data: {"choices": []}\n\ndata: [DONE]\n\n', True),
        (b"data: [DONE]\r\n\r\n", True),
        (b'data: {"error":{"message":"x"}}\n\n', True),
        (b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', False),
        (b'data: {"choices":[{"delta":{"content":"data: [DONE]"}}]}\n\n', False),
        (b'data: {"choices":[{"delta":{"content":"data: {\\"error\\""}}]}\n\n', False),
        (b"", False),
    ],
)
def test_is_complete(tail: bytes, complete: bool) -> None:
    assert is_complete(tail) is complete


def test_model_entry() -> None:
    entry = model_entry(CARD)
    assert entry["id"] == CARD.id
    assert entry["meta"]["n_ctx"] == 2048  # type: ignore[index]
