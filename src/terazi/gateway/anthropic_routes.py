"""Anthropic's endpoints, answered by the engine's chat."""

import secrets
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from terazi.gateway.backend import ModelCard, Served
from terazi.gateway.desk import Desk, Tab, json_response
from terazi.gateway.operations import register
from terazi.gateway.passed import ABSENT
from terazi.gateway.translated import (
    CHAT_PATH,
    ask,
    call_for,
    engine_extras,
    left_out_headers,
    response_headers,
    stream_chat,
    whole_chat,
)
from terazi.gateway.wire.anthropic_answer import PING, MessageTranslator, encode, message_of
from terazi.gateway.wire.anthropic_request import CountBody, MessagesBody, chat_fields, left_out, prompt_fields
from terazi.gateway.wire.bodies import read_body
from terazi.gateway.wire.chat_stream import listed, load, number_of, text_of
from terazi.gateway.wire.errors import Api, Fault, WireError, engine_fault, sse_event
from terazi.gateway.wire.modalities import check_modalities
from terazi.gateway.wire.ollama_request import with_defaults

#: Clients of Anthropic's ask for its models by name and often can't be told another one.
_THEIR_MODELS: Final = "claude-"


class AnthropicRoutes:
    """Handlers of ``/v1/messages``."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def add_to(self, app: web.Application) -> None:
        """Register the handlers."""
        register(app, self._desk, {"messages": self.messages, "countTokens": self.count_tokens})

    async def messages(self, request: web.Request, tab: Tab) -> web.StreamResponse:
        """``POST /v1/messages``."""
        desk = self._desk
        body = read_body(MessagesBody, await desk.read_body(request))
        card = self._find(body.model, tab).card
        fields = chat_fields(body, model=card.id)
        if (preset := desk.defaults(body.model)) is not None:
            fields = with_defaults(fields, preset)
        check_modalities(fields, card)
        fields |= engine_extras(card, counted=bool(body.stop_sequences))
        call = call_for(request, tab, api=Api.ANTHROPIC, path=CHAT_PATH, fields=fields, card=card, stream=True)
        translator = MessageTranslator(
            message_id=f"msg_{secrets.token_hex(12)}",
            model=body.model,
            stops=body.stop_sequences or (),
            max_tokens=body.max_tokens,
        )
        if not body.stream:
            events, head = await whole_chat(desk, tab, call, translator)
            response = json_response(message_of(events))
            response.headers.update(response_headers(head, left_out(body)))
            return response
        return await stream_chat(
            desk,
            request,
            tab,
            call,
            translator,
            encode=encode,
            fail=lambda fault: sse_event(fault, api=Api.ANTHROPIC),
            ping=PING,
            headers=left_out_headers(left_out(body)),
        )

    async def count_tokens(self, request: web.Request, tab: Tab) -> web.Response:
        """``POST /v1/messages/count_tokens``: what the engine itself makes of the prompt."""
        body = read_body(CountBody, await self._desk.read_body(request))
        card = self._find(body.model, tab).card
        fields = prompt_fields(body, model=card.id)
        check_modalities(fields, card)
        return json_response({"input_tokens": await self._count(request, tab, fields, card)})

    async def _count(self, request: web.Request, tab: Tab, fields: Mapping[str, object], card: ModelCard) -> int:
        async def asked(path: str, asking: Mapping[str, object]) -> Mapping[str, object] | None:
            call = call_for(request, tab, api=Api.ANTHROPIC, path=path, fields=asking, card=card)
            status, answer = await ask(self._desk, call)
            if status in ABSENT:
                return None
            if status != 200:
                raise WireError(engine_fault(status, answer))
            return load(answer)

        # llama-server counts a chat as it would read it, images too (b11434, handle_count_tokens)
        if (counted := await asked(f"{CHAT_PATH}/input_tokens", fields)) is not None:
            return number_of(counted.get("input_tokens"))
        if (rendered := await asked("/apply-template", fields)) is not None:
            text = {"content": text_of(rendered.get("prompt")), "add_special": True, "parse_special": True}
            if (tokens := await asked("/tokenize", text)) is not None:
                return len(listed(tokens.get("tokens")))
        # vLLM's takes a chat
        if (tokens := await asked("/tokenize", fields)) is not None and "count" in tokens:
            return number_of(tokens.get("count"))
        message = f"the engine of '{card.id}' can't count tokens"
        raise WireError(Fault(status=501, message=message, kind="not_supported_error"))

    def _find(self, name: str, tab: Tab) -> Served:
        """The model for *name*. Any of Anthropic's own names means the only chat model, if there is only one."""
        desk = self._desk
        if name.startswith(_THEIR_MODELS) and desk.directory.find(name) is None:
            chats = [model for model in desk.listed(tab.caller) if "completion" in model.card.capabilities]
            if len(chats) == 1:
                return desk.find(chats[0].card.id, tab)
        return desk.find(name, tab)
