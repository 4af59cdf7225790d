"""The fake engine's endpoints around texts, as llama-server has them: tokens, templates, ranks."""

import hashlib
import re

WORDS = [
    "scale", "weigh", "token", "byte", "layer", "slot", "cache", "head",
    "stream", "queue", "model", "disk", "north", "lamp", "river", "stone",
    "paper", "glass", "green", "quiet", "early", "round", "plain", "exact",
    "ready", "open", "warm", "long", "bright", "small", "even", "calm",
]  # fmt: skip
#: A text's tokens are the words that an answer is made of, each with the space before it, and else its characters.
_PIECE = re.compile(" (?:" + "|".join(WORDS) + r")(?!\w)|.", re.DOTALL)
_OFFSET = 100


def _token(piece: str) -> int:
    return WORDS.index(piece[1:]) if len(piece) > 1 else ord(piece) + _OFFSET


def _piece(token: int) -> str:
    if 0 <= token < len(WORDS):
        return f" {WORDS[token]}"
    return chr(token - _OFFSET) if 0 <= token - _OFFSET < 0xD800 else ""


def answer_text(path: str, body: dict[str, object], *, reranks: bool) -> tuple[int, object] | None:
    """Status and body for *path*; None if it is none of them."""
    if path == "/tokenize":
        return 200, {"tokens": [_token(piece) for piece in _PIECE.findall(str(body.get("content", "")))]}
    if path == "/detokenize":
        tokens = body.get("tokens")
        given = tokens if isinstance(tokens, list) else []
        return 200, {"content": "".join(map(_piece, given))}
    if path == "/apply-template":
        messages = body.get("messages")
        if not isinstance(messages, list):
            return 400, _error(400, "'messages' is required", "invalid_request_error")
        said = "".join(f"<{m.get('role')}> {m.get('content')}\n" for m in messages if isinstance(m, dict))
        return 200, {"prompt": said + "<assistant> "}
    if path in {"/rerank", "/reranking", "/v1/rerank", "/v1/reranking"}:
        return (
            _rerank(body)
            if reranks
            else (501, _error(501, "This server does not support reranking.", "not_supported_error"))
        )
    return None


def _rerank(body: dict[str, object]) -> tuple[int, object]:
    documents = body.get("documents")
    if not isinstance(documents, list) or not documents or not all(isinstance(d, str) for d in documents):
        return 400, _error(400, '"documents" must be a non-empty string array', "invalid_request_error")
    query = str(body.get("query"))
    results = [
        {"index": i, "relevance_score": hashlib.sha256(f"{query}\0{text}".encode()).digest()[0] / 255}
        for i, text in enumerate(documents)
    ]
    n = sum(len(text.split()) for text in documents)
    usage = {"prompt_tokens": n, "total_tokens": n}
    return 200, {"model": body.get("model"), "object": "list", "usage": usage, "results": results}


def _error(code: int, message: str, kind: str) -> dict[str, object]:
    return {"error": {"code": code, "message": message, "type": kind}}
