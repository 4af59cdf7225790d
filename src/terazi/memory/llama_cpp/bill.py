"""Puts llama.cpp's bill together from the rules of this package."""

from terazi.hardware.machine import Device
from terazi.memory.bill import Bill
from terazi.memory.llama_cpp.settings import LlamaCppSettings
from terazi.models.spec import ModelSpec


def weigh(spec: ModelSpec, settings: LlamaCppSettings, devices: tuple[Device, ...], isa: frozenset[str]) -> Bill:
    """The bytes that each device and the host will hold after llama.cpp has loaded *spec*.

    Args:
        spec: the model.
        settings: the command line, resolved by nobody yet: defaults are applied here as the tool would.
        devices: accelerators in the engine's order (RPC first, then discrete cards).
        isa: CPU flags of the host, which decide what is repacked.
    """
    raise NotImplementedError
