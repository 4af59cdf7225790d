"""A ``Calibration`` as JSON, and back.

What is kept on disk outlives the program that wrote it, so nothing that is read is trusted.
"""

import dataclasses
import math
from typing import Any

from terazi.performance.calibration import Calibration, DeviceCalibration, KernelTime, LinkCalibration

_SCHEMA = "terazi.calibration/1"
_MOST = 10_000
#: Figures that may not have been measured.
_RATES = (
    "decode_bytes_per_s",
    "layer_s",
    "kv_bytes_per_s",
    "prefill_flops_per_s",
    "batch_flops_per_s",
    "attention_flops_per_s",
    "prefill_attention_flops_per_s",
)


def calibration_to_json(calibration: Calibration) -> dict[str, Any]:
    """Plain dicts, lists and numbers."""
    return dataclasses.asdict(calibration) | {
        "devices": [
            dataclasses.asdict(d) | {"kernels": [k._asdict() for k in d.kernels]} for d in calibration.devices
        ]
    }


def calibration_from_json(said: object) -> Calibration:
    """The calibration that *said* was.

    Raises:
        ValueError: it is none of this schema, or a figure is missing or no sensible number.
    """
    if not isinstance(said, dict) or said.get("schema") != _SCHEMA:
        raise ValueError(f"not a {_SCHEMA}")
    try:
        return Calibration(
            machine=str(said["machine"]),
            engine=str(said["engine"]),
            build=str(said["build"]),
            measured_at=str(said["measured_at"]),
            driver=_text(said.get("driver")),
            devices=tuple(_device(d) for d in _list(said["devices"])),
            links=tuple(
                LinkCalibration(
                    a=str(x["a"]),
                    b=str(x["b"]),
                    latency_s=_number(x["latency_s"]),
                    bytes_per_s=_positive(x["bytes_per_s"]),
                )
                for x in _list(said["links"])
            ),
        )
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"not a whole calibration: {error}") from error


def _device(said: dict[str, Any]) -> DeviceCalibration:
    known: dict[str, Any] = {name: _optional(said.get(name)) for name in _RATES}
    for name in ("decode_spread", "prefill_spread"):
        pair = said.get(name)
        known[name] = None if pair is None else (_positive(pair[0]), _positive(pair[1]))
    kernels = tuple(
        KernelTime(str(k["dtype"]), _batches(k["batches"]), _batches(k["rows"])) for k in _list(said["kernels"])
    )
    if not all(k.batches for k in kernels):
        raise ValueError("not a kernel: it has no times")
    layers = _batches(said["layer_batches"])
    if kernels and not layers:
        raise ValueError("not whole: kernels without a layer's cost")
    return DeviceCalibration(
        device=str(said["device"]),
        name=str(said["name"]),
        step_s=_number(said["step_s"]),
        token_s=_number(said["token_s"]),
        vocab_s=_number(said["vocab_s"]),
        points=int(_number(said["points"])),
        kernels=kernels,
        layer_batches=layers,
        **known,
    )


def _batches(said: object) -> tuple[tuple[int, float], ...]:
    return tuple(sorted((int(_positive(n)), _number(s)) for n, s in _list(said)))


def _list(said: object) -> list[Any]:
    if not isinstance(said, list | tuple) or len(said) > _MOST:
        raise ValueError("not a list")
    return list(said)


def _text(said: object) -> str | None:
    return None if said is None else str(said)


def _optional(said: object) -> float | None:
    return None if said is None else _positive(said)


def _number(said: object) -> float:
    if isinstance(said, bool) or not isinstance(said, int | float) or not math.isfinite(said) or said < 0:
        raise ValueError(f"not a figure: {said!r}")
    return float(said)


def _positive(said: object) -> float:
    value = _number(said)
    if value <= 0:
        raise ValueError(f"not a figure: {said!r}")
    return value
