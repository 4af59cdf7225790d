"""What the graphics driver says, asked now and then and kept for those who can't wait for an answer."""

from typing import TYPE_CHECKING

from terazi.hardware.probe import read_cards
from terazi.policy.guard_messages import Card

if TYPE_CHECKING:
    from terazi.hardware.parse_nvml import NvmlReport


class Driver:
    """NVIDIA's. Without one it knows nothing."""

    def __init__(self) -> None:
        self._report: NvmlReport | None = None

    def cards(self) -> dict[str, Card]:
        """The cards as they are now. It blocks: asking starts a process."""
        report = self._report = read_cards()
        return {
            f"CUDA{place}": Card(
                total_bytes=gpu.memory_total_bytes,
                free_bytes=gpu.memory_free_bytes,
                temperature_c=None if gpu.temperature_c is None else float(gpu.temperature_c),
                throttled=gpu.slowed is True,
            )
            for place, gpu in enumerate(() if report is None else report.gpus)
            if gpu.memory_total_bytes
        }

    def memory_of(self, pid: int) -> tuple[tuple[str, int], ...] | None:
        """(device, bytes) that the driver counted for *pid* when it was last asked; None if it named none such.

        In a container it may name processes by the host's numbers.
        """
        report = self._report
        if report is None:
            return None
        ids = {gpu.index: f"CUDA{place}" for place, gpu in enumerate(report.gpus)}
        found = tuple((ids[i], used) for i, its, used in report.processes if its == pid and i in ids)
        return found or None
