"""Whether a loaded engine has put its weights where they were planned.

An engine whose accelerator is gone (a driver that didn't survive a suspend, a container without the device) loads
all the same, into RAM, and is then ten times slower without a word. In: what its log should say, and what it says.
Out: a reason, or None.
"""

from terazi.engines.base import LaunchSpec
from terazi.engines.llama_cpp.observe import LoadReport
from terazi.memory.bill import HOST
from terazi.units import MIB

#: Less than this share of the planned weights is not a rounding.
_LEAST_SHARE = 0.5
#: With ``-sm tensor`` all devices are one in the log (``ggml-backend-meta.cpp``, b11434).
_TOGETHER = "Meta("


def misplaced(spec: LaunchSpec, report: LoadReport | None) -> str | None:
    """Why this engine must not serve; None if it is placed as planned, or may be elsewhere, or nobody can tell."""
    if spec.elsewhere or report is None or not report.buffers:
        return None
    if any(buffer.device.startswith(_TOGETHER) for buffer in report.buffers):
        return None
    planned: dict[str, int] = {}
    for entry in spec.expectations:
        if entry.term == "weights" and entry.device != HOST:
            planned[entry.device] = planned.get(entry.device, 0) + entry.bytes
    held = report.sums()
    if any(term == "weights" and device not in {*planned, HOST} for term, device in held):
        return None  # an accelerator by another name than the plan's: where things are can't be told for sure
    lacking = {
        device: n
        for device, n in planned.items()
        if held.get(("weights", device), 0) < _LEAST_SHARE * n and n >= MIB
    }
    if not lacking:
        return None
    told = ", ".join(
        f"{held.get(('weights', device), 0) // MIB} of {n // MIB} MiB of weights on {device}"
        for device, n in lacking.items()
    )
    offloaded = (
        "" if report.offloaded is None else f"; it offloaded {report.offloaded[0]} of {report.offloaded[1]} layers"
    )
    return f"it has put only {told}{offloaded}, the rest is in RAM: the accelerator is missing or was refused"
