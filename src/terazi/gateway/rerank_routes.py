"""Reranking, answered by the engine's ``/v1/rerank``."""

from aiohttp import web

from terazi.gateway.desk import Desk, Tab, json_response
from terazi.gateway.operations import register
from terazi.gateway.passed import ABSENT, not_offered
from terazi.gateway.translated import ask, call_for
from terazi.gateway.wire.bodies import read_body
from terazi.gateway.wire.errors import Api, WireError, engine_fault
from terazi.gateway.wire.rerank import ENGINE_PATH, RerankBody, answer, documents_of, engine_fields


class RerankRoutes:
    """The handler of ``/v1/rerank`` and of its other names."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def add_to(self, app: web.Application) -> None:
        """Register the handlers."""
        register(app, self._desk, {"rerank": self.rerank})

    async def rerank(self, request: web.Request, tab: Tab) -> web.Response:
        """``POST /v1/rerank``."""
        desk = self._desk
        body = read_body(RerankBody, await desk.read_body(request))
        card = desk.find(body.model or request.query.get("model"), tab).card
        texts = documents_of(body)
        fields = engine_fields(body, texts, model=card.id)
        call = call_for(request, tab, api=Api.OPENAI, path=ENGINE_PATH, fields=fields, card=card)
        status, raw = await ask(desk, call)
        if status in ABSENT:
            raise WireError(not_offered(card, request.path, engine_fault(status, raw)))
        if status != 200:
            raise WireError(engine_fault(status, raw))
        desk.first_byte(Api.OPENAI, tab)
        return json_response(answer(body, texts, raw, model=body.model or card.id))
