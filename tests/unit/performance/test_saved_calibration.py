"""Calibrations through JSON: what goes in comes out, and nothing odd gets in."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import builds, floats, integers, just, lists, none, sampled_from, text, tuples

from terazi.performance.calibration import Calibration, DeviceCalibration, KernelTime, LinkCalibration
from terazi.performance.saved_calibration import calibration_from_json, calibration_to_json

RATE = floats(1e-15, 1e18)
TIMES = lists(tuples(integers(1, 4096), RATE), min_size=1, max_size=4, unique_by=lambda t: t[0]).map(
    lambda rows: tuple(sorted(rows))
)
DEVICES = builds(
    DeviceCalibration,
    device=text(max_size=8),
    name=text(max_size=8),
    decode_bytes_per_s=none() | RATE,
    layer_s=none() | RATE,
    step_s=RATE,
    vocab_s=just(0.0) | RATE,
    attention_flops_per_s=none() | RATE,
    decode_spread=none() | tuples(RATE, RATE),
    points=integers(0, 10**6),
    kernels=lists(builds(KernelTime, sampled_from(["q4_K", "f16"]), TIMES, just(()) | TIMES), max_size=3).map(
        tuple
    ),
    layer_batches=TIMES,
)
LINKS = builds(LinkCalibration, a=text(), b=text(), latency_s=RATE, bytes_per_s=RATE)
CALIBRATIONS = builds(
    Calibration,
    machine=text(max_size=8),
    engine=just("llama.cpp"),
    build=just("b11434"),
    measured_at=just("2026-11-30T12:00:00Z"),
    driver=none() | text(max_size=8),
    devices=lists(DEVICES, max_size=3).map(tuple),
    links=lists(builds(LinkCalibration, a=text(), b=text(), latency_s=RATE, bytes_per_s=RATE), max_size=2).map(
        tuple
    ),
)


@given(CALIBRATIONS)
def test_it_comes_back(calibration: Calibration) -> None:
    assert calibration_from_json(json.loads(json.dumps(calibration_to_json(calibration)))) == calibration


def good() -> dict[str, Any]:
    own = DeviceCalibration(
        device="Host", name="CPU", kernels=(KernelTime("q4_K", ((1, 1e-10),)),), layer_batches=((1, 1e-5),)
    )
    made = Calibration(machine="m", engine="llama.cpp", build="b1", measured_at="2026", devices=(own,))
    said: dict[str, Any] = json.loads(json.dumps(calibration_to_json(made)))
    return said


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "terazi.calibration/9"),
        (("devices",), "none"),
        (("devices", 0, "step_s"), -1),
        (("devices", 0, "step_s"), float("nan")),
        (("devices", 0, "step_s"), True),
        (("devices", 0, "decode_bytes_per_s"), 0),
        (("devices", 0, "kernels", 0, "batches"), []),
        (("devices", 0, "kernels", 0, "batches"), [[0, 1.0]]),
        (("devices", 0, "layer_batches"), []),
        (("devices", 0, "decode_spread"), [1.0]),
        (("devices", 0), None),
        (("machine",), ...),
    ],
)
def test_odd_documents_are_refused(path: tuple[str | int, ...], value: object) -> None:
    said: Any = good()
    calibration_from_json(said)
    place = said
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    with pytest.raises(ValueError, match="not"):
        calibration_from_json(said)
