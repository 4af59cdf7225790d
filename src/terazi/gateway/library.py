"""Models that the service fetched or was given while it ran, as the Ollama API's pull, copy and delete see them.

A ``Library`` is fulfilled by the composition root. It holds files and names; what is served, and in memory, is the
directory's and the keeper's business: whoever fulfils it tells them.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from terazi.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a pull or a create is, in Ollama's words.

    Args:
        status: ``pulling manifest``, ``pulling 0123456789ab``, ``verifying sha256 digest``, ``writing manifest``,
            ``success``.
        digest: of the file under way, ``sha256:`` and 64 digits.
        total, completed: its bytes; None until they are known.
    """

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What a created model adds to the one that it was made from: defaults, which a request may override.

    Args:
        name: the one that it answers to, with its tag.
        base: the id of the model that answers.
        system: the system message of requests that bring none.
        parameters: options of requests that don't set them, in Ollama's names.
        messages: what is said before each chat.
    """

    name: str
    base: str
    modified: str
    system: str | None = None
    parameters: Mapping[str, object] = field(default_factory=dict)
    messages: tuple[Mapping[str, object], ...] = ()

    @property
    def empty(self) -> bool:
        """It is a further name and nothing else."""
        return not (self.system or self.parameters or self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewModel:
    """What ``create`` asks for: one of ``base`` (a served model's name) and ``files`` (file names and digests)."""

    name: str
    base: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    system: str | None = None
    parameters: Mapping[str, object] = field(default_factory=dict)
    messages: tuple[Mapping[str, object], ...] = ()


class NoSuchModelError(UsageError):
    """There is no model of that name."""


class ForeignModelError(UsageError):
    """It is not the library's: it stands in the configuration or on the command line."""


class Library(Protocol):
    """All of it. Errors are ``TeraziError``: ``UsageError`` for wrong questions, ``ServiceError`` for no room."""

    def pull(self, name: str, *, local: bool) -> AsyncGenerator[Progress]:
        """Fetch and serve *name*; two who pull the same share one download, which ends when the last one leaves.

        Args:
            name: ``hf.co/org/repo:QUANT``, ``hf:org/repo:quant``, or the path of a file.
            local: whether the client is on this machine: only then may it name files.
        """
        ...

    async def delete(self, name: str) -> None:
        """Forget *name*; the last name of a pulled file takes the file along, once the model is idle.

        Raises:
            NoSuchModelError, ForeignModelError
        """
        ...

    async def copy(self, source: str, destination: str) -> None:
        """Let *destination* be a further name of *source*.

        Raises:
            NoSuchModelError
            UsageError: *destination* is the name of something else.
        """
        ...

    async def create(self, wanted: NewModel) -> None:
        """Make a model from one that is served, or from an uploaded file."""
        ...

    def pulled(self) -> tuple[Preset, ...]:
        """The names under which models were pulled from the hub; they add nothing to theirs."""
        ...

    def presets(self) -> tuple[Preset, ...]:
        """Copied and created names, in the order in which they were made."""
        ...

    def preset(self, name: str) -> Preset | None:
        """The one called *name*, ``:latest`` there or not."""
        ...

    async def has_blob(self, digest: str) -> bool:
        """Whether a file with this digest was uploaded, or pulled."""
        ...

    async def add_blob(self, digest: str, chunks: AsyncIterable[bytes], length: int | None) -> None:
        """Keep an uploaded file.

        Raises:
            UsageError: its bytes have another digest.
            ServiceError: there is no room for it.
        """
        ...

    async def keep(self, model: str, idle_s: float | None) -> None:
        """Ollama's ``keep_alive``: *model* (its id) is unloaded after *idle_s* without a request.

        0 unloads it as soon as it is idle, None never. It holds until the model is unloaded.
        """
        ...

    def expires_s(self, model: str) -> float | None:
        """Seconds until *model* (its id) is unloaded, if no request comes; None is never."""
        ...
