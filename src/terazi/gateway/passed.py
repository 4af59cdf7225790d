"""Passes an engine's answer on as it comes, for endpoints that aren't translated."""

from aiohttp import web

from terazi.gateway.backend import ModelCard
from terazi.gateway.call import Call
from terazi.gateway.desk import Desk, Tab, stream_response
from terazi.gateway.translated import public_headers
from terazi.gateway.wire.errors import Fault, WireError, engine_fault, sse_event

#: An engine that hasn't got an endpoint says so.
ABSENT = frozenset({404, 405, 501})


async def pass_on(desk: Desk, request: web.Request, tab: Tab, call: Call, card: ModelCard) -> web.StreamResponse:
    """The engine's answer to *call*, streamed if it streams.

    Raises:
        WireError: 404 if the engine hasn't got the endpoint.
    """
    async with desk.converse(call) as answer:
        head = await answer.head()
        desk.first_byte(call.api, tab)
        if head.status in ABSENT:
            raise WireError(not_offered(card, request.path, engine_fault(head.status, await answer.body())))
        if not head.stream:
            headers = {"Content-Type": head.content_type, **public_headers(head)}
            return web.Response(body=await answer.body(), status=head.status, headers=headers)
        response = stream_response(head.status, head.content_type)
        response.headers.update(public_headers(head))
        await response.prepare(request)
        tab.prepared = True
        try:
            async for chunk in answer:
                await response.write(chunk)
        except WireError as error:
            await response.write(sse_event(error.fault, api=call.api))
        await response.write_eof()
        return response


def not_offered(card: ModelCard, path: str, said: Fault) -> Fault:
    """404: the model's engine hasn't got it; *said* is what the engine answered."""
    message = f"the engine of '{card.id}' ({card.engine}) does not offer {path} for it: {said.message}"
    return Fault(status=404, message=message, kind="not_supported_error", code="not_supported")
