"""The id that joins a prediction with its measurement: a short hash of model, machine and settings."""

from importlib import import_module
from typing import TYPE_CHECKING

from terazi.hardware.machine import Machine
from terazi.memory.companion import Companion
from terazi.memory.settings import EngineSettings
from terazi.models.spec import ModelSpec

if TYPE_CHECKING:
    from hashlib import _Hash

_HEX_DIGITS = 12


def plan_id(
    spec: ModelSpec, machine: Machine, settings: EngineSettings, companions: tuple[Companion, ...] = ()
) -> str:
    """Twelve hex digits, the same in every process and however much memory happens to be free.

    The model counts by its tensors (names, types, bytes), not by its path, and the machine by its parts, not by its
    name or load, so a moved file or a reboot keeps the id and a requantised file or another card changes it.
    """
    digest = _sha256()
    for part, model in (("", spec), *((companion.part, companion.spec) for companion in companions)):
        digest.update(part.encode())
        for tensor in model.tensors:
            digest.update(f"{tensor.name}\0{tensor.dtype}\0{tensor.n_bytes}\n".encode())
        digest.update(f"{model.architecture}\0{model.block_count}\0{model.vocab_size}\n".encode())
    host = machine.host
    digest.update(f"{host.cpu_name}\0{host.cores}\0{host.ram_total_bytes}\0{host.memory_limit_bytes}\n".encode())
    for device in machine.devices:
        digest.update(f"{device.id}\0{device.name}\0{device.memory_total_bytes}\0{device.power_cap_w}\n".encode())
    # a dataclass of numbers, texts and tuples: its repr is its value
    digest.update(repr(settings).encode())
    return digest.hexdigest()[:_HEX_DIGITS]


def _sha256() -> "_Hash":
    """SHA-256 of the interpreter itself: ``hashlib`` loads OpenSSL first, a twentieth of the whole start-up."""
    for module in ("_sha2", "_sha256", "hashlib"):  # from Python 3.12 on; 3.11; a Python that has neither
        try:
            made: _Hash = import_module(module).sha256()
        except ImportError:
            continue
        return made
    raise AssertionError("hashlib is always there")
