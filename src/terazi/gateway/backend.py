"""What the gateway needs from the rest of the program, as Protocols that the composition root fulfils.

A ``ModelCard`` says what a model is, ``Served`` is a model that requests may name, loaded or not, a ``Backend`` is
one engine that serves one (a replica), a ``Directory`` holds them, and ``Control`` is what ``terazi ps``, ``stop``
and ``logs`` ask for.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from terazi.gateway.in_flight import InFlight

#: The lifecycle state in which a backend answers at once; in any other one ``Backend.ready`` is awaited.
READY: Final = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What clients are told about a model. An unknown figure is ``None`` and is then left out.

    Args:
        id: the name that clients use; it may hold ``/`` and ``:``.
        aliases: further names that find the model.
        quantisation: the file's own word for it, e.g. ``Q4_K_M``.
        size_bytes: of all parts on disk.
        context_length: tokens that one request may use (per slot).
        training_context_length: tokens that the model was trained for.
        created_s: Unix seconds; ``modified`` is the same kind of moment in ISO 8601 with an offset.
        digest: 64 hexadecimal digits that name the content.
        capabilities: Ollama's words: ``completion``, ``tools``, ``embedding``, ``thinking``, ``vision``.
        model_info: header keys and values for ``/api/show``.
        template: the chat template's text.
        engine: which engine serves it.
    """

    id: str
    aliases: tuple[str, ...] = ()
    architecture: str
    family: str
    parameter_count: int | None
    quantisation: str | None
    size_bytes: int | None
    context_length: int | None
    training_context_length: int | None
    embedding_length: int | None
    created_s: int
    modified: str
    digest: str
    capabilities: tuple[str, ...]
    model_info: Mapping[str, object] = field(default_factory=dict)
    template: str | None = None
    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """What a backend holds, by its plan or by the engine's own report: in all, and of it on accelerators."""

    size_bytes: int
    size_vram_bytes: int


class Backend(Protocol):
    """One engine that serves one model: a replica of it."""

    @property
    def replica(self) -> str:
        """Its name, unique in the service: the dispatcher's ``replica``, the keeper's ``unit``."""
        ...

    @property
    def card(self) -> ModelCard:
        """What it serves."""
        ...

    @property
    def base_url(self) -> str:
        """Where the engine listens now, without a trailing slash; it may change over a restart."""
        ...

    @property
    def api_key(self) -> str:
        """The engine's own key, which no client ever sees."""
        ...

    @property
    def state(self) -> str:
        """The lifecycle state; ``READY`` means that it answers now."""
        ...

    @property
    def memory(self) -> HeldMemory:
        """What it holds."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests that are there: ``flight``'s count."""
        ...

    async def ready(self) -> None:
        """Wait until it answers. It starts nothing and may be cancelled freely.

        Raises:
            EngineError: it failed or was stopped, and nobody is starting it again.
        """
        ...

    @property
    def flight(self) -> InFlight:
        """Where each request is counted while it is there, so that stopping the engine can wait for it."""
        ...


class Served(Protocol):
    """A model that requests may name, whether an engine has it in memory now or not."""

    @property
    def card(self) -> ModelCard:
        """What it is."""
        ...

    @property
    def state(self) -> str:
        """That of its readiest engine; ``cold`` if none of them runs."""
        ...

    @property
    def closed(self) -> str | None:
        """Why it takes no requests now; None if it does, be it that they wait for an engine."""
        ...

    @property
    def engines(self) -> tuple[Backend, ...]:
        """Its replicas, running or not; at least one."""
        ...


class Directory(Protocol):
    """All models."""

    def served(self) -> tuple[Served, ...]:
        """Each of them, in the order in which they are listed."""
        ...

    def find(self, name: str) -> Served | None:
        """The model that a client means by *name*; ``find_served`` has the rule."""
        ...


class Control(Protocol):
    """What the local commands ask of the running service."""

    async def snapshot(self) -> dict[str, object]:
        """The running service as JSON: models, states, memory, addresses."""
        ...

    async def stop(self, model: str | None) -> None:
        """Stop one model until it is loaded; ``None`` asks the whole service to end, and returns before it has.

        Raises:
            UsageError: there is no such model.
        """
        ...

    async def load(self, model: str) -> None:
        """Bring one model into memory; returns when it answers.

        Raises:
            UsageError: there is no such model.
            ServiceError: it can't be loaded now.
        """
        ...

    async def reload(self) -> list[str]:
        """Read the configuration again and apply it; a sentence for each change.

        Raises:
            TeraziError: something in it is wrong; nothing has changed.
        """
        ...

    def logs(self, model: str | None, lines: int) -> list[str]:
        """The last *lines* of an engine's log; ``None`` is the only model, or all of them.

        Raises:
            UsageError: there is no such model.
        """
        ...

    def follow(self, model: str | None) -> AsyncIterator[str]:
        """Lines of the log as they come, without end."""
        ...


S = TypeVar("S", bound=Served)


def find_served(served: Iterable[S], name: str) -> S | None:
    """The model whose id or alias is *name*; ``:latest`` may be there or missing, as Ollama has it.

    An exact id wins over an exact alias, and both over a match that needs ``:latest``.
    """
    known = tuple(served)
    for model in known:  # as most names do: found before a second spelling is made
        if model.card.id == name:
            return model
    for wanted in (name, bare_name(name), f"{name}:latest"):
        for model in known:
            if model.card.id == wanted:
                return model
        for model in known:
            if wanted in model.card.aliases:
                return model
    return None


def bare_name(name: str) -> str:
    """*name* without Ollama's default tag."""
    return name.removesuffix(":latest")
