"""OpenAI's endpoints that ask nothing of an engine; those that do are ``gateway.front``'s."""

from aiohttp import web

from terazi.gateway.desk import Desk, Tab, fault_response, json_response
from terazi.gateway.operations import register
from terazi.gateway.wire import anthropic_answer
from terazi.gateway.wire.errors import Api, WireError
from terazi.gateway.wire.openai import model_entry, model_list


class OpenAiRoutes:
    """Handlers of ``/v1``."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def add_to(self, app: web.Application) -> None:
        """Register the handlers."""
        register(app, self._desk, {"models": self.models, "model": self.model})

    async def models(self, request: web.Request, tab: Tab) -> web.Response:
        """What is served."""
        cards = [model.card for model in self._desk.listed(tab.caller)]
        return json_response(anthropic_answer.model_list(cards) if _is_anthropic(request) else model_list(cards))

    async def model(self, request: web.Request, tab: Tab) -> web.Response:
        """One of them; ids hold slashes."""
        try:
            found = self._desk.find(request.match_info["id"], tab)
        except WireError as error:
            if _is_anthropic(request):
                return fault_response(Api.ANTHROPIC, error.fault)
            raise
        entry = anthropic_answer.model_entry if _is_anthropic(request) else model_entry
        return json_response(entry(found.card))


def _is_anthropic(request: web.Request) -> bool:
    """Anthropic's clients ask for models on the same path, and say so in a header that they always send."""
    return "anthropic-version" in request.headers
