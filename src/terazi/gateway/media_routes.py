"""OpenAI's endpoints for audio and images, passed through to the model's engine as they are."""

from aiohttp import web

from terazi.gateway.desk import Desk, Tab
from terazi.gateway.operations import register
from terazi.gateway.passed import pass_on
from terazi.gateway.translated import raw_call
from terazi.gateway.wire.errors import Api
from terazi.gateway.wire.multipart import form_field
from terazi.gateway.wire.openai import read_envelope


class MediaRoutes:
    """Handlers of ``/v1/audio`` and ``/v1/images``."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def add_to(self, app: web.Application) -> None:
        """Register the handlers."""
        register(app, self._desk, {"audio": self.forward, "images": self.forward})

    async def forward(self, request: web.Request, tab: Tab) -> web.StreamResponse:
        """Find the model in the body, a form or JSON, and pass it on."""
        desk = self._desk
        body = await desk.read_body(request)
        kind = request.headers.get("Content-Type", "application/json")
        stream = False
        if request.content_type == "multipart/form-data":
            name = form_field(body, kind, "model")
            stream = form_field(body, kind, "stream") == "true"
        else:
            envelope = read_envelope(body)
            name, stream = envelope.model, envelope.stream
        card = desk.find(name, tab).card
        call = raw_call(
            request, tab, api=Api.OPENAI, path=request.path, body=body, card=card, stream=stream, content_type=kind
        )
        return await pass_on(desk, request, tab, call, card)
