"""A model's life as Ollama's client steers it, in the whole program: pulled, loaded, used, unloaded, deleted; and
what of it is counted, logged and totalled."""

import json
import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import ollama
import pytest

from demo_files import gemma3, smollm2
from running import terazi, up

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
MESSAGES = [{"role": "user", "content": "Name three things that can be weighed."}]
OPTIONS = {"temperature": 0, "num_predict": 8}


def wait(condition: Callable[[], bool], *, within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def scrape(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def test_a_models_life(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    other = gemma3(tmp_path)
    with up(home, str(smollm2()), "--context", "1024", "--users", "1") as running:
        url = running.url()
        client = ollama.Client(host=url)
        steps = [step.status for step in client.pull(str(other), stream=True)]
        assert steps[-1] == "success"
        assert len(client.list().models) == 2
        loaded = [model.model for model in client.ps().models]
        assert loaded == [f"{smollm2().stem}:latest"], "a pull loads nothing"
        name = other.stem
        client.create("weigher", from_=name, system="You weigh things.", parameters={"num_predict": 5})
        assert client.generate("weigher").done_reason == "load"
        wait(lambda: len(client.ps().models) == 2)
        said = client.chat("weigher", MESSAGES)
        assert (said.model, said.eval_count) == ("weigher", 5)
        parts = [part.message.content or "" for part in client.chat(name, MESSAGES, stream=True, options=OPTIONS)]
        assert "".join(parts)
        assert client.chat(smollm2().stem, MESSAGES, options=OPTIONS).eval_count == 8
        assert client.generate(name, keep_alive=0).done_reason == "unload"
        wait(lambda: len(client.ps().models) == 1)
        assert client.chat("weigher", MESSAGES, keep_alive="1h").eval_count == 5, "loaded again when it is asked"

        def stays_s() -> float:
            expires = {model.model: model.expires_at for model in client.ps().models}[f"{name}:latest"]
            assert expires is not None
            return expires.timestamp() - time.time()

        wait(lambda: 3000 < stays_s() <= 3601)  # once the request is over for the service, too
        with pytest.raises(ollama.ResponseError) as caught:
            client.delete(smollm2().stem)
        assert caught.value.status_code == 403
        client.delete(str(other))
        assert len(client.list().models) == 1
        assert other.exists(), "it was a file of this machine's"
        with pytest.raises(ollama.ResponseError, match="not found"):
            client.chat("weigher", MESSAGES)
        figures = scrape(url)
        client._client.close()
        assert running.end() == 0
    of_gemma = f'{{key="local",model="{name}"}}'
    assert figures[f"terazi_generation_tokens_total{of_gemma}"] == 5 + 8 + 5
    assert figures[f'terazi_model_loads_total{{model="{name}",result="ready"}}'] == 2
    assert figures[f'terazi_model_evictions_total{{model="{name}",reason="idle"}}'] == 1
    assert figures['terazi_guard_stage{stage="open"}'] == 1
    planned = figures['terazi_memory_bytes{device="Host",kind="planned"}']
    assert figures['terazi_memory_bytes{device="Host",kind="measured"}'] == pytest.approx(planned, rel=0.2)
    log = (home / "logs" / "requests.jsonl").read_text()
    chats = [entry for entry in map(json.loads, log.splitlines()) if "chat" in entry["path"]]
    assert [entry["output_tokens"] for entry in chats] == [5, 8, 8, 5]
    assert all(entry["prompt_tokens"] > 5 and entry["status"] == 200 for entry in chats)
    assert "weighed" not in log
    rows = json.loads(terazi(home, "usage", "--json").stdout)["rows"]
    assert {row["model"]: row["output_tokens"] for row in rows} == {name: 18, smollm2().stem: 8}
    assert re.search(rf"local\s+{re.escape(name)}", terazi(home, "usage").stdout)
