"""The least that a proxy in Python on uvloop can do: bytes go through unseen, one new connection for each request.

    python benchmarks/gateway_floor.py ENGINE_PORT      # prints its own

What the gateway costs above this is its own work; what this costs above nginx is the language and the loop.
"""

import asyncio
import sys
from typing import cast

import uvloop


class Upstream(asyncio.Protocol):
    """One connection to the engine."""

    def __init__(self, client: "Client", request: bytes) -> None:
        self.client = client
        self.request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what was asked."""
        cast(asyncio.Transport, transport).write(self.request)

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        self.client.transport.write(data)


class Client(asyncio.Protocol):
    """One client; it sends a request in one piece, and the next when it has its answer."""

    transport: asyncio.Transport
    port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """A request."""
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(loop.create_connection(lambda: Upstream(self, data), "127.0.0.1", self.port))


async def main(engine: int) -> None:
    """Serve until ended."""
    Client.port = engine
    server = await asyncio.get_running_loop().create_server(Client, "127.0.0.1", 0, backlog=16384)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1])))
