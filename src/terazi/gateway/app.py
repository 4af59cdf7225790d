"""Puts the gateway's application together."""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from aiohttp import web

from terazi.gateway.access import Keyring, origin_allowed
from terazi.gateway.account import Bookkeeper, Reader
from terazi.gateway.anthropic_routes import AnthropicRoutes
from terazi.gateway.backend import Control, Directory
from terazi.gateway.broker import UNREACHED_S, Broker
from terazi.gateway.call import Caller
from terazi.gateway.control_routes import ControlRoutes, HealthRoutes
from terazi.gateway.desk import Desk, Tab
from terazi.gateway.figures import Source
from terazi.gateway.journal import Journal
from terazi.gateway.library import Library
from terazi.gateway.links import GRACE_S, Links
from terazi.gateway.llama_cpp_routes import LlamaCppRoutes
from terazi.gateway.media_routes import MediaRoutes
from terazi.gateway.metrics import Metrics
from terazi.gateway.ollama_library_routes import OllamaLibraryRoutes
from terazi.gateway.ollama_routes import OllamaRoutes
from terazi.gateway.openai_routes import OpenAiRoutes
from terazi.gateway.operations import DocumentRoutes
from terazi.gateway.passing import PassingSeats
from terazi.gateway.ports import Seats
from terazi.gateway.relay import HEARTBEAT_S
from terazi.gateway.rerank_routes import RerankRoutes
from terazi.gateway.responses_routes import ResponsesRoutes
from terazi.gateway.tracing import Tracing, traceparent_of
from terazi.gateway.traffic import Traffic
from terazi.gateway.wire.errors import Fault, WireError, api_of

#: Where the application keeps its desk, for ``gateway.server``.
DESK: Final = web.AppKey("desk", Desk)
MAX_BODY_BYTES: Final = 16 * 1024 * 1024


def create_app(
    directory: Directory,
    *,
    api_key: str | None = None,
    keys: Mapping[str, Caller] | None = None,
    control: Control | None = None,
    control_token: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    allowed_origins: Collection[str] = (),
    ready_wait_s: float = 60.0,
    seats: Seats | None = None,
    heartbeat_s: float = HEARTBEAT_S,
    unreached_s: float = UNREACHED_S,
    library: Library | None = None,
    keyring: Keyring | None = None,
    sources: Collection[Source] = (),
    readers: Collection[Reader] = (),
    journal: Journal | None = None,
    paused: Callable[[], bool] = lambda: False,
) -> web.Application:
    """The gateway over *directory*.

    Args:
        api_key, keys: what clients must present: one for everybody, and those with holders. Without any, the
            service is for this machine only, and then only for requests whose ``Host`` is localhost and whose
            ``Origin``, if there is one, is a page of this machine.
        control, control_token: the local control API; both or neither.
        max_body_bytes: larger requests get a 413.
        allowed_origins: further origins whose pages may use the service, e.g. ``https://chat.example.org``.
        ready_wait_s: how long a request may wait for an engine that is loading or restarting.
        seats: who gives out places in engines; if None, everybody has one in the first engine that is ready.
        heartbeat_s: a stream that has nothing to say says so this often.
        unreached_s: how long a request tries to reach an engine that is said to be ready.
        library: of the models that clients fetch and make; None doesn't offer that.
        journal: of what is accepted, opened and closed by whoever gives it; in memory only if None.
        keyring: instead of *api_key* and *keys*, and changed by whoever gives it.
        sources: of figures for the metrics.
        paused: whether new requests are turned away just now, for ``/healthz``.
        readers: shown each request that is over, after the metrics; with ``Tracing`` among them engines are told of
            the traces too.
    """
    metrics = Metrics(directory, sources, process=True)
    seats = seats or PassingSeats(directory, ready_wait_s=ready_wait_s)
    traffic, links = Traffic(seats.drain), Links(on_retry=metrics.retries.inc, grace_s=min(GRACE_S, unreached_s))
    book = Bookkeeper((metrics, *readers))
    metrics.before = book.flush
    holders = {**({api_key: Caller(name="default")} if api_key else {}), **(keys or {})}
    desk = Desk(
        directory=directory,
        broker=Broker(
            seats,
            links,
            traffic,
            journal=journal,
            account=book,
            heartbeat_s=heartbeat_s,
            unreached_s=unreached_s,
            trace=traceparent_of if any(isinstance(reader, Tracing) for reader in readers) else None,
        ),
        traffic=traffic,
        metrics=metrics,
        keyring=keyring or Keyring(holders),
        allowed_origins=frozenset(allowed_origins),
        max_body_bytes=max_body_bytes,
        library=library,
    )
    app = web.Application(client_max_size=max_body_bytes)
    app[DESK] = desk

    async def close(_: web.Application) -> None:
        links.close()
        book.close()

    app.on_cleanup.append(close)
    app.on_response_prepare.append(_add_cors)
    OpenAiRoutes(desk).add_to(app)
    AnthropicRoutes(desk).add_to(app)
    ResponsesRoutes(desk).add_to(app)
    OllamaRoutes(desk, library).add_to(app)
    OllamaLibraryRoutes(desk, library).add_to(app)
    RerankRoutes(desk).add_to(app)
    MediaRoutes(desk).add_to(app)
    LlamaCppRoutes(desk).add_to(app)
    HealthRoutes(desk, paused).add_to(app)
    DocumentRoutes(desk).add_to(app)
    if control is not None and control_token:
        ControlRoutes(desk, control, control_token).add_to(app)
    for prefix in ("/v1/messages/", "/v1/", "/api/", "/"):  # the router takes the longest one, in whatever order
        path = prefix + "{path:.*}"
        app.router.add_route("OPTIONS", path, _preflight)
        app.router.add_route("*", path, desk.route(api_of(prefix), _not_found))
    return app


async def _not_found(request: web.Request, _tab: Tab) -> web.StreamResponse:
    message = f"there is no {request.method} {request.path} here"
    raise WireError(Fault(status=404, message=message, code="not_found"))


async def _preflight(request: web.Request) -> web.Response:
    """A browser's question before a request from a page; ``_add_cors`` writes the answer's other half."""
    # No resource here answers OPTIONS itself, so a request without an Origin is refused too.
    origin = request.headers.get("Origin", "")
    if not origin_allowed(origin, request.app[DESK].allowed_origins):
        return web.Response(status=403, text="this origin is not allowed")
    asked = request.headers.get("Access-Control-Request-Headers", "Authorization, Content-Type")
    return web.Response(
        status=204,
        headers={
            "Access-Control-Allow-Methods": "GET, POST, HEAD, OPTIONS",
            "Access-Control-Allow-Headers": asked,
            "Access-Control-Max-Age": "600",
        },
    )


async def _add_cors(request: web.Request, response: web.StreamResponse) -> None:
    origin = request.headers.get("Origin")
    if origin is not None and origin_allowed(origin, request.app[DESK].allowed_origins):
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Vary"] = "Origin"
