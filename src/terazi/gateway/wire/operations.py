"""Every endpoint of the gateway, in one table: what is registered, what is documented, what is tested."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel

from terazi.gateway.wire import ollama_bodies as ollama
from terazi.gateway.wire import openai_bodies as openai
from terazi.gateway.wire.anthropic_request import CountBody, MessagesBody
from terazi.gateway.wire.errors import Api
from terazi.gateway.wire.llama_cpp import CompletionBody, DetokenizeBody, InfillBody, TemplateBody, TokenizeBody
from terazi.gateway.wire.rerank import RerankBody
from terazi.gateway.wire.responses_request import ResponsesBody

SSE: Final = "text/event-stream"
NDJSON: Final = "application/x-ndjson"
JSON: Final = "application/json"
FORM: Final = "multipart/form-data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method on one path.

    Args:
        key: which handler answers it; several operations may share one.
        path: aiohttp's; ``{id:.+}`` may hold slashes.
        api: whose shapes its errors have.
        body: what it takes, by content type.
        query: names of its query parameters, with what they are.
        gives: the content type of a good answer.
        streams: the content type of a streamed one.
        public: it needs no key.
    """

    key: str
    method: str
    path: str
    api: Api
    summary: str
    body: Mapping[str, type[BaseModel]] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    gives: str = JSON
    streams: str | None = None
    public: bool = False


def _post(
    key: str, path: str, summary: str, body: type[BaseModel], *, api: Api, streams: str | None = None
) -> Operation:
    return Operation(
        key=key, method="POST", path=path, api=api, summary=summary, body={JSON: body}, streams=streams
    )


def _get(key: str, path: str, api: Api, summary: str, *, gives: str = JSON, public: bool = False) -> Operation:
    return Operation(key=key, method="GET", path=path, api=api, summary=summary, gives=gives, public=public)


_MODEL: Final = {"model": "the model that is meant, where the body doesn't say it; needed if there are several"}


def _native(path: str, summary: str, body: type[BaseModel], streams: str | None = None) -> Operation:
    return Operation(
        key="engineText",
        method="POST",
        path=path,
        api=Api.OPENAI,
        summary=summary,
        body={JSON: body},
        query=_MODEL,
        streams=streams,
    )


def _media(key: str, path: str, summary: str, body: Mapping[str, type[BaseModel]]) -> Operation:
    return Operation(key=key, method="POST", path=path, api=Api.OPENAI, summary=summary, body=body, streams=SSE)


_JSON_ONLY: Final = {JSON: openai.MediaBody}
_FORM_ONLY: Final = {FORM: openai.MediaForm}

OPERATIONS: Final = (
    # OpenAI; those with the key "chat" are answered by ``gateway.front``
    _get("models", "/v1/models", Api.OPENAI, "What is served; in Anthropic's shape with `anthropic-version`"),
    _get("model", "/v1/models/{id:.+}", Api.OPENAI, "One model; ids may hold slashes"),
    _post(
        "chat",
        "/v1/chat/completions",
        "A chat, by the engine's word",
        openai.ChatCompletionsBody,
        api=Api.OPENAI,
        streams=SSE,
    ),
    _post(
        "chat",
        "/v1/completions",
        "A text, by the engine's word",
        openai.CompletionsBody,
        api=Api.OPENAI,
        streams=SSE,
    ),
    _post("chat", "/v1/embeddings", "Vectors, by the engine's word", openai.TextsBody, api=Api.OPENAI),
    _post(
        "responses", "/v1/responses", "A response, translated to a chat", ResponsesBody, api=Api.OPENAI, streams=SSE
    ),
    _post("rerank", "/v1/rerank", "Documents in the order of their relevance", RerankBody, api=Api.OPENAI),
    _post("rerank", "/v1/reranking", "The same", RerankBody, api=Api.OPENAI),
    _post("rerank", "/rerank", "The same", RerankBody, api=Api.OPENAI),
    _post("rerank", "/reranking", "The same", RerankBody, api=Api.OPENAI),
    _media("audio", "/v1/audio/transcriptions", "Passed to the engine", _FORM_ONLY),
    _media("audio", "/v1/audio/translations", "Passed to the engine", _FORM_ONLY),
    _media("audio", "/v1/audio/speech", "Passed to the engine", _JSON_ONLY),
    _media("images", "/v1/images/generations", "Passed to the engine", _JSON_ONLY),
    _media("images", "/v1/images/edits", "Passed to the engine", _FORM_ONLY),
    # Anthropic
    _post(
        "messages", "/v1/messages", "A message, translated to a chat", MessagesBody, api=Api.ANTHROPIC, streams=SSE
    ),
    _post(
        "countTokens",
        "/v1/messages/count_tokens",
        "Tokens of a prompt, as the engine has them",
        CountBody,
        api=Api.ANTHROPIC,
    ),
    # Ollama
    _get("banner", "/", Api.OLLAMA, "Somebody is there", gives="text/plain", public=True),
    _get("version", "/api/version", Api.OLLAMA, "The API's version"),
    _get("tags", "/api/tags", Api.OLLAMA, "What is served"),
    _get("loaded", "/api/ps", Api.OLLAMA, "What is loaded"),
    _post("show", "/api/show", "About a model", ollama.NameBody, api=Api.OLLAMA),
    _post("ollamaChat", "/api/chat", "A chat", ollama.ChatBody, api=Api.OLLAMA, streams=NDJSON),
    _post("ollamaGenerate", "/api/generate", "A text", ollama.GenerateBody, api=Api.OLLAMA, streams=NDJSON),
    _post("embed", "/api/embed", "Vectors", ollama.EmbedBody, api=Api.OLLAMA),
    _post("embeddings", "/api/embeddings", "One vector", ollama.EmbeddingsBody, api=Api.OLLAMA),
    _post("pull", "/api/pull", "Fetch a model, told as it goes", ollama.NameBody, api=Api.OLLAMA, streams=NDJSON),
    _post("create", "/api/create", "Make a model of another", ollama.CreateBody, api=Api.OLLAMA, streams=NDJSON),
    _post("copy", "/api/copy", "Another name for a model", ollama.CopyBody, api=Api.OLLAMA),
    _post("push", "/api/push", "Not offered", ollama.NameBody, api=Api.OLLAMA),
    Operation(
        key="delete",
        method="DELETE",
        path="/api/delete",
        api=Api.OLLAMA,
        summary="Give a model up",
        body={JSON: ollama.NameBody},
    ),
    Operation(
        key="hasBlob", method="HEAD", path="/api/blobs/{digest}", api=Api.OLLAMA, summary="Whether a file is here"
    ),
    Operation(key="addBlob", method="POST", path="/api/blobs/{digest}", api=Api.OLLAMA, summary="Bring a file"),
    # llama-server
    _native("/tokenize", "Tokens of a text", TokenizeBody),
    _native("/detokenize", "The text of tokens", DetokenizeBody),
    _native("/apply-template", "A chat as the model's prompt", TemplateBody),
    _native("/completion", "A text", CompletionBody, SSE),
    _native("/completions", "The same", CompletionBody, SSE),
    _native("/infill", "What stands between two texts", InfillBody, SSE),
    Operation(
        key="engineProps",
        method="GET",
        path="/props",
        api=Api.OPENAI,
        summary="An engine's properties; loads nothing",
        query=_MODEL,
    ),
    Operation(
        key="engineSlots",
        method="GET",
        path="/slots",
        api=Api.OPENAI,
        summary="What an engine's slots do; loads nothing",
        query=_MODEL,
    ),
    Operation(key="engineChange", method="POST", path="/props", api=Api.OPENAI, summary="Not offered"),
    Operation(key="engineChange", method="POST", path="/slots/{id}", api=Api.OPENAI, summary="Not offered"),
    # Terazi
    _get("document", "/openapi.json", Api.OWN, "This document"),
    _get(
        "health",
        "/healthz",
        Api.OWN,
        "200 while requests are taken; each model's state for who has a key",
        public=True,
    ),
    _get("alive", "/livez", Api.OWN, "200 while the service runs", public=True),
    _get("metrics", "/metrics", Api.OWN, "Figures for Prometheus", gives="text/plain"),
)
