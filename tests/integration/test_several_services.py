"""Two services of one user, and what ``ps``, ``logs`` and ``stop`` make of them."""

import json
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deadline import until
from running import REPO, engines_of, runs_of, terazi, up

FAKE = {
    "TERAZI_LLAMA_SERVER": str(REPO / "tests" / "fakes" / "engine.py"),
    "FAKE_ENGINE_FLAGS": "--fake-token-delay-s 0.02 --fake-tokens 40",
}


def _port(url: str) -> str:
    return url.rpartition(":")[2]


def test_two_services_keep_apart(tmp_path: Path) -> None:
    with up(tmp_path, "--context", "512", **FAKE) as one, up(tmp_path, "--context", "512", **FAKE) as two:
        first, second = one.url(), two.url()
        shown = [json.loads(line) for line in terazi(tmp_path, "ps", "--json").stdout.splitlines()]
        assert {s["url"] for s in shown} == {first, second}
        logs = {terazi(tmp_path, "logs", "--port", _port(url), "-n", "100").stdout for url in (first, second)}
        assert len(logs) == 2, "each engine has a log of its own"
        assert all(log.count("initializing ...") == 1 for log in logs)
        for command in (["stop"], ["chat", "hello"], ["logs"]):
            done = terazi(tmp_path, *command)
            assert done.returncode == 1, "which one is meant must be said"
            assert first in done.stderr
            assert "--port" in done.stderr
        assert len(runs_of(tmp_path)) == 2
        assert terazi(tmp_path, "stop", "--port", _port(first)).returncode == 0
        assert one.process.wait(10) == 0
        assert terazi(tmp_path, "ps", "--json").stdout.count("\n") == 1
        assert two.end() == 0
    assert engines_of(tmp_path) == []


def _stream(url: str) -> bytes:
    body = {"model": "demo", "stream": True, "messages": [{"role": "user", "content": "weigh"}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        whole: bytes = answer.read()
    return whole


def _stops_taken(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        found = re.search(r'terazi_http_requests_total{[^}]*status="202"} (\S+)', answer.read().decode())
    return 0 if found is None else int(float(found[1]))


def test_several_stops_at_once_all_wait_for_the_same_end(tmp_path: Path) -> None:
    let_go = tmp_path / "let-go"
    held = {**FAKE, "FAKE_ENGINE_FLAGS": f"--fake-hold {let_go}"}
    with up(tmp_path, "--context", "512", **held) as service, ThreadPoolExecutor(4) as pool:
        url = service.url()
        answer = pool.submit(_stream, url)
        until(lambda: '"in_flight": 1' in terazi(tmp_path, "ps", "--json").stdout, 30)
        stops = [pool.submit(terazi, tmp_path, "stop") for _ in range(3)]
        until(lambda: _stops_taken(url) == 3, 60)
        assert not any(stop.done() for stop in stops), "the answer isn't over"
        let_go.touch()
        assert answer.result(30).endswith(b"data: [DONE]\n\n")
        for stop in stops:
            assert stop.result(30).returncode == 0, stop.result().stderr
        assert service.process.wait(10) == 0
