"""Prompts of unloaded models, kept on disk until the model is loaded again: only where the configuration says so.

They are people's words, as a KV cache holds them: readable by the owner only, and gone with the service. A later
start removes what a killed one has left.
"""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil

from terazi.engines.llama_cpp.slot_files import (
    HEAD_BYTES,
    LEAST_TOKENS,
    reuse_request,
    slot_request,
    tokens_in,
    tokens_moved,
    tokens_reused,
)
from terazi.placement.plan import Plan
from terazi.supervisor.health import EngineClient

_log = logging.getLogger(__name__)

#: For one slot's file, one way, and for the request that shows that it is used.
_WITHIN_S: Final = 10.0
_MOST_ANSWER: Final = 1024 * 1024
#: What is kept for more than so many is dropped, the oldest first: settings change, and models go.
_MOST_REPLICAS: Final = 32
#: Stays free on the disk.
_SPARE_BYTES: Final = 1024**3


class KeptPrompts:
    """One for a fleet.

    Args:
        run_dir: the service's; a folder of this process's own is made below it when it is needed.
    """

    def __init__(self, run_dir: Path) -> None:
        self._all = run_dir / "prompts"
        self._own = self._all / str(os.getpid())
        #: Replica -> (slot, file, tokens) that wait for its next load.
        self._kept: dict[str, list[tuple[int, str, int]]] = {}
        self._saves = 0
        #: Plans for which nothing that was brought back is used.
        self._in_vain: set[str] = set()

    def folder(self) -> Path | None:
        """Where engines put their files; None if it can't be had."""
        try:
            for folder in (self._all, self._own):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as problem:
            _log.warning("prompts are not kept: %s", problem)
            return None
        for other in self._all.iterdir():
            if not (other.name.isdecimal() and psutil.pid_exists(int(other.name))):
                shutil.rmtree(other, ignore_errors=True)
        return self._own

    def close(self) -> None:
        """Nothing is kept any more."""
        self._kept.clear()
        shutil.rmtree(self._own, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._all.rmdir()

    def waits(self, replica: str, plan: Plan) -> bool:
        """Whether something is kept for the next load of *replica*."""
        return bool(self._kept.get(self._name(replica, plan)))

    @staticmethod
    def _name(replica: str, plan: Plan) -> str:
        return f"{replica}@{plan.id}"

    async def save(self, replica: str, plan: Plan, slots: int, *, base_url: str, api_key: str) -> None:
        """Have an idle engine write down what its slots hold, before it ends."""
        name, self._saves = self._name(replica, plan), self._saves + 1
        cache_bytes = sum(share.kv_bytes + share.state_bytes for share in plan.devices)
        if plan.id in self._in_vain or not self._room(cache_bytes):
            return
        client = EngineClient(base_url, api_key)
        kept = []
        try:
            for slot in range(slots):
                file = f"{self._saves}-{slot}"
                path, body = slot_request(slot, "save", file)
                tokens = tokens_moved(await client.post(path, body, limit_bytes=_MOST_ANSWER, timeout_s=_WITHIN_S))
                if tokens >= LEAST_TOKENS:
                    kept.append((slot, file, tokens))
                else:
                    self._drop(file)
        finally:
            await client.close()
        self._forget(other for other in self._kept if other.startswith(f"{replica}@"))  # of other settings
        self._kept[name] = kept
        self._forget(list(self._kept)[:-_MOST_REPLICAS])

    def _forget(self, names: Iterable[str]) -> None:
        for name in tuple(names):
            for _, file, _ in self._kept.pop(name, ()):
                self._drop(file)

    async def bring_back(self, replica: str, plan: Plan, *, base_url: str, api_key: str) -> None:
        """Have the engine that was just loaded read what was kept, and look whether it uses it."""
        kept = self._kept.pop(self._name(replica, plan), [])
        client = EngineClient(base_url, api_key)
        back = []
        try:
            for slot, file, _ in kept:
                path, body = slot_request(slot, "restore", file)
                answer = await client.post(path, body, limit_bytes=_MOST_ANSWER, timeout_s=_WITHIN_S)
                if n := tokens_moved(answer):
                    back.append((n, slot, file))
            used = await self._used(client, sorted(back))
        finally:
            await client.close()
            for _, file, _ in kept:
                self._drop(file)
        if used:
            _log.info("%s has %d prompts of %d tokens back; %s", replica, len(back), sum(n for n, *_ in back), used)
        else:
            self._in_vain.add(plan.id)
            _log.warning("%s does not use prompts that were kept for it: they are kept no more", replica)

    async def _used(self, client: EngineClient, back: list[tuple[int, int, str]]) -> str:
        """How much of the shortest one was reused, for people; empty if next to nothing."""
        for n, slot, file in back:
            tokens = await asyncio.to_thread(self._tokens, file)
            if tokens is None or len(tokens) > n:
                continue
            path, body = reuse_request(slot, tokens)
            answer = await client.post(path, body, limit_bytes=_MOST_ANSWER, timeout_s=_WITHIN_S)
            reused = tokens_reused(answer)
            return f"of {len(tokens)} tokens {reused} were reused" if 2 * reused >= len(tokens) else ""
        return ""

    def _tokens(self, file: str) -> tuple[int, ...] | None:
        try:
            with (self._own / file).open("rb") as opened:
                return tokens_in(opened.read(HEAD_BYTES))
        except OSError:
            return None

    def _room(self, cache_bytes: int) -> bool:
        try:
            return shutil.disk_usage(self._own).free >= cache_bytes + _SPARE_BYTES
        except OSError:
            return False

    def _drop(self, file: str) -> None:
        with contextlib.suppress(OSError):
            (self._own / file).unlink(missing_ok=True)
