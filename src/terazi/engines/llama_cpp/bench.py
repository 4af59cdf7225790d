"""``llama-bench``: what it is asked, and how its answers are read (build b11434, ``tools/llama-bench``)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from terazi.engines.base import LaunchSpec
from terazi.engines.llama_cpp.binary import UPDATE_HINT, Binary
from terazi.engines.llama_cpp.launch import DEVICE_ORDER, QUICK_DEATH, UNSET_ENV
from terazi.errors import EngineError

TOOL = "llama-bench"
#: A row is two kilobytes; more than this many is no answer to what was asked.
_MOST_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One test of llama-bench.

    Args:
        prompt: tokens of a prompt, computed in micro-batches; 0 if it generated.
        generated: tokens generated one by one; 0 if it was a prompt.
        depth: tokens in the cache before.
        samples_s: seconds of each repetition, in all.
    """

    prompt: int
    generated: int
    depth: int
    micro_batch: int
    samples_s: tuple[float, ...]


def bench_launch(
    program: str,
    model_path: str,
    *,
    prompts: Sequence[int],
    generate: int = 0,
    depths: Sequence[int] = (0,),
    micro_batches: Sequence[int] = (512,),
    repeats: int,
    threads: int | None = None,
    device: str | None = None,
    rpc: Sequence[str] = (),
) -> LaunchSpec:
    """A run of each of *prompts*, and of *generate* tokens one by one, at each depth and micro-batch.

    Args:
        device: the accelerator that gets all layers; None keeps to the CPU.
        rpc: addresses of stand-ins.
    """
    words = [program, "-m", model_path, "-o", "jsonl", "-fa", "on", "-r", str(repeats), "--no-warmup"]
    words += ["-p", ",".join(map(str, prompts)) or "0", "-n", str(generate)]
    words += ["-d", ",".join(map(str, depths)), "-ub", ",".join(map(str, micro_batches))]
    words += [] if threads is None else ["-t", str(threads)]
    words += ["-rpc", ",".join(rpc)] if rpc else []
    words += ["-dev", "none", "-ngl", "0"] if device is None else ["-dev", device, "-ngl", "999"]
    return LaunchSpec(
        plan_id="",
        engine="llama.cpp",
        model_name="",
        argv=tuple(words),
        env=(QUICK_DEATH, DEVICE_ORDER),
        unset_env=UNSET_ENV,
        base_url="",
        api_key="",
    )


def parse_bench(text: str) -> tuple[BenchRow, ...]:
    """The rows among what the tool printed; log lines and broken rows are passed over."""
    rows: list[BenchRow] = []
    for line in text.splitlines():
        if not line.startswith('{"build_commit"') or len(rows) >= _MOST_ROWS:
            continue
        try:
            said = json.loads(line)
            samples = tuple(float(n) / 1e9 for n in said["samples_ns"])
            row = BenchRow(
                prompt=int(said["n_prompt"]),
                generated=int(said["n_gen"]),
                depth=int(said["n_depth"]),
                micro_batch=int(said["n_ubatch"]),
                samples_s=samples,
            )
        except (ValueError, KeyError, TypeError):
            continue
        if samples and min(samples) > 0:
            rows.append(row)
    return tuple(rows)


def sampling_launch(
    binary: Binary, model_path: str, *, port: int, slots: int, context: int, threads: int | None
) -> LaunchSpec:
    """A server on *model_path* whose answers say how long they took, each slot with a cache of its own.

    Raises:
        EngineError: if *binary* lacks a flag that this needs.
    """
    argv = [binary.path]
    wanted = (
        ("--model", model_path),
        ("--host", "127.0.0.1"),
        ("--port", str(port)),
        ("--ctx-size", str(context * slots)),
        ("--parallel", str(slots)),
        ("--cache-ram", "0"),
        ("--flash-attn", "on"),
        ("--fit", "off"),
        ("--n-gpu-layers", "0"),
        ("--device", "none"),
        *((("--threads", str(threads)),) if threads is not None else ()),
    )
    for name, value in wanted:
        if name not in binary.flags:
            raise EngineError(
                f"{binary.path} ({binary.label}) has no {name}, so it can't be measured.", hint=UPDATE_HINT
            )
        argv += [name, value]
    argv += [name for name in ("--no-kv-unified", "--no-webui", "--no-ui", "--offline") if name in binary.flags]
    return LaunchSpec(
        plan_id="",
        engine="llama.cpp",
        model_name="",
        argv=tuple(argv),
        env=(QUICK_DEATH, DEVICE_ORDER),
        unset_env=UNSET_ENV,
        base_url=f"http://127.0.0.1:{port}",
        api_key="",
    )


def completion_body(prompt: Sequence[int], output: int) -> str:
    """A request to ``/completion`` for exactly *output* tokens, with nothing taken from earlier ones."""
    return json.dumps(
        {"prompt": list(prompt), "n_predict": output, "ignore_eos": True, "cache_prompt": False, "seed": 1}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """What one answer took: seconds a token after the first, and seconds of its prompt."""

    token_s: float
    prompt_s: float
    prompt_tokens: int


def parse_timings(body: str) -> Timings:
    """The ``timings`` of an answer (``tools/server/server-common.cpp:server_slot_stats::to_json``).

    Raises:
        ValueError: there are none.
    """
    try:
        said = json.loads(body)["timings"]
        found = Timings(
            token_s=float(said["predicted_per_token_ms"]) / 1e3,
            prompt_s=float(said["prompt_ms"]) / 1e3,
            prompt_tokens=int(said["prompt_n"]),
        )
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"an answer without timings: {body[:200]}") from error
    if not found.token_s > 0:
        raise ValueError("an answer that took no time")
    return found
