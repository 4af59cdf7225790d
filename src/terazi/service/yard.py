"""What all engines of a fleet have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from terazi.engines.llama_cpp.binary import Binary
from terazi.hardware.machine import Machine
from terazi.service.config import Config
from terazi.service.deployment import Deployment
from terazi.service.engine_at_hand import Engine
from terazi.supervisor.vitals import DeviceMemory


@dataclass(slots=True, kw_only=True)
class Yard:
    """One for a fleet.

    Args:
        binary: the engine; None if there is none, which only matters once a model is to be started.
        look: this machine as it is now, as the engine sees it. It may block.
        run_dir: where records and logs are kept.
        config: ``memory`` and ``engines`` of it count here; another one may be put in.
        on_ready: told of each start that succeeded.
        device_memory: what the driver last counted for a process.
        price_per_kwh: for forecasts.
    """

    binary: Binary | None
    look: Callable[[], Machine]
    run_dir: Path
    config: Config
    on_ready: Callable[[Deployment], None] = lambda _: None
    device_memory: DeviceMemory | None = None
    price_per_kwh: float | None = None

    def use(self, engine: Engine) -> None:
        """Start engines with this one from now on; what runs goes on."""
        self.binary, self.look = engine.binary, engine.look
