"""Ollama's endpoints that change what is served: pull, delete, copy, create and the files that create is given."""

import re
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Final, TypeVar

from aiohttp import web

from terazi.errors import TeraziError, UsageError
from terazi.gateway.access import is_loopback
from terazi.gateway.desk import Desk, Tab, json_response, stream_response
from terazi.gateway.library import ForeignModelError, Library, NewModel, NoSuchModelError, Progress
from terazi.gateway.ollama_relay import NDJSON
from terazi.gateway.operations import register
from terazi.gateway.wire import ollama
from terazi.gateway.wire.bodies import read_body
from terazi.gateway.wire.errors import Fault, WireError, bad_request, ndjson_line
from terazi.gateway.wire.ollama_bodies import CopyBody, CreateBody, NameBody

T = TypeVar("T")

_DIGEST: Final = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")


class OllamaLibraryRoutes:
    """Handlers; without a library each of them says that there is none."""

    def __init__(self, desk: Desk, library: Library | None) -> None:
        self._desk = desk
        self._held = library

    def add_to(self, app: web.Application) -> None:
        """Register the handlers."""
        handlers = {
            "pull": self.pull,
            "delete": self.delete,
            "copy": self.copy,
            "create": self.create,
            "hasBlob": self.has_blob,
            "addBlob": self.add_blob,
            "push": self.push,
        }
        register(app, self._desk, handlers)

    def _library(self, tab: Tab) -> Library:
        if self._held is None:
            raise WireError(ollama.not_offered("this", "the service keeps no models of its own"))
        if tab.caller.models is not None:
            message = f"the key '{tab.caller.name}' is for certain models, and changes none"
            raise WireError(Fault(status=403, message=message, kind="permission_error"))
        return self._held

    async def pull(self, request: web.Request, tab: Tab) -> web.StreamResponse:
        """``POST /api/pull``: progress as it comes, or one word at the end."""
        body = read_body(NameBody, await self._desk.read_body(request))
        steps = self._library(tab).pull(body.wanted, local=is_loopback(request.remote or ""))
        return await self._tell(request, tab, steps, stream=body.stream is not False)

    async def create(self, request: web.Request, tab: Tab) -> web.StreamResponse:
        """``POST /api/create``: a further name with defaults, or a model of an uploaded file."""
        body = read_body(CreateBody, await self._desk.read_body(request))
        wanted = _new_model(body)
        return await self._tell(request, tab, _create(self._library(tab), wanted), stream=body.stream is not False)

    async def delete(self, request: web.Request, tab: Tab) -> web.Response:
        """``DELETE /api/delete``."""
        body = read_body(NameBody, await self._desk.read_body(request))
        await _told(self._library(tab).delete(body.wanted))
        return web.Response()

    async def copy(self, request: web.Request, tab: Tab) -> web.Response:
        """``POST /api/copy``."""
        body = read_body(CopyBody, await self._desk.read_body(request))
        await _told(self._library(tab).copy(body.source, body.destination))
        return web.Response()

    async def push(self, request: web.Request, _tab: Tab) -> web.Response:
        """``POST /api/push``: no."""
        raise WireError(ollama.not_offered(request.path, "models are pulled and served, not published"))

    async def has_blob(self, request: web.Request, tab: Tab) -> web.Response:
        """``HEAD /api/blobs/sha256:…``."""
        there = await _told(self._library(tab).has_blob(_digest(request)))
        return web.Response(status=200 if there else 404)

    async def add_blob(self, request: web.Request, tab: Tab) -> web.Response:
        """``POST /api/blobs/sha256:…``: a file no larger than any other request."""
        length = request.content_length
        await _told(self._library(tab).add_blob(_digest(request), request.content.iter_any(), length))
        return web.Response(status=201)

    async def _tell(
        self, request: web.Request, tab: Tab, steps: AsyncGenerator[Progress], *, stream: bool
    ) -> web.StreamResponse:
        """Each step as a line. What goes wrong before the first is a status, and after it the last line."""
        response = stream_response(200, NDJSON)
        try:
            async with aclosing(steps):  # a client that leaves shall be gone at once: others may follow a pull too
                async for step in steps:
                    if not stream:
                        continue
                    if not tab.prepared:
                        await response.prepare(request)
                        tab.prepared = True
                    await response.write(ollama.progress_line(step))
        except TeraziError as error:
            fault = _fault(error)
            if not tab.prepared:
                raise WireError(fault) from error
            await response.write(ndjson_line(fault))
        if not stream:
            return json_response({"status": "success"})
        await response.write_eof()
        return response


async def _create(library: Library, wanted: NewModel) -> AsyncGenerator[Progress]:
    yield Progress(status="reading model metadata")
    await library.create(wanted)
    yield Progress(status="writing manifest")
    yield Progress(status="success")


def _new_model(body: CreateBody) -> NewModel:
    """What *body* asks for.

    Raises:
        WireError: 400, something that isn't done here.
    """
    if body.quantize:
        raise WireError(bad_request("'quantize' is not offered: give a file that is quantised already"))
    if body.template:
        raise WireError(bad_request("'template' can't be given: the model's own is used"))
    if body.adapters:
        raise WireError(bad_request("'adapters' are not offered"))
    if body.modelfile or body.path:
        raise WireError(bad_request("'modelfile' and 'path' are not read: give 'from', 'system' and 'parameters'"))
    if bool(body.from_) is bool(body.files):
        raise WireError(bad_request("give one of 'from' (a model that is served) and 'files'"))
    return NewModel(
        name=body.wanted,
        base=body.from_ or None,
        files=body.files or {},
        system=body.system,
        parameters=body.parameters or {},
        messages=tuple(message.model_dump(exclude_none=True) for message in body.messages or ()),
    )


async def _told(work: Awaitable[T]) -> T:
    try:
        return await work
    except TeraziError as error:
        raise WireError(_fault(error)) from error


def _fault(error: TeraziError) -> Fault:
    message = f"{error.message} ({error.hint})"
    if isinstance(error, NoSuchModelError):
        return Fault(status=404, message=error.message, code="model_not_found")
    if isinstance(error, ForeignModelError):
        return Fault(status=403, message=message, kind="permission_error")
    return Fault(status=400 if isinstance(error, UsageError) else 500, message=message)


def _digest(request: web.Request) -> str:
    found = _DIGEST.fullmatch(request.match_info["digest"])
    if found is None:
        raise WireError(bad_request("a digest is 'sha256:' and 64 hexadecimal digits"))
    return f"sha256:{found[1].lower()}"
