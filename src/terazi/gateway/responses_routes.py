"""OpenAI's ``/v1/responses``, answered by the engine's chat."""

import json
import secrets
import time

from aiohttp import web

from terazi.gateway.desk import Desk, Tab, json_response
from terazi.gateway.operations import register
from terazi.gateway.response_shelf import ResponseShelf
from terazi.gateway.translated import (
    CHAT_PATH,
    call_for,
    engine_extras,
    left_out_headers,
    response_headers,
    stream_chat,
    whole_chat,
)
from terazi.gateway.wire.bodies import read_body
from terazi.gateway.wire.errors import Api, Fault, WireError
from terazi.gateway.wire.modalities import check_modalities
from terazi.gateway.wire.ollama_request import with_defaults
from terazi.gateway.wire.responses_answer import ResponseTranslator, echo, encode
from terazi.gateway.wire.responses_request import (
    Item,
    ResponsesBody,
    chat_fields,
    custom_tools,
    items_of,
    left_out,
)


class ResponsesRoutes:
    """The handler of ``/v1/responses`` and what it remembers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._shelf = ResponseShelf()

    def add_to(self, app: web.Application) -> None:
        """Register the handlers."""
        register(app, self._desk, {"responses": self.respond})

    async def respond(self, request: web.Request, tab: Tab) -> web.StreamResponse:
        """``POST /v1/responses``."""
        desk = self._desk
        raw = await desk.read_body(request)
        body = read_body(ResponsesBody, raw)
        card = desk.find(body.model, tab).card
        items = [*self._earlier(body.previous_response_id), *items_of(body.input)]
        fields = chat_fields(body, items, model=card.id)
        if (preset := desk.defaults(body.model)) is not None:
            fields = with_defaults(fields, preset)
        check_modalities(fields, card)
        fields |= engine_extras(card, counted=False)
        call = call_for(request, tab, api=Api.OPENAI, path=CHAT_PATH, fields=fields, card=card, stream=True)
        stored = body.store is not False
        translator = ResponseTranslator(
            key=secrets.token_hex(12),
            created_s=int(time.time()),
            echo=echo(json.loads(raw), model=body.model or card.id, stored=stored),
            custom=custom_tools(body),
        )
        response: web.StreamResponse
        if body.stream:
            response = await stream_chat(
                desk,
                request,
                tab,
                call,
                translator,
                encode=encode,
                fail=lambda fault: encode(translator.fail(fault)),
                ping=b": ping\n\n",
                headers=left_out_headers(left_out(body)),
            )
        else:
            _, head = await whole_chat(desk, tab, call, translator)
            response = json_response(translator.response())
            response.headers.update(response_headers(head, left_out(body)))
        if stored and translator.output:
            said = [Item.model_validate(item) for item in translator.output]
            self._shelf.put(translator.id, [*items, *said])
        return response

    def _earlier(self, response_id: str | None) -> list[Item]:
        if response_id is None:
            return []
        items = self._shelf.get(response_id)
        if items is None:
            message = (
                f"previous_response_id: '{response_id}' is not remembered (any more); "
                "send the whole conversation as 'input'"
            )
            raise WireError(Fault(status=400, message=message, code="previous_response_not_found"))
        return items
