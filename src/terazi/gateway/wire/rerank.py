"""Reranking in the shapes of Jina and Cohere (``documents``), and of Hugging Face's TEI (``texts``)."""

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from terazi.gateway.wire.chat_stream import listed, load, mapping, number_of
from terazi.gateway.wire.errors import WireError, bad_request, engine_cut

ENGINE_PATH: Final = "/v1/rerank"


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True)


class Document(_Body):
    """A document as an object."""

    text: str


class RerankBody(_Body):
    """``POST /v1/rerank``."""

    model: str | None = None
    query: str
    documents: list[str | Document] | None = None
    texts: list[str] | None = None
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    return_text: bool | None = None


def documents_of(body: RerankBody) -> list[str]:
    """What is to be ranked.

    Raises:
        WireError: 400, there is nothing.
    """
    given: Sequence[str | Document] = body.documents if body.documents is not None else body.texts or ()
    texts = [one if isinstance(one, str) else one.text for one in given]
    if not texts:
        raise WireError(bad_request("'documents' must be a list that is not empty"))
    return texts


def engine_fields(body: RerankBody, texts: list[str], *, model: str) -> dict[str, object]:
    """What the engine is asked: always Jina's shape."""
    top_n = {} if body.top_n is None else {"top_n": min(body.top_n, len(texts))}
    return {"model": model, "query": body.query, "documents": texts, **top_n}


def answer(body: RerankBody, texts: Sequence[str], raw: bytes, *, model: str) -> object:
    """The engine's answer in the shape that was asked for, the best first.

    Raises:
        WireError: the engine's answer isn't one.
    """
    given = load(raw)
    rows: list[tuple[float, int]] = []
    for row in map(mapping, listed(given.get("results"))):
        index, score = row.get("index"), row.get("relevance_score", row.get("score"))
        if not isinstance(index, int) or not isinstance(score, int | float) or not 0 <= index < len(texts):
            raise WireError(engine_cut("the engine's answer holds something that is not a rank"))
        rows.append((float(score), index))
    rows.sort(key=lambda row: (-row[0], row[1]))
    rows = rows[: body.top_n]
    if body.documents is None:
        shown = body.return_text is True
        return [{"index": i, "score": score, **({"text": texts[i]} if shown else {})} for score, i in rows]
    results = [
        {
            "index": i,
            "relevance_score": score,
            **({"document": {"text": texts[i]}} if body.return_documents else {}),
        }
        for score, i in rows
    ]
    usage = mapping(given.get("usage"))
    tokens = {name: number_of(usage.get(name)) for name in ("prompt_tokens", "total_tokens")}
    return {"model": model, "object": "list", "usage": tokens, "results": results}
