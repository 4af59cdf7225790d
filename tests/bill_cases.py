"""Reads ``golden/bill_cases.json``: measured models rebuilt as specs, and what the engine reserved for them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from terazi.hardware.machine import Basis, Device, Figure
from terazi.models.ggml_types import TYPE_BY_NAME
from terazi.models.spec import ModelSpec, Tensor

Json: TypeAlias = dict[str, Any]

_TYPES = {name.upper(): kind for name, kind in TYPE_BY_NAME.items()}
_UNKNOWN = Figure(value=None, basis=Basis.ASSUMED)
_ENDPOINTS = ("10.0.0.1:50052", "10.0.0.2:50052", "10.0.0.3:50052")


@dataclass(frozen=True)
class Case:
    """One measured command. ``expected`` is bytes by device: weights, cache and state, compute."""

    name: str
    command: tuple[str, ...]
    devices: int
    expected: dict[str, tuple[int, int, int]]


@dataclass(frozen=True)
class Measured:
    """One measured model."""

    spec: ModelSpec
    isa: frozenset[str]
    cases: tuple[Case, ...]


def load(path: Path) -> dict[str, Measured]:
    document = json.loads(path.read_text(encoding="utf-8"))
    return {
        model["id"]: Measured(
            spec=_spec(model),
            isa=frozenset(model["cpu"]),
            cases=tuple(_case(*row) for row in model["cases"]),
        )
        for model in document["models"]
    }


def _case(name: str, tool: str, argv: list[str], expected: dict[str, list[int]]) -> Case:
    devices = next((n for n in (1, 2, 3) if f"{{rpc{n}}}" in argv), 0)
    words = [
        word.replace("{ep0}", _ENDPOINTS[0]).replace(f"{{rpc{devices}}}", ",".join(_ENDPOINTS[:devices]))
        for word in argv
    ]
    return Case(
        name, (tool, *words), devices, {device: (row[0], row[1], row[2]) for device, row in expected.items()}
    )


def _spec(model: Json) -> ModelSpec:
    blocks, arch = model["blocks"], model["architecture"]

    def per_block(key: str) -> tuple[int, ...]:
        value = model[key]
        return tuple(value) if isinstance(value, list) else (value,) * blocks

    rows: list[tuple[str, list[int], str, int | None]] = [(*row, None) for row in model["head_tensors"]]
    for name, shape, kind, where in model["block_tensors"]:
        rows += [(f"blk.{block}.{name}", shape, kind, block) for block in _blocks(where)]
    tensors = []
    offset = 0
    for name, shape, kind, block in rows:
        size = 1
        for length in shape:
            size *= length
        n_bytes = size // _TYPES[kind].block_size * _TYPES[kind].block_bytes
        tensors.append(Tensor(name, tuple(shape), kind, n_bytes, offset, 0, block))
        offset += -(-n_bytes // 32) * 32
    experts, used = model.get("experts", (0, 0))
    return ModelSpec(
        name=model["id"],
        architecture=arch,
        block_count=blocks,
        context_length=model["context"],
        embedding_length=model["width"],
        vocab_size=model["vocab"],
        head_count=per_block("heads"),
        head_count_kv=per_block("kv_heads"),
        feed_forward_length=per_block("ff"),
        key_length=model["key"],
        value_length=model["value"],
        expert_count=experts,
        expert_used_count=used,
        sliding_window=model.get("window"),
        tensors=tuple(tensors),
        metadata={f"{arch}.{k}": tuple(v) if isinstance(v, list) else v for k, v in model["metadata"].items()},
    )


def _blocks(text: str) -> list[int]:
    blocks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        blocks += range(int(first), int(last or first) + 1)
    return blocks


def stand_ins(count: int, *, free_bytes: int = 1 << 40) -> tuple[Device, ...]:
    """RPC servers on a CPU, as the measurements used them."""
    return tuple(
        Device(
            id=f"RPC{index}",
            name="stand-in",
            vendor="none",
            backend="rpc",
            memory_total_bytes=free_bytes,
            memory_free_bytes=free_bytes,
            memory_bandwidth=_UNKNOWN,
            flops_fp16=_UNKNOWN,
            tdp_w=_UNKNOWN,
        )
        for index in range(count)
    )
