"""Registers handlers by the table of endpoints, and serves the document that is made of it."""

from collections.abc import Mapping

from aiohttp import web

from terazi import __version__
from terazi.gateway.desk import Desk, Handler, Tab, json_response
from terazi.gateway.wire.openapi import document
from terazi.gateway.wire.operations import OPERATIONS


def register(app: web.Application, desk: Desk, handlers: Mapping[str, Handler]) -> None:
    """Register each handler for all operations of its key."""
    for one in OPERATIONS:
        handler = handlers.get(one.key)
        if handler is not None:
            answer = desk.route(one.api, handler, public=one.public)
            if one.method == "GET":
                app.router.add_get(one.path, answer)  # and HEAD
            else:
                app.router.add_route(one.method, one.path, answer)
    unknown = set(handlers) - {one.key for one in OPERATIONS}
    if unknown:
        raise ValueError(f"no operation has the key {', '.join(sorted(unknown))}")


class DocumentRoutes:
    """The handler of ``/openapi.json``."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def add_to(self, app: web.Application) -> None:
        """Register the handler."""
        register(app, self._desk, {"document": self.document})

    async def document(self, _request: web.Request, _tab: Tab) -> web.Response:
        """``GET /openapi.json``."""
        return json_response(document(__version__))
