"""The ``Calibration`` noun: what one machine delivered when it was measured, in place of its class's constants.

In: figures that were timed on this machine (``terazi calibrate``, or a deployment's own records). Out: rates and
an interval for each device. The figures are what was delivered, not shares of a data sheet: a shared or virtual
machine has no data sheet that holds, and a better catalogue must not change what was measured.
"""

from dataclasses import dataclass
from typing import NamedTuple


class KernelTime(NamedTuple):
    """How long one tensor type's matrices take, by how many tokens go at once.

    Args:
        dtype: ggml's name of the type (``q4_K``).
        batches: (tokens at once, seconds for each byte of the matrix), ascending.
        rows: (tokens at once, seconds for each row besides): a kernel is entered and left once a row, so the short
            rows of a small model cost more a byte.
    """

    dtype: str
    batches: tuple[tuple[int, float], ...]
    rows: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCalibration:
    """What one device delivered under one engine. ``None`` was not measured, and the class's constant stays.

    A decode step of *b* streams takes::

        step_s + layers·layer_s + weights/decode_bytes_per_s + caches/kv_bytes_per_s
               + (b - 1)·flops/batch_flops_per_s + b·token_s

    and a prompt ``flops/prefill_flops_per_s`` and the same ``step_s`` and ``layers·layer_s`` for each micro-batch.

    Where the kernels of single tensor types were timed (``kernels`` isn't empty), their times take the place of
    weights, operations and layers; ``performance.kernels`` says how. On a CPU one figure for all types can be off
    by a factor of two: it unpacks some of them far faster than others, and multiplies only some in blocks.

    Args:
        device: the engine's own name (``CUDA0``), or ``Host`` for the CPU and its RAM.
        name: what the device called itself when it was measured; another name voids the figures.
        decode_bytes_per_s: weights that a single stream's step takes in (eta times the bandwidth).
        layer_s: seconds of fixed cost a layer (c).
        step_s: seconds of fixed cost a step, whatever the model: scheduling, sampling, the first launch.
        token_s: seconds that each stream of a step adds besides: its sampling and its share of the server.
        kv_bytes_per_s: cache that attention takes in; None: as fast as weights.
        prefill_flops_per_s: operations of a prompt.
        batch_flops_per_s: operations of the streams after the first; None: as fast as a prompt's.
        decode_spread, prefill_spread: measured over predicted that eight of ten of its points stay within.
        points: how many runs the figures rest on.
        kernels: what each tensor type takes.
        layer_batches: (tokens at once, seconds a layer beside its matrices), ascending.
        attention_flops_per_s: operations of attention of a step, while the cache is read; takes the place of
            ``kv_bytes_per_s`` where it was measured.
        prefill_attention_flops_per_s: the same for a prompt.
        vocab_s: seconds for each entry of the vocabulary that every sampled token takes.
    """

    device: str
    name: str
    decode_bytes_per_s: float | None = None
    layer_s: float | None = None
    step_s: float = 0.0
    token_s: float = 0.0
    kv_bytes_per_s: float | None = None
    prefill_flops_per_s: float | None = None
    batch_flops_per_s: float | None = None
    decode_spread: tuple[float, float] | None = None
    prefill_spread: tuple[float, float] | None = None
    points: int = 0
    kernels: tuple[KernelTime, ...] = ()
    layer_batches: tuple[tuple[int, float], ...] = ()
    attention_flops_per_s: float | None = None
    prefill_attention_flops_per_s: float | None = None
    vocab_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCalibration:
    """A transfer between two devices (``Host`` is one): ``latency_s + bytes/bytes_per_s``, one way."""

    a: str
    b: str
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One machine, measured.

    Args:
        machine: a fingerprint of what was measured (host, devices, driver); who stores it decides how it is made.
        engine, build: under which engine, ``llama.cpp`` and its build.
        driver: the accelerators' driver, if there are any.
        measured_at: when, ISO 8601 in UTC.
    """

    machine: str
    engine: str
    build: str
    measured_at: str
    driver: str | None = None
    devices: tuple[DeviceCalibration, ...] = ()
    links: tuple[LinkCalibration, ...] = ()
    schema: str = "terazi.calibration/1"

    def device(self, device: str, name: str) -> DeviceCalibration | None:
        """The figures of *device* if it still is the one called *name*."""
        return next((d for d in self.devices if d.device == device and d.name == name), None)

    def link(self, a: str, b: str) -> LinkCalibration | None:
        """The figures of the path from *a* to *b*, either way."""
        return next((x for x in self.links if {x.a, x.b} == {a, b}), None)
