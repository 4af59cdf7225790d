"""The OpenAPI document is true: of the routes that there are, and under requests that somebody else thinks up."""

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from aiohttp import web
from hypothesis import HealthCheck, Phase, settings
from schemathesis import checks as known_checks

from serving import CARD, StubBackend, StubDirectory, client_of, fake_engine, gateway_over, running
from terazi.gateway.app import create_app
from terazi.gateway.front.front import HOT_PATHS
from terazi.gateway.wire.openapi import document
from terazi.gateway.wire.operations import OPERATIONS

pytestmark = pytest.mark.timeout(120)

#: Registered, but not part of what clients are told: CORS, what isn't there, and the local control.
_UNTOLD = re.compile(r"/\{path|/v1/\{path|/api/\{path|/v1/messages/\{path|/terazi/v1/")
#: What needs a library of models.
_LIBRARY = ("/api/pull", "/api/create", "/api/copy", "/api/push", "/api/delete", "/api/blobs")
SCHEMA = schemathesis.openapi.from_dict(document("0"))


def test_the_table_is_what_is_registered() -> None:
    app = create_app(StubDirectory([StubBackend(1)]))
    registered = {(route.method, _path(route)) for route in app.router.routes() if not _UNTOLD.match(_path(route))}
    registered |= {("POST", path) for path in HOT_PATHS}
    told = {(one.method, re.sub(r"\{(\w+)(?::[^}]*)?\}", r"{\1}", one.path)) for one in OPERATIONS}
    told |= {("HEAD", path) for method, path in told if method == "GET"}
    assert told == registered


def _path(route: web.AbstractRoute) -> str:
    return route.resource.canonical if route.resource is not None else ""


async def test_the_document_is_served() -> None:
    async with (
        gateway_over(StubBackend(1)) as gateway,
        client_of(gateway) as client,
        client.get("/openapi.json") as reply,
    ):
        told = await reply.json()
    assert told["openapi"].startswith("3.1")
    assert told["paths"].keys() == document("0")["paths"].keys()  # type: ignore[attr-defined]
    ids = [one["operationId"] for path in told["paths"].values() for one in path.values()]
    assert len(ids) == len(set(ids))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A gateway over a fake engine, in a thread of its own: schemathesis waits for each answer."""
    started, stop = threading.Event(), asyncio.Event()
    found: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        flags = ("--embeddings", "--reranking", "--fake-tokens", "2", "--fake-token-delay-s", "0")
        async with running(fake_engine(*flags)) as engine, gateway_over(StubBackend(engine.port)) as gateway:
            found.append(gateway.address)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(30)
    yield found[0]
    loops[0].call_soon_threadsafe(stop.set)
    thread.join(30)


@SCHEMA.parametrize()
@settings(
    max_examples=3,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_whatever_is_sent_is_answered_as_documented(case: schemathesis.Case[Any], address: str) -> None:
    if isinstance(case.body, dict) and "model" in case.body and isinstance(case.body["model"], str):
        case.body["model"] = CARD.id  # a request for a model that isn't there ends too soon to find much
    answer = case.call(base_url=address, timeout=10)
    checks = [known_checks.content_type_conformance, known_checks.response_schema_conformance]
    if not (answer.status_code == 501 and case.operation.path.startswith(_LIBRARY)):  # this gateway has none
        checks.append(known_checks.not_a_server_error)
    case.validate_response(answer, checks=checks)
