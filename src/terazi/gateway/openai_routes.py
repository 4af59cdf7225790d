"""OpenAI's endpoints that ask nothing of an engine; those that do are ``gateway.front``'s."""

from aiohttp import web

from terazi.gateway.desk import Desk, Tab, json_response
from terazi.gateway.wire.errors import Api, WireError, unknown_model
from terazi.gateway.wire.openai import model_entry, model_list


class OpenAiRoutes:
    """Handlers of ``/v1``."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def add_to(self, app: web.Application) -> None:
        """Register the handlers."""
        route = self._desk.route
        app.router.add_get("/v1/models", route(Api.OPENAI, self.models))
        app.router.add_get("/v1/models/{id:.+}", route(Api.OPENAI, self.model))

    async def models(self, _request: web.Request, _tab: Tab) -> web.Response:
        """What is served."""
        return json_response(model_list([model.card for model in self._desk.directory.served()]))

    async def model(self, request: web.Request, _tab: Tab) -> web.Response:
        """One of them; ids hold slashes."""
        name = request.match_info["id"]
        found = self._desk.directory.find(name)
        if found is None:
            raise WireError(unknown_model(name, [m.card.id for m in self._desk.directory.served()]))
        return json_response(model_entry(found.card))
