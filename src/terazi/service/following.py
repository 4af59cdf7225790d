"""What follows a changed configuration besides models and keys; ``effects`` says when a change of a key counts."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, TypedDict

from terazi.gateway.seats import Seats
from terazi.service.certificate import Certificate
from terazi.service.config import Config, ServiceTable
from terazi.service.engine_at_hand import Engine, find_engine
from terazi.service.guard import Guard
from terazi.service.lamp import Lamp
from terazi.service.log_output import apply
from terazi.service.up_request import UpRequest
from terazi.service.yard import Yard

_TYPED: Final = "what was given when it was started goes before the file"
_HTTPS: Final = "the service speaks HTTPS from its start to its end, or doesn't"


class Bounds(TypedDict):
    """The dispatcher's limits that are configured."""

    max_queued: int
    max_queued_each: int
    max_wait_s: float


def bounds_of(table: ServiceTable) -> Bounds:
    """As the configuration has them."""
    return {
        "max_queued": table.max_queued,
        "max_queued_each": table.max_queued_each,
        "max_wait_s": table.ready_wait_s,
    }


def price_of(request: UpRequest, config: Config) -> float | None:
    """Of a kWh, as typed or as configured."""
    return config.power.price_per_kwh if request.price_per_kwh is None else request.price_per_kwh


def key_of(request: UpRequest, config: Config) -> str | None:
    """The one for everybody, as typed or as configured."""
    return request.api_key or config.service.key()


class Following:
    """Implements the control's ``Follower`` over the parts of a service.

    Args:
        request: what was typed goes before the file.
        say: tells the person at the terminal.
    """

    def __init__(
        self,
        request: UpRequest,
        *,
        yard: Yard,
        seats: Seats,
        guard: Guard,
        lamp: Lamp,
        certificate: Certificate,
        say: Callable[[str], None],
    ) -> None:
        self._request = request
        self._yard = yard
        self._seats = seats
        self._guard = guard
        self._lamp = lamp
        self._certificate = certificate
        self._say = say
        self._engine: Engine | None = None
        #: What counts now, except for what can't be followed.
        self.config = request.config

    async def check(self, config: Config) -> None:
        """As ``Follower`` has it."""
        await asyncio.to_thread(self._certificate.check, config.service)
        server = config.engines.llama_cpp.server
        self._engine = None
        if server != self.config.engines.llama_cpp.server:
            self._engine = await find_engine(server, needed=True, say=self._say)

    def fixed(self, config: Config) -> Mapping[str, str]:
        """As ``Follower`` has it."""
        request, https = self._request, self._certificate.context is not None
        typed = {"service.api_key": request.api_key, "power.price_per_kwh": request.price_per_kwh}
        found = {key: _TYPED for key, value in typed.items() if value is not None}
        if https != (config.service.tls_cert is not None):
            found |= dict.fromkeys(("service.tls_cert", "service.tls_key"), _HTTPS)
        return found

    def follow(self, config: Config) -> list[str]:
        """As ``Follower`` has it."""
        before, self.config = self.config, config
        self._seats.rebound(**bounds_of(config.service))
        self._guard.reconfigure(config.guard)
        apply(config.log)
        self._yard.price_per_kwh = price_of(self._request, config)
        if self._engine is not None:
            self._yard.use(self._engine)
        renewed = self._certificate.follow(config.service)
        if renewed or before.service.api_key != config.service.api_key:
            self._lamp.light(key_of(self._request, config), self._certificate.fingerprint)
        return ["new connections are shown the renewed certificate"] if renewed else []
