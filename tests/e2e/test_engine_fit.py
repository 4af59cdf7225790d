"""Where ``--fit`` puts layers that don't fit, against the engine's own ``llama-fit-params``."""

import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

import model_zoo
from llama_engine import FIT_PARAMS, isa, rpc_servers
from specs import card
from terazi.hardware.machine import Device
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.sources import demo_path, load_model
from terazi.placement.engine_fit import fit_layers
from terazi.units import MIB

pytestmark = pytest.mark.e2e

#: An RPC server on a CPU says that all of the RAM is free.
FREE_BYTES = psutil.virtual_memory().total


@pytest.fixture(scope="module")
def endpoints() -> Iterator[tuple[str, ...]]:
    with rpc_servers(2) as found:
        yield found


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(model_zoo.mixtral_8x7b(tmp_path_factory.mktemp("fit") / "mixtral.gguf"))


def stand_in(number: int) -> Device:
    return replace(
        card(number), id=f"RPC{number}", backend="rpc", memory_free_bytes=FREE_BYTES, memory_total_bytes=FREE_BYTES
    )


def by_the_engine(path: str, n_ctx: int, endpoints: tuple[str, ...], margin_mib: int) -> dict[str, str]:
    done = subprocess.run(
        [str(FIT_PARAMS), "-m", path, *(["-c", str(n_ctx)] if n_ctx else []), "--rpc", ",".join(endpoints),
         "-fitt", ",".join([str(margin_mib)] * len(endpoints))],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )  # fmt: skip
    words = shlex.split(done.stdout)
    said = dict(zip(words[::2], words[1::2], strict=True))
    # the engine names a stand-in's memory by its address
    for i, endpoint in enumerate(endpoints):
        said["-ot"] = said.get("-ot", "").replace(f"RPC0[{endpoint}]", f"RPC{i}")
    return said


@pytest.mark.parametrize(
    ("model", "n_ctx", "cards", "mib"),
    [
        ("demo", 4096, 1, 40),  # not one layer
        ("demo", 4096, 1, 160),
        ("demo", 4096, 1, 400),  # all of it
        ("demo", 4096, 2, 160),
        ("demo", 0, 1, 240),  # the context is shortened
        ("demo", 0, 1, 90),  # and is still too long
        ("demo", 0, 2, 150),
        ("mixture", 0, 2, 14_800),
        ("mixture", 4096, 1, 6000),
        ("mixture", 4096, 2, 3000),
        ("mixture", 4096, 2, 9500),
    ],
)
def test_layers_lie_where_the_engine_puts_them(
    model: str, n_ctx: int, cards: int, mib: int, *, endpoints: tuple[str, ...], mixture: str
) -> None:
    path = demo_path() if model == "demo" else mixture
    margin_mib = FREE_BYTES // MIB - mib
    said = by_the_engine(path, n_ctx, endpoints[:cards], margin_mib)
    settings = LlamaCppSettings(tool="llama-fit-params", n_ctx=n_ctx, rpc=endpoints[:cards])
    devices = tuple(stand_in(i) for i in range(cards))
    fitted = fit_layers(load_model(path), devices, settings, isa(), target_bytes=(margin_mib * MIB,))
    layers = "-1" if fitted.n_gpu_layers is None else str(fitted.n_gpu_layers)
    assert layers == said["-ngl"]
    assert str(fitted.n_ctx) == said["-c"]
    assert ",".join(f"{share:.0f}" for share in fitted.tensor_split) == said.get("-ts", "")
    assert ",".join(f"{pattern}={where}" for pattern, where in fitted.override_tensor) == said["-ot"]
