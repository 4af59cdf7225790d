"""``terazi ps`` over real queues: who waits for which model, and who has how much in engines."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from queueing import shared_engine
from serving import CARD, client_of, until
from terazi.cli.ps import render
from terazi.gateway.call import Caller
from terazi.service.config import Config
from terazi.service.control import ServiceControl


def attached_snapshot() -> dict[str, Any]:
    """A model's own part, as short as it can be."""
    return {
        "id": CARD.id, "state": "ready", "engine": "attached", "pinned": False, "idle_s": None, "replicas": [],
        "needs": {}, "in_flight": 1, "closed": None, "opens_in_s": None, "forecast": None,
    }  # fmt: skip


async def test_waiting_and_running_by_model_and_by_key() -> None:
    callers = (Caller(name="anna"), Caller(name="bert", tokens_per_minute=6000))
    async with shared_engine(1, *callers) as place:
        others = SimpleNamespace(models={CARD.id: SimpleNamespace(snapshot=attached_snapshot)})
        fleet = SimpleNamespace(models={}, others=others)
        control = ServiceControl(
            fleet,  # type: ignore[arg-type] # as much of one as is asked for
            SimpleNamespace(),  # type: ignore[arg-type] # is asked for nothing
            place.seats.survey,
            Config(),
            path=Path("terazi.toml"),
            stopping=asyncio.Event(),
        )
        quiet = await control.snapshot()
        assert "waiting" not in render(quiet)
        async with client_of(place.gateway) as session:

            def ask(name: str) -> "asyncio.Task[Any]":
                body = {"model": CARD.id, "messages": [{"role": "user", "content": "weigh"}], "max_tokens": 400}
                headers = {"Authorization": f"Bearer key-of-{name}"}
                return asyncio.ensure_future(session.post("/v1/chat/completions", json=body, headers=headers))

            tasks = [ask("anna")]
            await until(lambda: place.running == 1)
            tasks += [ask("anna"), ask("bert"), ask("bert")]
            await until(lambda: place.waiting == 3)
            busy: dict[str, Any] = await control.snapshot()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    (model,) = busy["models"]
    assert (model["running"], model["waiting"]) == (1, 3)
    by_name = {caller["caller"]: (caller["running"], caller["waiting"]) for caller in busy["callers"]}
    assert by_name == {"anna": (1, 1), "bert": (0, 2)}
    page = render(busy)
    assert "1 in engines, 3 waiting, the oldest for" in page
    assert "anna: 1 in engines, 1 waiting\n" in page + "\n"
    assert "bert: 0 in engines, 2 waiting, " in page
    assert "tokens to spare" in page
