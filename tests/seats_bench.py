"""For tests of seats: calls, and engines that only have a name."""

import itertools
import json

from terazi.gateway.backend import READY, Backend, HeldMemory, ModelCard, Served
from terazi.gateway.call import Call, Caller
from terazi.gateway.in_flight import InFlight
from terazi.gateway.seats import Seats
from terazi.gateway.wire.errors import Api
from terazi.policy.dispatch_messages import ReplicaChanged, WantModel

_serial = itertools.count(1)


def card(name: str, context: int = 4096) -> ModelCard:
    """A model that is nothing but a name and a context length."""
    return ModelCard(
        id=name,
        architecture="llama",
        family="llama",
        parameter_count=None,
        quantisation="Q4_1",
        size_bytes=1,
        context_length=context,
        training_context_length=None,
        embedding_length=None,
        created_s=0,
        modified="1970-01-01T00:00:00+00:00",
        digest="0" * 64,
        capabilities=("completion",),
        engine="none",
    )


class NamedBackend:
    """A replica that is nothing but its name."""

    base_url = "http://127.0.0.1:1"
    api_key = ""
    state = READY
    memory = HeldMemory(size_bytes=0, size_vram_bytes=0)
    in_flight = 0

    def __init__(self, replica: str, model: ModelCard) -> None:
        self.replica = replica
        self.card = model
        self.flight = InFlight()

    async def ready(self) -> None:
        """At once."""


class NamedModel:
    """A model with replicas."""

    state = READY
    closed: str | None = None

    def __init__(self, name: str, replicas: int = 1, context: int = 4096) -> None:
        self.card = card(name, context)
        self.engines: tuple[Backend, ...] = tuple(
            NamedBackend(f"{name}#{i}", self.card) for i in range(1, replicas + 1)
        )


class Models:
    """A directory over them."""

    def __init__(self, *models: NamedModel) -> None:
        self._models = models

    def served(self) -> tuple[Served, ...]:
        """All of them."""
        return self._models

    def find(self, name: str) -> Served | None:
        """By id."""
        return next((m for m in self._models if m.card.id == name), None)


class Wants:
    """A keeper that only listens."""

    def __init__(self) -> None:
        self.heard: list[WantModel] = []

    def want(self, wanted: WantModel) -> None:
        """Remember."""
        self.heard.append(wanted)


def call(
    model: str = "m",
    who: str = "ann",
    *,
    caller: Caller | None = None,
    content: str = "hello",
    arrived: float = 0.0,
    deadline_s: float | None = None,
) -> Call:
    """A call with a new id."""
    fields = {"model": model, "messages": [{"role": "user", "content": content}], "stream": True}
    return Call(
        id=f"r{next(_serial)}",
        api=Api.OPENAI,
        path="/v1/chat/completions",
        body=json.dumps(fields).encode(),
        fields=fields,
        model=model,
        stream=True,
        caller=caller or Caller(name=who),
        deadline_s=deadline_s,
        arrived=arrived,
    )


def opened(seats: Seats, replica: str, *, slots: int = 1, open_: bool = True) -> None:
    """Tell *seats* that it takes requests."""
    seats.tell(ReplicaChanged(replica=replica, model=replica.partition("#")[0], open=open_, slots=slots))
