"""The engine that a service starts models with, and this machine as that engine sees it."""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from terazi.engines.llama_cpp.binary import Binary, ListedDevice
from terazi.errors import EngineError
from terazi.hardware.machine import Machine
from terazi.hardware.probe import load_catalogue
from terazi.memory.llama_cpp.settings import BUILD
from terazi.service.engine_view import as_engine_sees
from terazi.service.paths import cache_dir
from terazi.service.weigh import find_machine
from terazi.supervisor.find_engine import find_llama_server, list_devices

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A llama-server and the devices that it lists; without one (None) no model can be started."""

    binary: Binary | None = None
    devices: tuple[ListedDevice, ...] | None = None

    def look(self) -> Machine:
        """This machine as it is now, as the engine sees it. It may block."""
        machine = find_machine(None)
        if self.binary is None:
            return machine
        return as_engine_sees(machine, self.binary, self.devices, load_catalogue())[0]


async def find_engine(server: str | None, *, needed: bool, say: Callable[[str], None]) -> Engine:
    """The engine and its devices, with notes for a person on what is unusual about them.

    Args:
        server: the one to use, by its path; None looks for one.
        needed: models are to be started; if not, none is an answer too.

    Raises:
        EngineError: there is none, and it is needed.
    """
    try:
        binary = await asyncio.to_thread(find_llama_server, server, os.environ, cache_dir=str(cache_dir()))
        devices = await asyncio.to_thread(list_devices, binary)
    except EngineError as error:
        if needed:
            raise
        _log.info("no models can be started here: %s", error.message)
        return Engine()
    if binary.build is not None and f"b{binary.build}" != BUILD:
        say(f"note: the bill follows llama.cpp {BUILD}, and {binary.path} is {binary.label}")
    for note in as_engine_sees(find_machine(None), binary, devices, load_catalogue())[1]:
        say(f"note: {note}")
    return Engine(binary=binary, devices=devices)
