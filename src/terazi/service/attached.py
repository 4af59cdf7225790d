"""Engines that somebody else runs: any OpenAI-compatible server, named by its address."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import aiohttp

from terazi.errors import EngineError
from terazi.gateway.backend import READY, HeldMemory, ModelCard
from terazi.gateway.in_flight import InFlight
from terazi.policy.dispatch_messages import ReplicaChanged
from terazi.policy.progress import Liveness, Patience
from terazi.supervisor.health import EngineClient
from terazi.supervisor.watch import Watched, watch

_log = logging.getLogger(__name__)

#: Between two questions to a server, and how long an answer may take.
EVERY_S: Final = 10.0
_ANSWER_S: Final = 5.0
#: So many unanswered questions in a row close it.
_MOST_MISSED: Final = 2
_MOST_BYTES: Final = 8 * 1024 * 1024
#: Requests at once, if the server doesn't say.
_SLOTS: Final = 16


#: Whom servers name as the owner of their models, and which engine that is: it tells what they can continue.
_OWNERS: Final = {"llamacpp": "llama.cpp", "vllm": "vLLM"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One model as a server lists it; None is what it doesn't say."""

    id: str
    context: int | None = None
    created_s: int | None = None
    slots: int | None = None
    engine: str | None = None


class AttachedModel:
    """One model of a server: the gateway's ``Served``, and its only ``Backend``.

    Args:
        url: of the server, without ``/v1``.
        key: what the server asks for; empty is nothing.
        listed: as the server lists it.
        aliases: further names.
    """

    def __init__(self, url: str, key: str, listed: Listed, *, aliases: tuple[str, ...] = ()) -> None:
        self.base_url = url
        self.api_key = key
        self.listed = listed
        self.replica = f"{listed.id} at {url}"
        self.card = _card(listed, url, aliases)
        self.answers = True
        self.flight = InFlight()

    @property
    def engines(self) -> tuple["AttachedModel", ...]:
        """Itself."""
        return (self,)

    @property
    def state(self) -> str:
        """Ready, or failed while its server doesn't answer."""
        return READY if self.answers else "failed"

    @property
    def closed(self) -> str | None:
        """Its server doesn't answer."""
        return None if self.answers else f"{self.base_url}, which serves {self.card.id}, does not answer"

    @property
    def memory(self) -> HeldMemory:
        """Nothing of ours."""
        return HeldMemory(size_bytes=0, size_vram_bytes=0)

    @property
    def in_flight(self) -> int:
        """Requests of ours in it."""
        return self.flight.count

    @property
    def bytes_seen(self) -> int:
        """Of its answers so far."""
        return self.flight.bytes_seen

    async def ready(self) -> None:
        """As its server was when it was last asked.

        Raises:
            EngineError: the server doesn't answer.
        """
        if not self.answers:
            raise EngineError(f"{self.base_url} does not answer", hint="start that server; it is looked for on")

    def replica_changed(self) -> ReplicaChanged:
        """What the dispatcher is told about it."""
        each = self.listed.context
        slots = self.listed.slots or _SLOTS
        return ReplicaChanged(
            replica=self.replica, model=self.card.id, open=self.answers, slots=slots, tokens_each=each, shared=True
        )

    def snapshot(self) -> dict[str, Any]:
        """The model's part of ``terazi ps --json``."""
        return {
            "id": self.card.id,
            "aliases": list(self.card.aliases),
            "replica": self.replica,
            "state": self.state,
            "engine": self.card.engine,
            "pid": None,
            "uptime_s": None,
            "plan_id": None,
            "in_flight": self.flight.count,
            "restarts": 0,
            "context": self.listed.context,
            "forecast": None,
            "reconciliation": None,
            "live": None,
            "devices": [],
            "pinned": False,
            "idle_s": None,
            "closed": None if self.answers else f"{self.base_url} does not answer",
            "opens_in_s": None,
            "needs": {},
            "replicas": [],
        }


class AttachedServer:
    """Asks one server what it serves, at once and now and then; it is never started, stopped, or made to load.

    Args:
        url: with ``/v1``, as in ``[[models]]``.
        key: what it asks for; empty is nothing.
        only: the one of its models that is served; None is all.
        name, aliases: what the one model is called besides.
        changed: told the models that are new, and those that it lists no more.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        only: str | None = None,
        name: str | None = None,
        aliases: tuple[str, ...] = (),
        changed: Callable[[list[AttachedModel], list[AttachedModel]], None],
        answers: Callable[[AttachedModel], None],
    ) -> None:
        self.url = url.removesuffix("/v1")
        self.models: dict[str, AttachedModel] = {}
        self._key = key
        self._only = only
        self._names = ((name,) if name is not None else ()) + aliases
        self._changed = changed
        self._answers = answers
        self._missed = 0
        self._seen = 0
        self._stuck = False
        self._told = ""

    async def watch(self, every_s: float = EVERY_S, patience: Patience | None = None) -> None:
        """Ask until cancelled; and see whether it gets on with what it was given."""
        following: asyncio.Future[None] | None = None
        try:
            while True:
                await self.look()
                if following is None and self.models:  # a token is asked of a model that it has
                    following = asyncio.ensure_future(self._follow(patience or Patience(idle_look_s=0.0)))
                await asyncio.sleep(every_s)
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    async def _follow(self, patience: Patience) -> None:
        """While requests of ours are in it: one that works on nothing is closed until it gives a token again."""
        client = EngineClient(self.url, self._key)
        model = json.dumps(next(iter(self.models), ""))
        watched = Watched(
            probe_path="/v1/chat/completions",
            probe_body=f'{{"model": {model}, "messages": [{{"role": "user", "content": "1"}}], "max_tokens": 1}}',
            in_flight=lambda: sum(model.in_flight for model in self.models.values()),
            bytes_seen=self._bytes_seen,
        )
        try:
            async with contextlib.aclosing(watch(client, watched, lambda: patience)) as verdicts:
                async for verdict in verdicts:
                    stuck = verdict.liveness is Liveness.STUCK
                    if stuck != self._stuck:
                        self._stuck = stuck
                        _log.warning("%s %s: %s", self.url, "is stuck" if stuck else "works again", verdict.reason)
                        self._answered(answers=not stuck)
        finally:
            await client.close()

    def _bytes_seen(self) -> int:
        return sum(model.bytes_seen for model in self.models.values())

    async def look(self) -> None:
        """Ask once, and tell what has changed."""
        try:
            listed = await self._ask()
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as problem:
            seen, self._seen = self._seen, self._bytes_seen()
            # answers that flow say more than a question that it had no time for
            self._missed = 0 if self._seen != seen else self._missed + 1
            if self._missed >= _MOST_MISSED or not self.models:
                self._say(f"{self.url} does not answer as a model server: {str(problem) or type(problem).__name__}")
                self._answered(answers=False)
            return
        self._missed = 0
        self._say(f"{self.url} serves {', '.join(entry.id for entry in listed) or 'no model'}")
        if self._only is not None:
            listed = [entry for entry in listed if entry.id == self._only]
        aliases = self._names if len(listed) == 1 else ()
        gone = [self.models.pop(id_) for id_ in set(self.models) - {entry.id for entry in listed}]
        new = [
            AttachedModel(self.url, self._key, entry, aliases=aliases)
            for entry in listed
            if entry.id not in self.models
        ]
        self.models.update({model.listed.id: model for model in new})
        if new or gone:
            self._changed(new, gone)
        self._answered(answers=True)

    def _answered(self, *, answers: bool) -> None:
        answers = answers and not self._stuck
        for model in self.models.values():
            if model.answers != answers:
                model.answers = answers
                self._answers(model)

    def _say(self, text: str) -> None:
        """Once for each new state."""
        if text != self._told:
            self._told = text
            _log.info("%s", text)

    async def _ask(self) -> list[Listed]:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            document = await _json(session, f"{self.url}/v1/models")
            if not isinstance(document, dict) or not isinstance(document.get("data"), list):
                raise ValueError("its /v1/models is no list of models")  # noqa: TRY004 - what came is wrong, not its use
            slots = await self._slots(session)
        return [read_entry(entry, slots) for entry in document["data"] if isinstance(entry, dict)]

    async def _slots(self, session: aiohttp.ClientSession) -> int | None:
        """How many requests llama-server works on at once; others have no such page."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
            props = await _json(session, f"{self.url}/props")
            total = props.get("total_slots") if isinstance(props, dict) else None
            return total if isinstance(total, int) and 0 < total <= 4096 else None
        return None


def read_entry(entry: dict[str, Any], slots: int | None = None) -> Listed:
    """One model of a ``/v1/models`` answer: vLLM says ``max_model_len``, llama-server ``meta.n_ctx``.

    Raises:
        ValueError: it has no id.
    """
    id_ = entry.get("id")
    if not isinstance(id_, str) or not id_:
        raise ValueError("a model of its /v1/models has no id")
    meta = entry.get("meta")
    contexts = (entry.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None)
    created = entry.get("created")
    return Listed(
        id=id_,
        context=next((n for n in contexts if isinstance(n, int) and n > 0), None),
        created_s=created if isinstance(created, int) else None,
        slots=slots,
        engine=_OWNERS.get(str(entry.get("owned_by"))),
    )


async def _json(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}")
        data = await response.content.read(_MOST_BYTES)
    return json.loads(data)


def _card(listed: Listed, url: str, aliases: tuple[str, ...]) -> ModelCard:
    created = listed.created_s or int(time.time())
    return ModelCard(
        id=listed.id,
        aliases=tuple(alias for alias in aliases if alias != listed.id),
        architecture="unknown",
        family="unknown",
        parameter_count=None,
        quantisation=None,
        size_bytes=None,
        context_length=listed.context,
        training_context_length=None,
        embedding_length=None,
        created_s=created,
        modified=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(created)),
        digest=sha256(f"{url} {listed.id}".encode()).hexdigest(),
        capabilities=("completion",),
        engine=f"{listed.engine}, attached: {url}" if listed.engine else f"attached: {url}",
    )
