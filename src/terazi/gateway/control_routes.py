"""Terazi's own endpoints: health, metrics, and the local control that ``terazi ps``, ``stop`` and ``logs`` use."""

import asyncio
import json
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from terazi.errors import TeraziError, UsageError
from terazi.gateway.access import same_secret
from terazi.gateway.backend import Control
from terazi.gateway.desk import Desk, Tab, json_response, stream_response
from terazi.gateway.operations import register
from terazi.gateway.wire.errors import Api, Fault, WireError, bad_request, unauthorised

#: The header that carries the control token.
TOKEN_HEADER = "X-Terazi-Token"  # noqa: S105 - a header's name, not a secret
_MOST_LINES = 100_000


class HealthRoutes:
    """``/healthz``, ``/livez`` and ``/metrics``.

    Args:
        paused: whether new requests are turned away just now, whatever they ask for.
    """

    def __init__(self, desk: Desk, paused: Callable[[], bool] = lambda: False) -> None:
        self._desk = desk
        self._paused = paused

    def add_to(self, app: web.Application) -> None:
        """Register the handlers."""
        register(app, self._desk, {"health": self.health, "alive": self.alive, "metrics": self.metrics})

    async def health(self, request: web.Request, tab: Tab) -> web.Response:
        """200 while requests are taken, 503 while all are turned away; each model's state, for who may know it.

        A model that is cold or loading takes requests: they wait for it.
        """
        status = self._status()
        body: dict[str, object] = {"status": status}
        if self._desk.keyring.caller(request.headers) is not None:
            listed = self._desk.listed(tab.caller)
            body["models"] = {model.card.id: model.state for model in listed}
            if closed := {model.card.id: model.closed for model in listed if model.closed is not None}:
                body["closed"] = closed
        return json_response(body, status=200 if status == "ok" else 503)

    def _status(self) -> str:
        if self._desk.traffic.draining:
            return "draining"
        if self._paused():
            return "paused"
        served = self._desk.directory.served()
        return "unavailable" if served and all(model.closed is not None for model in served) else "ok"

    async def alive(self, _request: web.Request, _tab: Tab) -> web.Response:
        """200: the service itself runs. What is wrong with a model, to start the service anew would not mend."""
        return json_response({"status": "alive"})

    async def metrics(self, _request: web.Request, _tab: Tab) -> web.Response:
        """Prometheus's text format."""
        return web.Response(body=self._desk.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


class ControlRoutes:
    """``/terazi/v1``. The token stands in for the API key here; whoever can read it may stop the service."""

    def __init__(self, desk: Desk, control: Control, token: str) -> None:
        self._desk = desk
        self._control = control
        self._token = token

    def add_to(self, app: web.Application) -> None:
        """Register the handlers."""
        route = self._desk.route
        app.router.add_get("/terazi/v1/ps", route(Api.OWN, self.ps, public=True))
        app.router.add_post("/terazi/v1/stop", route(Api.OWN, self.stop, public=True))
        app.router.add_post("/terazi/v1/load", route(Api.OWN, self.load, public=True))
        app.router.add_post("/terazi/v1/reload", route(Api.OWN, self.reload, public=True))
        app.router.add_get("/terazi/v1/logs", route(Api.OWN, self.logs, public=True))

    def _check(self, request: web.Request) -> None:
        if not same_secret(request.headers.get(TOKEN_HEADER, ""), self._token):
            raise WireError(unauthorised())

    async def ps(self, request: web.Request, _tab: Tab) -> web.Response:
        """The running service."""
        self._check(request)
        return json_response(await self._control.snapshot())

    async def stop(self, request: web.Request, _tab: Tab) -> web.Response:
        """Stop a model (``{"model": "…"}``), or the service (``{}``)."""
        self._check(request)
        model = await self._model(request)
        try:
            # Shielded: a `terazi stop` that is interrupted must not leave an engine half stopped.
            await asyncio.shield(self._control.stop(model))
        except TeraziError as error:
            raise _told(error) from error
        return json_response({"stopped": model}, status=202)

    async def load(self, request: web.Request, _tab: Tab) -> web.Response:
        """Bring a model into memory (``{"model": "…"}``); answers when it is there. It goes on if nobody waits."""
        self._check(request)
        model = await self._model(request)
        if model is None:
            raise WireError(bad_request("'model' is missing"))
        try:
            await asyncio.shield(self._control.load(model))
        except TeraziError as error:
            raise _told(error) from error
        return json_response({"loaded": model})

    async def reload(self, request: web.Request, _tab: Tab) -> web.Response:
        """Read the configuration again, and say what has changed."""
        self._check(request)
        try:
            changes = await asyncio.shield(self._control.reload())
        except TeraziError as error:
            raise _told(error, status=400) from error
        return json_response({"changes": changes})

    async def _model(self, request: web.Request) -> str | None:
        raw = await self._desk.read_body(request)
        try:
            body = json.loads(raw or b"{}")
        except (ValueError, RecursionError) as problem:
            raise WireError(bad_request("the body is not valid JSON")) from problem
        model = body.get("model") if isinstance(body, dict) else body
        if model is not None and not isinstance(model, str):
            raise WireError(bad_request("'model' must be a text"))
        return model

    async def logs(self, request: web.Request, tab: Tab) -> web.StreamResponse:
        """The last lines as text; with ``follow=1`` also those that come."""
        self._check(request)
        model = request.query.get("model") or None
        try:
            lines = min(int(request.query.get("lines", "100")), _MOST_LINES)
        except ValueError as problem:
            raise WireError(bad_request("'lines' must be a number")) from problem
        try:
            said = self._control.logs(model, lines)
        except TeraziError as error:
            raise _told(error) from error
        response = stream_response(200, "text/plain; charset=utf-8")
        await response.prepare(request)
        tab.prepared = True
        await response.write("".join(f"{line}\n" for line in said).encode())
        if request.query.get("follow") in {"1", "true"}:
            async for line in self._control.follow(model):
                await response.write(f"{line}\n".encode())
        await response.write_eof()
        return response


def _told(error: TeraziError, *, status: int | None = None) -> WireError:
    status = status or (404 if isinstance(error, UsageError) else 503)
    return WireError(Fault(status=status, message=f"{error.message} (hint: {error.hint})"))
