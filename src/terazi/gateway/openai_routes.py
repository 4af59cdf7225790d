"""OpenAI's endpoints that ask nothing of an engine; those that do are ``gateway.front``'s."""

from aiohttp import web

from terazi.gateway.desk import Desk, Tab, fault_response, json_response
from terazi.gateway.operations import register
from terazi.gateway.shown import Shown, shown, shown_as
from terazi.gateway.wire import anthropic_answer
from terazi.gateway.wire.errors import Api, WireError
from terazi.gateway.wire.openai import model_entry


class OpenAiRoutes:
    """Handlers of ``/v1``."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def add_to(self, app: web.Application) -> None:
        """Register the handlers."""
        register(app, self._desk, {"models": self.models, "model": self.model})

    async def models(self, request: web.Request, tab: Tab) -> web.Response:
        """What is served."""
        desk = self._desk
        found = shown(desk.listed(tab.caller), desk.library, desk.directory.find)
        if _is_anthropic(request):
            return json_response(anthropic_answer.model_list([one.card for one in found]))
        return json_response({"object": "list", "data": [_entry(one) for one in found]})

    async def model(self, request: web.Request, tab: Tab) -> web.Response:
        """One of them; ids hold slashes."""
        name = request.match_info["id"]
        try:
            found = self._desk.find(name, tab)
        except WireError as error:
            if _is_anthropic(request):
                return fault_response(Api.ANTHROPIC, error.fault)
            raise
        one = shown_as(name, found, self._desk.library)
        return json_response(anthropic_answer.model_entry(one.card) if _is_anthropic(request) else _entry(one))


def _entry(one: Shown) -> dict[str, object]:
    """A name's entry says whose it is in the field that OpenAI has had for tuned models, and vLLM for adapters."""
    entry = model_entry(one.card)
    return entry if one.preset is None else {**entry, "parent": one.base.id}


def _is_anthropic(request: web.Request) -> bool:
    """Anthropic's clients ask for models on the same path, and say so in a header that they always send."""
    return "anthropic-version" in request.headers
