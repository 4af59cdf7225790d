"""Calibrating with the real engine, small and short: this host, and two stand-in devices with a link."""

import os
from pathlib import Path

import pytest

from terazi.engines.llama_cpp import oracle
from terazi.hardware.probe import read_machine
from terazi.service.calibrator import Calibrator, Effort
from terazi.service.stopwatch import Stopwatch
from terazi.supervisor.asking import stand_ins
from terazi.supervisor.find_engine import find_llama_server

pytestmark = pytest.mark.e2e

BRIEF = Effort(bytes=3_000_000, repeats=(2, 1), rounds=1, output=4)


async def test_host_and_stand_ins(tmp_path: Path) -> None:
    binary = find_llama_server(None, os.environ)
    program = str(Path(binary.path).parent / oracle.STAND_IN_PROGRAMS[0])
    async with stand_ins(lambda port: oracle.stand_in_launch(program, port), 2) as endpoints:
        calibrator = Calibrator(
            Stopwatch(binary, threads=1, rpc=endpoints),
            host=read_machine().host,
            devices=[("RPC0", "first"), ("RPC1", "second")],
            folder=str(tmp_path),
            progress=lambda _: None,
            types=("q4_K",),
            effort=BRIEF,
        )
        found = await calibrator.measure()
    assert [d.device for d in found.devices] == ["Host", "RPC0", "RPC1"]
    for device in found.devices:
        assert {k.dtype for k in device.kernels} == {"q4_K", "f16"}
        for kernel in device.kernels:
            assert all(s > 0 for _, s in kernel.batches)
    assert [(link.a, link.b) for link in found.links] == [("RPC0", "RPC1")]
    assert found.memory_bytes_per_s > 1e8
