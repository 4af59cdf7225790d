"""Reading the log of a loading llama-server (build b11434): buffers, devices, progress, known failures.

The buffer lines need verbosity 4 (``launch.LOG_VERBOSITY``), the device of each layer verbosity 5.
"""

import re
from dataclasses import dataclass, field

from terazi.engines.llama_cpp.failures import FailureReader, LoadFailure
from terazi.memory.bill import HOST
from terazi.units import MIB

#: A line longer than this is cut: chat templates and backtraces.
MAX_LINE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBuffer:
    """One buffer as the log names it.

    Args:
        term: ``weights``, ``kv``, ``state``, ``compute`` or ``output``; beside the model ``adapter`` (a LoRA's
            weights) or ``encoder`` (a projector's graph).
        buffer: llama.cpp's buffer name, e.g. ``CPU_Mapped``.
        device: the device that holds it; CPU buffers of every kind are ``Host``.
        bytes: as printed, which is MiB with two decimals: exact to 5,243 bytes.
    """

    term: str
    buffer: str
    device: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What the engine says it did. None where it didn't say."""

    buffers: tuple[LoadedBuffer, ...] = ()
    layers: tuple[tuple[int, str], ...] = ()  # (layer, device), printed at verbosity 5 only
    offloaded: tuple[int, int] | None = None  # layers on accelerators, of all
    devices: tuple[tuple[str, str], ...] = ()  # (device id, description)
    n_ctx: int | None = None
    n_slots: int | None = None
    flash_attn: bool | None = None
    kv_unified: bool | None = None
    build: str | None = None
    loaded: bool = False
    schema: str = "terazi.load-report/1"

    def sums(self) -> dict[tuple[str, str], int]:
        """Bytes by (term, device)."""
        found: dict[tuple[str, str], int] = {}
        for b in self.buffers:
            found[b.term, b.device] = found.get((b.term, b.device), 0) + b.bytes
        return found


_TERMS = {
    "model": "weights", "KV": "kv", "RS": "state", "compute": "compute", "output": "output", "LoRA": "adapter",
}  # fmt: skip
# llama-model.cpp, llama-kv-cache.cpp, llama-memory-recurrent.cpp, llama-kv-cache-dsv4.cpp, llama-context.cpp,
# llama-adapter.cpp, tools/mtmd/clip.cpp
_BUFFER = re.compile(r"(\w+): +(\S+) +(model|KV|RS|compute|output|LoRA|DSV4 \S+ state) buffer size = +([\d.]+) MiB")
#: Who reserves for images and sounds.
_ENCODER = "reserve_compute_meta"
_LAYER = re.compile(r"load_tensors: layer +(\d+) assigned to device (\S+),")
_OFFLOADED = re.compile(r"load_tensors: offloaded (\d+)/(\d+) layers to GPU")
_DEVICE = re.compile(r"common_param: +- (\S+) +: (.+) \(\d+ MiB, \d+ MiB free\)")
_N_CTX = re.compile(r"llama_context: n_ctx += (\d+)")
_SLOTS = re.compile(r"load_model: initializing, n_slots = (\d+), .*?kv_unified = '(true|false)'")
_FLASH = re.compile(
    r"llama_context: flash_attn += (enabled|disabled)|Flash Attention (enabled)|Flash Attention .*set to (disabled)"
)
_BUILD = re.compile(r"build (\d+) \((\S+)\) with|build: (\d+) \((\S+)\)")
_LOADED = re.compile(r"llama_server: model loaded|main: model loaded")
_RESERVE = re.compile(r"sched_reserve: reserving")
_CONTEXT = re.compile(r"llama_context: constructing llama_context")
_RPC_BUFFER = re.compile(r"RPC\d*\[(.+)\]")


@dataclass(slots=True)
class LogReader:
    """Takes the log in pieces of any size; ``report`` and ``failure`` are what is known so far."""

    _rest: str = ""
    _buffers: list[LoadedBuffer] = field(default_factory=list)
    _layers: dict[int, str] = field(default_factory=dict)
    _devices: dict[str, str] = field(default_factory=dict)
    _context_from: int = 0  # buffers of the context that is being made begin here
    _failures: FailureReader = field(default_factory=FailureReader)
    _offloaded: tuple[int, int] | None = None
    _n_ctx: int | None = None
    _n_slots: int | None = None
    _flash_attn: bool | None = None
    _kv_unified: bool | None = None
    _build: str | None = None
    _loaded: bool = False

    def feed(self, text: str) -> bool:
        """Take in *text*; True if it shows progress, which any new line or dot does."""
        self._rest += text
        *lines, self._rest = self._rest.split("\n")
        for line in lines:
            self._read(line[:MAX_LINE])
        if len(self._rest) > MAX_LINE:  # no end of line in sight: don't keep it for ever
            self._rest = self._rest[-MAX_LINE:]
        return bool(lines) or "." in text

    def close(self) -> None:
        """The log has ended: a last line without a line end counts as one."""
        self._read(self._rest[:MAX_LINE])
        self._rest = ""

    @property
    def failure(self) -> LoadFailure | None:
        """The most specific known failure, unless a later line says that it was recovered."""
        return self._failures.failure

    @property
    def report(self) -> LoadReport:
        """What has been said so far."""
        return LoadReport(
            buffers=tuple(self._buffers),
            layers=tuple(sorted(self._layers.items())),
            offloaded=self._offloaded,
            devices=tuple(self._devices.items()),
            n_ctx=self._n_ctx,
            n_slots=self._n_slots,
            flash_attn=self._flash_attn,
            kv_unified=self._kv_unified,
            build=self._build,
            loaded=self._loaded,
        )

    def _read(self, line: str) -> None:
        self._failures.read(line)
        if match := _BUFFER.search(line):
            source, name, kind, mib = match.groups()
            term = "encoder" if source == _ENCODER else _TERMS.get(kind, "state")
            n = round(float(mib) * MIB)
            self._buffers.append(LoadedBuffer(term=term, buffer=name, device=self.device_of(name), bytes=n))
        elif match := _LAYER.search(line):
            self._layers[int(match[1])] = self.device_of(match[2])
        elif match := _DEVICE.search(line):
            self._devices[match[1]] = match[2]
        elif _CONTEXT.search(line):
            self._context_from = len(self._buffers)
        elif _RESERVE.search(line):  # printed again when a context is reserved anew: the last one holds
            kept = [b for b in self._buffers[self._context_from :] if b.term != "compute"]
            self._buffers[self._context_from :] = kept
        else:
            self._read_fact(line)

    def _read_fact(self, line: str) -> None:
        if match := _OFFLOADED.search(line):
            self._offloaded = (int(match[1]), int(match[2]))
        elif (match := _N_CTX.search(line)) and self._n_ctx is None:
            self._n_ctx = int(match[1])
        elif match := _SLOTS.search(line):
            self._n_slots, self._kv_unified = int(match[1]), match[2] == "true"
        elif match := _FLASH.search(line):
            self._flash_attn = match[1] == "enabled" or match[2] is not None
        elif (match := _BUILD.search(line)) and self._build is None:
            self._build = f"b{match[1] or match[3]}-{match[2] or match[4]}"
        elif _LOADED.search(line):
            self._loaded = True

    def device_of(self, buffer: str) -> str:
        """The device behind a buffer's name; RPC buffers name the address, which the device list resolves."""
        if match := _RPC_BUFFER.fullmatch(buffer):
            return next((name for name, text in self._devices.items() if text == match[1]), buffer)
        if buffer.startswith(("CPU", "BLAS", "AMX")) or buffer.endswith("_Host"):
            return HOST
        return re.sub(r"_(Mapped|Private|Split)$", "", buffer)
