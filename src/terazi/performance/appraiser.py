"""What the solver wants to know of speeds, answered from forecasts: scores, limits, differences, seconds a layer.

In: ``ModelSpec``, ``Machine``, ``Workload``. Out: an ``Appraiser`` as ``placement`` declares it.
"""

from collections.abc import Sequence
from dataclasses import replace

from terazi.hardware.machine import Device, Machine
from terazi.memory.bill import HOST, Bill
from terazi.memory.llama_cpp.settings import BUILD, LlamaCppSettings
from terazi.memory.settings import llama_cpp_settings
from terazi.memory.workload import Workload
from terazi.models.spec import ModelSpec
from terazi.performance.forecast import Forecast, forecast
from terazi.placement.pace import Pace
from terazi.placement.plan import Plan, Verdict
from terazi.placement.sums import place, short_twin

#: Differences below this share are said to be none.
_SAME = 0.005


class Appraiser:
    """Judges the plans of one model on one machine; each plan is forecast once."""

    def __init__(self, spec: ModelSpec, machine: Machine, workload: Workload) -> None:
        self._spec = spec
        self._machine = machine
        self._workload = workload
        self._known: dict[str, Forecast] = {}

    def forecast(self, plan: Plan) -> Forecast:
        """What to expect of *plan*."""
        known = self._known.get(plan.id)
        if known is None:
            known = self._known[plan.id] = forecast(self._spec, plan, self._machine, self._workload)
        return known

    def score(self, plan: Plan) -> float:
        """Output tokens per second of the workload, prompts included."""
        users, output = max(1, self._workload.users), max(1, self._workload.output)
        return users * output / workload_s(self.forecast(plan), plan, self._workload)

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
        first = f"first token after {theirs.ttft_s.mid:.2g} against {ours.ttft_s.mid:.2g} s"
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
        output's; handing over is what a twin on two devices takes longer than its parts.
        """
        small, large = short_twin(self._spec, 1), short_twin(self._spec, 2)
        if large.block_count == small.block_count:
            return None
        machine = self._machine
        like: dict[tuple[object, ...], str] = {}
        block: dict[str, float] = {}
        output: dict[str, float] = {}
        entry: dict[str, float] = {HOST: 0.0}
        steps = large.block_count - small.block_count
        first = machine.devices[0] if machine.devices else None
        for device in (*machine.devices, None):
            name = HOST if device is None else device.id
            if device is not None:
                known = like.setdefault(_kind(device), name)
                # the first card is entered from no other, so it says nothing of its likes' hand-over
                if known not in {name, first.id if first is not None else ""}:
                    block[name], output[name], entry[name] = block[known], output[known], entry[known]
                    continue
            less, more = (self._seconds(twin, settings, device) for twin in (small, large))
            block[name] = max(0.0, (more - less) / steps)
            output[name] = max(0.0, less - small.block_count * block[name])
            if device is not None and first is not None and device is not first:
                both = self._seconds(large, settings, first, device)
                half = large.block_count // 2
                parts = half * block[first.id] + (large.block_count - half) * block[name] + output[name]
                entry[name] = max(0.0, both - parts)
        if first is not None:
            entry[first.id] = 0.0  # the first in the order is never entered from another
        return Pace(block, output, entry)

    def _seconds(self, twin: ModelSpec, settings: LlamaCppSettings, *devices: Device | None) -> float:
        """Seconds of the workload on *twin*, its layers shared evenly by *devices*; None is the host alone."""
        cards = tuple(d for d in devices if d is not None)
        counts = _even(twin.block_count, len(cards))
        laid = place(settings, cards, counts)
        if not cards:
            laid = replace(laid, devices=("none",) if self._machine.devices else ())
        plan = Plan(
            id="",
            engine="llama.cpp",
            settings=replace(laid, n_cpu_moe=0, cpu_moe=False),
            workload=self._workload,
            verdict=Verdict.FITS,
            devices=(),
            bill=Bill(engine="llama.cpp", build=BUILD, lines=()),
        )
        return workload_s(forecast(twin, plan, self._machine, self._workload), plan, self._workload)


def workload_s(said: Forecast, plan: Plan, workload: Workload) -> float:
    """Seconds that *workload* takes: every prompt, then the answers in as many waves as there are slots for."""
    users, output = max(1, workload.users), max(1, workload.output)
    waves = -(-users // max(1, llama_cpp_settings(plan.settings).n_parallel or 1))
    return users * said.ttft_s.mid + waves * output * said.itl_s.mid


def _even(blocks: int, devices: int) -> Sequence[int]:
    """Blocks for each of one or two devices, and the output for the last."""
    if devices < 2:
        return (blocks + 1,) * devices
    return blocks // 2, blocks - blocks // 2 + 1


def _kind(device: Device) -> tuple[object, ...]:
    slot = device.pcie
    return (
        device.name,
        device.memory_bandwidth.value,
        device.flops_fp16.value,
        device.power_cap_w,
        None if slot is None else slot.bytes_per_s,
    )
