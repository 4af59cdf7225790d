"""Measures one machine: memory, what each tensor type's kernels take, layers, attention, sampling, links.

The models are made up (``models.made_up``), so nothing must be there but the engine, and each run differs from the
next in one thing (``performance.kernel_fit``).
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from terazi.hardware.machine import Host
from terazi.memory.bill import HOST
from terazi.models.made_up import MadeUpModel, file_pieces
from terazi.performance.calibration import DeviceCalibration, KernelTime, LinkCalibration
from terazi.performance.kernel_fit import (
    Overheads,
    Runs,
    Shape,
    attention_rate,
    kernel_time,
    noise,
    quiet,
    solve_layers,
    solve_overheads,
)
from terazi.performance.kernels import Matrices, weights_s
from terazi.service.memory_speed import read_bytes_per_s
from terazi.service.stopwatch import Stopwatch

#: The types that files on offer are made of; a model that has others is measured with them by ``--model``.
TYPES = ("q8_0", "q4_K", "q6_K", "q4_0", "q4_1", "q5_0", "q5_K", "f16")
#: Tokens at once: one stream, a few, many, and parts of a prompt.
FEW, MANY = (1, 4, 16), (64, 256)
DEPTH = 1024
_LAYERS_TYPE = "f16"
_STREAMS = 8
#: Measured over forecast that eight of ten cases stayed within: two small models, 1 to 16 streams, three lengths of
#: prompt each (``benchmarks/bench_forecast.py``).
DECODE_SPREAD, PREFILL_SPREAD = (0.75, 1.08), (0.85, 1.18)
_VOCABS = (4096, 131072)


class Effort(NamedTuple):
    """How much is done.

    Args:
        bytes: of a model's matrices; beyond the caches on a CPU, long enough to be timed on a card.
        repeats: of runs of few tokens, and of many.
        rounds, output: of the server's answers, and their length.
    """

    bytes: int = 48_000_000
    repeats: tuple[int, int] = (12, 3)
    rounds: int = 6
    output: int = 24


Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of it: the figures, how fast memory is read, and the share of runs that were disturbed."""

    devices: tuple[DeviceCalibration, ...]
    links: tuple[LinkCalibration, ...]
    memory_bytes_per_s: float
    disturbed: float
    seconds: float


class Calibrator:
    """One calibration.

    Args:
        watch: runs the engine.
        host: this host.
        devices: (id, name) of the accelerators to measure.
        folder: where models are made, a few hundred megabytes at most, one at a time.
        progress: is told each step, for a person.
        types: tensor types to measure.
    """

    def __init__(
        self,
        watch: Stopwatch,
        *,
        host: Host,
        devices: Sequence[tuple[str, str]],
        folder: str,
        progress: Progress,
        types: Sequence[str] = TYPES,
        effort: Effort = Effort(),  # noqa: B008 - it is frozen
    ) -> None:
        self._watch = watch
        self._host = host
        self._devices = tuple(devices)
        self._folder = Path(folder)
        self._progress = progress
        self._types = tuple(dict.fromkeys((*types, _LAYERS_TYPE)))
        self._effort = effort

    async def measure(self) -> Measured:
        """Measure everything.

        Raises:
            EngineError: the engine failed or is far too slow.
        """
        began = time.monotonic()
        self._progress("reading memory")
        memory = quiet([1 / rate for rate in read_bytes_per_s(self._host.cores, self._host.usable_ram_bytes)])
        self._watch.found.append(memory)
        found = [await self._device(None, self._host.cpu_name or "CPU")]
        overheads = await self._overheads(found[0])
        found[0] = dataclasses.replace(found[0], **overheads._asdict())
        for device, name in self._devices:
            # what sampling takes is the host's, whatever computes
            found.append(dataclasses.replace(await self._device(device, name), **overheads._asdict()))
        links = await self._links()
        return Measured(
            devices=tuple(dataclasses.replace(d, points=len(self._watch.found)) for d in found),
            links=links,
            memory_bytes_per_s=1 / memory.seconds,
            disturbed=noise(self._watch.found),
            seconds=time.monotonic() - began,
        )

    async def _device(self, device: str | None, name: str) -> DeviceCalibration:
        where = device or HOST
        self._progress(f"{where}: layers and attention")
        thin = MadeUpModel(dtype=_LAYERS_TYPE, layers=32, embedding=256, feed_forward=256, heads=4, kv_heads=1)
        thin_runs = await self._runs(thin, device, depths=(0, DEPTH))
        thinnest = MadeUpModel(dtype=_LAYERS_TYPE, layers=64, embedding=64, feed_forward=64, heads=1, kv_heads=1)
        overhead = await self._plain_runs(thinnest, device)
        runs: dict[str, tuple[Runs, Runs]] = {}
        for dtype in self._types:
            self._progress(f"{where}: {dtype}")
            narrow = await self._plain_runs(self._narrow(dtype), device)
            runs[dtype] = (narrow, await self._plain_runs(self._wide(dtype), device))
        layers = solve_layers(overhead, *runs[_LAYERS_TYPE])
        kernels = tuple(kernel_time(dtype, *runs[dtype], layers) for dtype in self._types)
        return DeviceCalibration(
            device=where,
            name=name,
            kernels=kernels,
            layer_batches=layers,
            layer_s=layers[0][1] or None,
            decode_spread=DECODE_SPREAD,
            prefill_spread=PREFILL_SPREAD,
            decode_bytes_per_s=1 / _typical(kernels, "q4_K", 0),
            prefill_flops_per_s=_flops_per_s(kernels),
            attention_flops_per_s=_attention(thin, thin_runs, 1),
            prefill_attention_flops_per_s=_attention(thin, thin_runs, MANY[-1]),
        )

    def _narrow(self, dtype: str) -> MadeUpModel:
        """As small models are: their rows share out unevenly over threads, which powers of two would hide."""
        from terazi.models.ggml_types import TYPE_BY_NAME

        if TYPE_BY_NAME[dtype].block_size > 64:  # whole blocks only
            return self._filled(
                MadeUpModel(dtype=dtype, layers=1, embedding=768, feed_forward=2048, heads=12, kv_heads=4)
            )
        return self._filled(
            MadeUpModel(dtype=dtype, layers=1, embedding=576, feed_forward=1536, heads=9, kv_heads=3)
        )

    def _wide(self, dtype: str) -> MadeUpModel:
        return self._filled(
            MadeUpModel(dtype=dtype, layers=1, embedding=2048, feed_forward=4096, heads=32, kv_heads=8)
        )

    def _filled(self, one: MadeUpModel) -> MadeUpModel:
        return dataclasses.replace(one, layers=max(1, round(self._effort.bytes / one.block_bytes)))

    async def _plain_runs(self, model: MadeUpModel, device: str | None) -> Runs:
        runs = await self._runs(model, device)
        shape = Shape(model.block_bytes, model.block_rows, model.layers)
        return Runs(shape, {n: s for (n, _), s in runs.items()})

    async def _runs(
        self, model: MadeUpModel, device: str | None, depths: Sequence[int] = (0,)
    ) -> Mapping[tuple[int, int], float]:
        """Seconds by (tokens at once, depth)."""
        path = self._write(model)
        few, many = self._effort.repeats
        found = {
            **await self._watch.bench(path, prompts=FEW, depths=depths, repeats=few, device=device),
            **await self._watch.bench(path, prompts=MANY, depths=depths, repeats=many, device=device),
        }
        return {(prompt, depth): seconds for (prompt, _, depth), seconds in found.items()}

    async def _overheads(self, host: DeviceCalibration) -> Overheads:
        """Of a server: what its steps take longer than llama-bench's with the very same model."""
        own: dict[tuple[int, int], float] = {}
        prompt = tuple(range(3, 11))
        for vocab in _VOCABS:
            self._progress(f"{HOST}: sampling from {vocab} tokens")
            model = MadeUpModel(
                dtype="q8_0", layers=8, embedding=512, feed_forward=1024, heads=8, kv_heads=2,
                vocab=vocab, vocab_dtype="q8_0", tokenizer=True,
            )  # fmt: skip
            path = self._write(model)
            streams_of = (1, _STREAMS) if vocab == _VOCABS[0] else (1,)
            alone = await self._watch.bench(path, prompts=streams_of, repeats=4 * self._effort.repeats[0])
            output_bytes = next(t.n_bytes for t in model.tensors() if t.name == "output.weight")
            logits = {"q8_0": Matrices(output_bytes, vocab)}
            async with self._watch.server(path, slots=_STREAMS, context=256) as served:
                for streams in streams_of:
                    step = await served.step_s(
                        streams=streams, prompt=prompt, output=self._effort.output, rounds=self._effort.rounds
                    )
                    # a prompt of llama-bench makes the logits of its last token only
                    more = weights_s(host, logits, streams) - weights_s(host, logits, 1)
                    own[vocab, streams] = step - alone[streams, 0, 0] - more
        small, large = _VOCABS
        return solve_overheads(
            one_small_s=own[small, 1],
            many_small_s=own[small, _STREAMS],
            many=_STREAMS,
            small_vocab=small,
            one_large_s=own[large, 1],
            large_vocab=large,
        )

    async def _links(self) -> tuple[LinkCalibration, ...]:
        """Between each two accelerators: what a model split over both takes more than on one."""
        found = []
        for i, (a, _) in enumerate(self._devices):
            for b, _ in self._devices[i + 1 :]:
                self._progress(f"{a} to {b}: hand-over")
                model = dataclasses.replace(self._wide("q8_0"), layers=4)
                path = self._write(model)
                sizes, repeats = (1, MANY[-1]), self._effort.repeats[0]
                alone = [await self._watch.bench(path, prompts=sizes, repeats=repeats, device=d) for d in (a, b)]
                both = await self._watch.bench(path, prompts=sizes, repeats=repeats, device=f"{a}/{b}")
                extra = [max(0.0, both[n, 0, 0] - sum(run[n, 0, 0] for run in alone) / 2) for n in sizes]
                moved = (sizes[1] - sizes[0]) * model.embedding * 4
                per_byte = max(extra[1] - extra[0], 0.0) / moved
                found.append(
                    LinkCalibration(
                        a=a, b=b, latency_s=extra[0], bytes_per_s=1 / per_byte if per_byte else _IMMEASURABLE
                    )
                )
        return tuple(found)

    def _write(self, model: MadeUpModel) -> str:
        path = self._folder / "made-up.gguf"
        with path.open("wb") as file:
            for piece in file_pieces(model):
                file.write(piece)
        return str(path)


#: A link on which 256 tokens took no longer than one: as fast as anything.
_IMMEASURABLE = 1e12


def _typical(kernels: Sequence[KernelTime], dtype: str, index: int) -> float:
    return next((k for k in kernels if k.dtype == dtype), kernels[0]).batches[index][1]


def _flops_per_s(kernels: Sequence[KernelTime]) -> float:
    """Of a long prompt in the commonest type: two operations a weight and token."""
    from terazi.models.ggml_types import TYPE_BY_NAME

    kernel = next((k for k in kernels if k.dtype == "q4_K"), kernels[0])
    kind = TYPE_BY_NAME[kernel.dtype]
    tokens, per_byte = kernel.batches[-1]
    return 2 * tokens * kind.block_size / kind.block_bytes / per_byte


def _attention(model: MadeUpModel, runs: Mapping[tuple[int, int], float], tokens: int) -> float | None:
    flops = 4.0 * model.heads * model.head * tokens * DEPTH * model.layers
    return attention_rate(runs[tokens, 0], runs[tokens, DEPTH], flops)
