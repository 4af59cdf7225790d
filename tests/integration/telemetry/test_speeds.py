"""Calibrations and speeds in the store's file, and which of them a weighing takes."""

import json
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest

from specs import machine, smollm2
from terazi.hardware.machine import Machine
from terazi.memory.workload import Workload
from terazi.performance.calibration import Calibration, DeviceCalibration, KernelTime
from terazi.performance.forecast import Forecast, forecast
from terazi.performance.saved_calibration import calibration_to_json
from terazi.placement.plan import Plan
from terazi.placement.solve import solve
from terazi.service import calibrations
from terazi.service.calibrations import calibration_of, machine_key, model_key, program_of, taught
from terazi.service.records import store_file
from terazi.telemetry.store.lookup import measured
from terazi.telemetry.store.speeds import (
    Kept,
    Speed,
    add_speed,
    forget_calibrations,
    keep_calibration,
    kept_calibrations,
)
from terazi.telemetry.store.sqlite import MIGRATIONS, Store

OWN = DeviceCalibration(
    device="Host", name="Test CPU", kernels=(KernelTime("q4_0", ((1, 1e-10),)),), layer_batches=((1, 1e-5),)
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TERAZI_HOME", str(tmp_path))
    monkeypatch.setattr(calibrations, "driver_text", lambda: "driver 1")
    return tmp_path


def keep(
    *,
    on: Machine | None = None,
    build: str = "b1",
    driver: str = "driver 1",
    program: Path | None = None,
    age: int = 0,
) -> Calibration:
    key = machine_key(on or machine())
    made = Calibration(
        machine=key, engine="llama.cpp", build=build, measured_at="2026-11-30T12:00:00Z", devices=(OWN,)
    )
    document = {
        "calibration": calibration_to_json(made),
        "program": None if program is None else program_of(str(program)),
    }
    row = Kept(key, "llama.cpp", driver, build, time.time() - age, json.dumps(document))
    keep_calibration(Store(store_file()), row)
    return made


def speed(model: str, ratio: float, *, build: str = "b1") -> Speed:
    return Speed(machine_key(machine()), model, time.time(), build, 1.0, 100.0, 50.0 * ratio, 50.0)


def weighed() -> tuple[Plan, Forecast]:
    work = Workload(context=2048)
    plan = solve(smollm2(), machine(), work, {})
    assert isinstance(plan, Plan)
    return plan, forecast(smollm2(), plan, machine(), work)


def test_what_is_kept_comes_back_and_is_used() -> None:
    assert calibration_of(machine()) is None
    made = keep()
    used = calibration_of(machine())
    assert used is not None
    assert used.calibration == made
    assert used.stale is None
    assert used.words == "this machine, calibrated on 2026-11-30 with b1"
    assert calibration_of(machine(host_gib=128)) is None, "another machine"


def test_an_engine_that_changed_makes_it_stale(home: Path) -> None:
    program = home / "llama-server"
    program.write_text("one")
    keep(program=program)
    used = calibration_of(machine())
    assert used is not None
    assert used.stale is None
    program.write_text("another one")
    used = calibration_of(machine())
    assert used is not None
    assert "no longer the file" in used.words
    assert "terazi calibrate" in used.words
    own = used.calibration.devices[0]
    assert own.kernels == OWN.kernels, "still better than a guess"
    assert own.decode_spread == calibrations.STALE_SPREAD


def test_the_engine_that_will_run_counts_where_it_is_known() -> None:
    keep(build="b1", age=10)
    keep(build="b2")
    for build in ("b1", "b2"):
        used = calibration_of(machine(), build=build)
        assert used is not None
        assert (used.calibration.build, used.stale) == (build, None)
    used = calibration_of(machine(), build="b3")
    assert used is not None
    assert used.calibration.build == "b2", "the newest"
    assert used.stale == "the engine is b3 now"


def test_another_driver_makes_it_stale() -> None:
    keep(driver="driver 0")
    used = calibration_of(machine())
    assert used is not None
    assert used.stale is not None
    assert "driver" in used.stale


def test_it_is_replaced_and_forgotten_as_one() -> None:
    keep()
    keep()
    keep(on=machine(host_gib=128))
    store = Store(store_file())
    add_speed(store, speed("m", 1.0))
    assert len(kept_calibrations(store)) == 2
    assert forget_calibrations(store, machine_key(machine())) == 1
    assert calibration_of(machine()) is None
    assert calibration_of(machine(host_gib=128)) is not None
    found = measured(store_file(), machine_key(machine()), "llama.cpp")
    assert found is not None
    assert found.speeds == ()


@pytest.mark.parametrize("document", ["", "{", "[]", '{"calibration": {}}', '{"calibration": null}'])
def test_a_damaged_document_is_none(document: str) -> None:
    keep_calibration(
        Store(store_file()), Kept(machine_key(machine()), "llama.cpp", "driver 1", "b1", 1.0, document)
    )
    assert calibration_of(machine()) is None


def test_an_older_file_is_brought_up_to_date(home: Path) -> None:
    path = home / "records.sqlite"
    Store(str(path), migrations=MIGRATIONS[:1]).count()
    assert measured(str(path), "m", "llama.cpp") is None
    assert calibration_of(machine()) is None
    keep()
    assert calibration_of(machine()) is not None


def test_deployments_correct_later_forecasts_of_their_model() -> None:
    plan, said = weighed()
    key = model_key(smollm2(), plan)
    store = Store(store_file())
    for _ in range(4):
        add_speed(store, speed(key, 1.4))
    assert taught(said, smollm2(), plan, machine()) == said, "too few"
    for _ in range(40):
        add_speed(store, speed(key, 1.4))
        add_speed(store, speed("another model", 0.5))
    better = taught(said, smollm2(), plan, machine())
    assert better.decode_tok_s.mid == pytest.approx(1.4 * said.decode_tok_s.mid, rel=0.06)
    add_speed(store, speed(key, 1.4, build="b2"))
    assert taught(said, smollm2(), plan, machine()) == said, "a new engine starts anew"


def test_speeds_are_bounded_in_number_and_age() -> None:
    store = Store(store_file())
    for _ in range(8):
        add_speed(store, speed("m", 1.0), most=5)
        add_speed(store, speed("other", 1.0), most=5)
    add_speed(store, speed("m", 1.0)._replace(wall_s=1.0), most=5)
    with sqlite3.connect(store_file()) as db:
        counts = dict(db.execute("SELECT model, count(*) FROM speed GROUP BY model").fetchall())
    db.close()
    assert counts["other"] == 5
    assert counts["m"] <= 5


def test_the_keys_tell_apart_what_is_not_equally_fast() -> None:
    plan, _ = weighed()
    assert model_key(smollm2(), plan) != model_key(replace(smollm2(), name="another"), plan)
    busy = replace(machine(), host=replace(machine().host, ram_available_bytes=1 << 30))
    assert machine_key(busy) == machine_key(machine())
