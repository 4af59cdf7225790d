"""The backend of a slot without an engine: it can be listed and named, and answers nothing."""

from terazi.errors import EngineError
from terazi.gateway.backend import HeldMemory, ModelCard
from terazi.gateway.in_flight import InFlight


class Cold:
    """Implements the gateway's ``Backend`` for a replica that isn't in memory."""

    base_url = ""
    api_key = ""
    state = "cold"
    in_flight = 0
    memory = HeldMemory(size_bytes=0, size_vram_bytes=0)

    def __init__(self, replica: str, card: ModelCard) -> None:
        self.replica = replica
        self.flight = InFlight()
        self.card = card

    async def ready(self) -> None:
        """It starts nothing, so there is nothing to wait for.

        Raises:
            EngineError: always.
        """
        raise EngineError(
            f"{self.card.id} is not in memory", hint=f"ask it something, or: terazi load {self.card.id}"
        )
