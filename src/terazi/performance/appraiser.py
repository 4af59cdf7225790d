"""What the solver wants to know of speeds, answered from forecasts: scores, limits, differences, seconds a layer.

In: ``ModelSpec``, ``Machine``, ``Workload``. Out: an ``Appraiser`` as ``placement`` declares it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST, Bill
from terazi.memory.llama_cpp.settings import BUILD, LlamaCppSettings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.forecast import Forecast, forecast, score
from terazi.placement.pace import Pace
from terazi.placement.plan import Plan, Verdict
from terazi.placement.sums import place, short_twin
from terazi.units import format_seconds

if TYPE_CHECKING:
    from terazi.performance.calibration import Calibration

#: Differences below this share are said to be none.
_SAME = 0.005


class Appraiser:
    """Judges the plans of one model on one machine; each plan is forecast once."""

    def __init__(
        self, spec: ModelSpec, machine: Machine, workload: Workload, calibration: "Calibration | None" = None
    ) -> None:
        self._calibration = calibration
        self._spec = spec
        self._machine = machine
        self._workload = workload
        self._known: dict[str, Forecast] = {}
        self._judge = score(spec, machine, workload, calibration)
        self._marks: dict[str, float] = {}

    def forecast(self, plan: Plan) -> Forecast:
        """What to expect of *plan*."""
        known = self._known.get(plan.id)
        if known is None:
            known = self._known[plan.id] = forecast(
                self._spec, plan, self._machine, self._workload, calibration=self._calibration
            )
        return known

    def score(self, plan: Plan) -> float:
        """Output tokens per second of the workload, prompts included."""
        known = self._marks.get(plan.id)
        if known is None:
            known = self._marks[plan.id] = self._judge(plan)
        return known

    def misses(self, plan: Plan) -> str:
        """The limits of the workload that the middle of the forecast doesn't keep."""
        work = self._workload
        if work.ttft_limit_s is None and work.itl_limit_s is None:
            return ""
        said = self.forecast(plan)
        missed = []
        if work.ttft_limit_s is not None and said.ttft_s.mid > work.ttft_limit_s:
            missed.append(
                f"the first token would come after {1e3 * said.ttft_s.mid:.0f} ms,"
                f" and {1e3 * work.ttft_limit_s:.0f} ms are allowed"
            )
        if work.itl_limit_s is not None and said.itl_s.mid > work.itl_limit_s:
            missed.append(
                f"a token would take {1e3 * said.itl_s.mid:.1f} ms, and {1e3 * work.itl_limit_s:.1f} ms are allowed"
            )
        return "; ".join(missed)

    def against(self, plan: Plan, chosen: Plan) -> str:
        """Speed of the whole workload and watts of *plan* beside *chosen*."""
        ours, theirs = self.forecast(chosen), self.forecast(plan)
        ratio = self.score(plan) / self.score(chosen)
        decode = f"{theirs.decode_tok_s.mid:.3g} against {ours.decode_tok_s.mid:.3g} tok/s"
        first = f"first token after {format_seconds(theirs.ttft_s.mid)} against {format_seconds(ours.ttft_s.mid)}"
        if ratio > 1 + _SAME:
            said = f"it would gain {100 * (ratio - 1):.0f} % ({decode}, {first})"
        elif ratio < 1 - _SAME:
            said = f"it would cost {100 * (1 - ratio):.0f} % of the speed ({decode}, {first})"
        else:
            said = f"it would be no faster ({decode}, {first})"
        if ours.power_w is not None and theirs.power_w is not None:
            watts = theirs.power_w.mid - ours.power_w.mid
            if abs(watts) >= 1:
                said += f" and {'take' if watts > 0 else 'save'} {abs(watts):.0f} W"
        return said

    def pace(self, settings: LlamaCppSettings) -> Pace | None:
        """Seconds a block and for the output on each device, from forecasts of short twins of the model.

        Of twins with one and with two periods of blocks the difference is the blocks' time and the rest the
        output's; handing over is what a twin on two devices takes longer than its parts, and a block on the host
        beside a card what a twin takes longer for each.
        """
        small, large = short_twin(self._spec, 1), short_twin(self._spec, 2)
        if large.block_count == small.block_count or not self._machine.devices:
            return None
        pace = Pace({}, {}, {HOST: 0.0}, {}, {HOST: 0.0})
        kinds: dict[tuple[object, ...], str] = {}
        first = self._machine.devices[0]
        for device in (None, *self._machine.devices):
            name = HOST if device is None else device.id
            # the first card is entered from no other, so it says nothing of its likes' hand-over
            like = name if device is None or device is first else kinds.setdefault(_kind(device), name)
            if like == name:
                self._take_pace(pace, settings, (small, large), device)
                continue
            for figures in pace:
                figures[name] = figures[like]
        return pace

    def _take_pace(
        self, pace: Pace, settings: LlamaCppSettings, twins: tuple[ModelSpec, ModelSpec], device: Device | None
    ) -> None:
        small, large = twins
        blocks = large.block_count
        if device is None:
            less, more = (self._seconds(twin, settings, (), ()) for twin in twins)
        else:
            less, more = (self._seconds(twin, settings, (device,), (twin.block_count + 1,)) for twin in twins)
        name = HOST if device is None else device.id
        block = max(0.0, (more - less) / (blocks - small.block_count))
        pace.block_s[name] = block
        pace.output_s[name] = max(0.0, less - small.block_count * block)
        pace.beside_s[name] = block
        if device is None:
            return
        one, all_but_one = (self._seconds(large, settings, (device,), (n,)) for n in (blocks, 2))
        kept = max(0.0, block + (all_but_one - one) / (blocks - 2)) if blocks > 2 else pace.block_s[HOST]
        pace.beside_s[name] = kept
        pace.begin_s[name] = max(0.0, one - more + block - kept)
        pace.entry_s[name] = 0.0
        first = self._machine.devices[0]
        if device is not first:
            half = blocks // 2
            both = self._seconds(large, settings, (first, device), (half, blocks - half + 1))
            parts = half * pace.block_s[first.id] + (blocks - half) * block + pace.output_s[name]
            pace.entry_s[name] = max(0.0, both - parts)

    def _seconds(
        self, twin: ModelSpec, settings: LlamaCppSettings, devices: tuple[Device, ...], counts: Sequence[int]
    ) -> float:
        """Seconds of a token with so many of the last layers of *twin* on *devices*, the rest on the host."""
        laid = place(settings, devices, counts)
        if not devices:
            laid = replace(laid, n_gpu_layers=0, devices=("none",))
        plan = Plan(
            id="",
            engine="llama.cpp",
            settings=replace(laid, n_cpu_moe=0, cpu_moe=False),
            workload=self._workload,
            verdict=Verdict.FITS,
            devices=(),
            bill=Bill(engine="llama.cpp", build=BUILD, lines=()),
        )
        return 1 / score(twin, self._machine, self._workload, self._calibration)(plan)


def _kind(device: Device) -> tuple[object, ...]:
    slot = device.pcie
    return (
        device.name,
        device.memory_bandwidth.value,
        device.flops_fp16.value,
        device.power_cap_w,
        None if slot is None else slot.bytes_per_s,
    )
