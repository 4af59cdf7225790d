"""Asks one peer about one model, inside the peer's own environment: ``python peer_drivers.py PEER JSON``.

Run by ``bench_peers.py`` with the interpreter of that environment; it imports nothing of Terazi. Prints a line of
JSON, ``{"bytes": N}`` or ``{"failed": "why"}``. The question: ``{path, name, context, parameters, active,
file_bytes, quantisation, window, global_ratio}``.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Question: TypeAlias = Mapping[str, Any]
_GB, _GIB = 10**9, 1 << 30
#: Bytes of a header that hold all that is asked for.
_HEADER = 64 << 20


def modelinfo(asked: Question) -> int:
    """``modelinfo FILE --context N``: its total, printed in GB of 2**30 bytes."""
    words = [str(program("modelinfo")), asked["path"], "--context", str(asked["context"])]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={"NO_COLOR": "1", "COLUMNS": "200"}
    )
    total = re.search(r"([\d.,]+)\s*([MGT])B Total", done.stdout)
    if total is None:
        raise RuntimeError((done.stderr or done.stdout).strip().splitlines()[-1][:200])
    unit = {"M": _GIB // 1024, "G": _GIB, "T": _GIB * 1024}[total[2]]
    size: float = float(total[1].replace(",", "")) * unit
    return int(size + 0.5)


def llmfit(asked: Question) -> int:
    """``llmfit plan NAME``, by the name in its database: the least VRAM, in GB of 10**9 bytes."""
    words = ["plan", asked["name"], "--context", str(asked["context"]), "--quant", asked["quantisation"], "--json"]
    done = subprocess.run([str(program("llmfit")), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip().splitlines()[-1][:200])
    plan = json.loads(done.stdout)
    if plan["model_name"].casefold() != asked["name"].casefold():
        raise RuntimeError(f"its database has {plan['model_name']} instead")
    return int(plan["minimum"]["vram_gb"] * _GB)


def whichllm(asked: Question) -> int:
    """Its ``estimate_vram``; the command itself needs the network."""
    from whichllm.engine.vram import estimate_vram
    from whichllm.models.types import GGUFVariant, ModelInfo

    model = ModelInfo(
        id=asked["name"],
        family_id=asked["name"],
        name=asked["name"],
        parameter_count=asked["parameters"],
        parameter_count_active=asked["active"],
        is_moe=asked["active"] is not None,
        sliding_window=asked["window"],
        sliding_window_global_ratio=asked["global_ratio"],
    )
    variant = GGUFVariant(Path(asked["path"]).name, asked["quantisation"], asked["file_bytes"])
    return int(estimate_vram(model, variant, asked["context"]))


def hf_mem(asked: Question) -> int:
    """Its GGUF parser, fed with the header; the command itself reads from the Hub only."""
    from hf_mem.gguf.metadata import parse_gguf_metadata

    with Path(asked["path"]).open("rb") as file:
        raw = file.read(_HEADER)
    parsed = parse_gguf_metadata(raw, experimental=True, max_model_len=asked["context"])
    if parsed.kv_cache is None:
        raise RuntimeError("no KV cache")
    return int(parsed.bytes_count + parsed.kv_cache.cache_size)


def program(name: str) -> Path:
    """The console script *name* of this environment."""
    return Path(sys.executable).parent / name


PEERS: dict[str, Callable[[Question], int]] = {
    "modelinfo-cli": modelinfo,
    "llmfit": llmfit,
    "whichllm": whichllm,
    "hf-mem": hf_mem,
}

if __name__ == "__main__":
    try:
        print(json.dumps({"bytes": PEERS[sys.argv[1]](json.loads(sys.argv[2]))}))
    except Exception as error:  # whatever a peer fails with is its answer
        print(json.dumps({"failed": f"{type(error).__name__}: {error}"[:300]}))
