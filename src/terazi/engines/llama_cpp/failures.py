"""llama-server's last words: which line is the cause, what it means, what to do, and whether to try again.

Patterns are those of build b11434, with the file that prints them; the most specific line wins over the umbrella
lines that follow it (``failed to load model``), and a line that says "recovered" takes back what came before.
"""

import re
from dataclasses import dataclass

from terazi.policy.lifecycle_messages import Retry


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailure:
    """Why an engine ended: ``cause`` is a clause, ``remedy`` a sentence, ``line`` the evidence as printed."""

    cause: str
    remedy: str
    line: str
    retry: Retry = Retry.BACK_OFF

    @property
    def no_memory(self) -> bool:
        """With more memory it would have worked."""
        return "ran out" in self.cause


@dataclass(frozen=True, slots=True)
class _Known:
    """``rank``: how specific; ``cause`` may use the pattern's groups."""

    rank: int
    pattern: re.Pattern[str]
    cause: str
    remedy: str
    retry: Retry = Retry.NEVER


def _known(rank: int, pattern: str, cause: str, remedy: str, retry: Retry = Retry.NEVER) -> _Known:
    return _Known(rank, re.compile(pattern), cause, remedy, retry)


_LESS = "Choose a smaller --context or fewer --users, a smaller quantisation, or more layers in RAM (--gpu-layers)."
_AGAIN = "Download the file again and compare its size and checksum with the source."
_RPC = "Start ggml-rpc-server of the same build at that address, or leave it out of --rpc."

_TABLE: tuple[_Known, ...] = (
    # server-http.cpp
    _known(100, r"couldn't bind HTTP server socket, hostname: (\S+), port: (\d+)", "port {1} on {0} is taken",
           "Another program listens there; another port is tried by itself.", Retry.AT_ONCE),
    # gguf.cpp, llama-model-loader.cpp: the file
    _known(90, r"invalid magic characters: '(.{1,4})', expected 'GGUF'",
           "the file is not a GGUF model: it begins with '{0}'",
           "A login page or a git-LFS pointer was probably saved in its place; download the file again."),
    _known(90, r"GGUFv1 is no longer supported", "the file is a GGUF of version 1, which llama.cpp no longer reads",
           "Download or convert the model again."),
    _known(90, r"this GGUF file is version (\d+) but",
           "the file is a GGUF of version {0}, too new for this llama.cpp",
           "Update llama.cpp."),
    _known(90, r"tensor '([^']+)' data is not within the file bounds", "the file is cut off: {0} is not all there",
           _AGAIN),
    _known(88, r"failed to load GGUF split from (\S+)", "a part of the split model is missing: {0}",
           "Put all parts into one folder under their own names and name the first."),
    _known(86, r"failed to open GGUF file '([^']+)' \(([^)]*)\)", "the model file can't be opened: {1}",
           "Check the path and its permissions."),
    # llama-model.cpp, llama-model-loader.cpp, llama-vocab.cpp: the model
    _known(90, r"unknown model architecture: '([^']+)'", "this llama.cpp doesn't know the architecture '{0}'",
           "Update llama.cpp, or choose another model."),
    _known(90, r"unknown pre-tokenizer type: '([^']+)'", "this llama.cpp doesn't know the tokenizer '{0}'",
           "Update llama.cpp, or choose a newer conversion of the model."),
    _known(88, r"missing tensor '([^']+)'|tensor '([^']+)' not found", "the model lacks the tensor {0}",
           "The conversion and this llama.cpp don't match: take a newer file or update llama.cpp."),
    _known(88, r"wrong number of tensors; expected (\d+), got (\d+)", "the model has {1} tensors where {0} belong",
           "The conversion and this llama.cpp don't match: take a newer file or update llama.cpp."),
    _known(88, r"tensor '([^']+)' has wrong shape", "the tensor {0} has a shape that this llama.cpp doesn't expect",
           "The conversion and this llama.cpp don't match: take a newer file or update llama.cpp."),
    # llama-context.cpp: settings that don't go together
    _known(90, r"quantized V cache .*requires (?:flash_attn|Flash Attention)",
           "a quantised V cache needs Flash Attention",
           "Switch Flash Attention on (-fa on), or keep the V cache in f16."),
    _known(90, r"model does not support different K \((\w+)\) and V \((\w+)\) cache types",
           "this model can't have a K cache of {0} with a V cache of {1}", "Choose one type for both (--kv-type)."),
    _known(90, r"([KV]) cache type (\w+) with block size (\d+) does not divide",
           "the {0} cache can't be {1}: the head size is no multiple of {2}",
           "Choose another --kv-type, such as f16."),
    _known(90, r"SPLIT_MODE_TENSOR requires flash_attn", "split mode 'tensor' needs Flash Attention",
           "Switch Flash Attention on (-fa on), or choose split mode 'layer'."),
    # memory
    _known(80, r"failed to allocate compute (?:pp|tg) buffers|failed to allocate compute buffers",
           "memory ran out for the compute buffers", f"Lower the micro-batch (-ub). {_LESS}", Retry.BACK_OFF),
    _known(80, r"failed to allocate buffer for kv cache", "memory ran out for the KV cache", _LESS, Retry.BACK_OFF),
    _known(76, r"unable to allocate (CPU\S*|\S*_Host) buffer", "RAM ran out for the weights",
           "Free RAM, choose a smaller model, or put more layers on a graphics card.", Retry.BACK_OFF),
    _known(76, r"unable to allocate (\S+) buffer", "memory ran out on {0} for the weights", _LESS, Retry.BACK_OFF),
    _known(70, r"insufficient memory \(attempted to allocate +([\d.]+) MB\)", "RAM ran out ({0} MB asked)",
           "Free RAM, or raise the memory limit of the container or shell. " + _LESS, Retry.BACK_OFF),
    _known(70, r"cudaMemGetInfo failed \(out of memory\), returning 0/0",
           "a graphics card is so full that it can't even be asked",
           "End what holds its memory, or hide the card (CUDA_VISIBLE_DEVICES=).", Retry.BACK_OFF),
    # ggml-backend.cpp; older builds: alloc_tensor_range. What it was for, the lines above say.
    _known(68, r"failed to allocate (\S+) buffer of size (\d+)", "memory ran out on {0} ({1} bytes asked)", _LESS,
           Retry.BACK_OFF),
    _known(66, r"allocating ([\d.]+) MiB on device (\d+): cudaMalloc failed: out of memory",
           "memory ran out on device {1} ({0} MiB asked)", _LESS, Retry.BACK_OFF),
    _known(20, r"failed to mlock (\d+)-byte buffer", "the model could not be locked in RAM",
           "Raise the limit of locked memory (ulimit -l), or leave mlock out.", Retry.BACK_OFF),
    # ggml-rpc.cpp
    _known(85, r"Failed to connect to (\S+)|RPC handshake failed for (\S+)", "the RPC server {0} doesn't answer",
           _RPC, Retry.BACK_OFF),
    _known(85, r"RPC server version mismatch: (\S+)", "the RPC server speaks another version ({0})", _RPC),
    _known(85, r"Remote RPC server crashed", "an RPC server went away", _RPC, Retry.BACK_OFF),
    # the process as a whole
    _known(85, r"error: invalid argument: (\S+)", "this llama-server doesn't know the flag {0}",
           "Update llama.cpp, or leave the flag out."),
    _known(85, r"error while loading shared libraries: ([^:\s]+)", "the library {0} is missing",
           "Install it, or use another build of llama.cpp."),
    _known(60, r"(?:CUDA|ROCm|HIP|MUSA) error: (.+)", "the graphics driver gave up: {0}",
           "Look for Xid lines in the kernel log (dmesg).", Retry.BACK_OFF),
    _known(50, r"GGML_ASSERT\((.+)\) failed", "llama.cpp broke off at an assertion ({0})",
           "Report it to llama.cpp with the log, or try another build.", Retry.BACK_OFF),
    _known(40, r"failed to initialize the context: (.+)", "the context could not be made: {0}", _LESS,
           Retry.BACK_OFF),
    _known(40, r"error loading model: (.+)", "the model could not be loaded: {0}", "Read the log above this line.",
           Retry.BACK_OFF),
)  # fmt: skip

#: What was lost before these lines was got back: the loading goes on (``llama-context.cpp``, ``server.cpp``).
_RECOVERED = re.compile(r"retrying without pipeline parallelism|llama_server: model loaded")

#: Sound like failure and aren't: ``--fit`` gives way to settings; pinned memory falls back to pageable.
_BENIGN = re.compile(
    r"failed to fit params to free device memory|trying to fit params to free device memory"
    r"|of pinned memory|no usable GPU found|\(this warning is normal during memory fitting\)"
)


class FailureReader:
    """Keeps the most specific known failure of the lines that it is shown; of equals the first, the cause."""

    def __init__(self) -> None:
        self._best: tuple[int, LoadFailure] | None = None

    def read(self, line: str) -> None:
        """Take in one line."""
        if _BENIGN.search(line):
            return
        if _RECOVERED.search(line):
            self._best = None
            return
        for known in _TABLE:
            if self._best is not None and known.rank <= self._best[0]:
                continue
            if match := known.pattern.search(line):
                groups = [g for g in match.groups() if g is not None]
                found = LoadFailure(
                    cause=known.cause.format(*groups),
                    remedy=known.remedy,
                    line=line.strip()[:500],
                    retry=known.retry,
                )
                self._best = (known.rank, found)

    @property
    def failure(self) -> LoadFailure | None:
        """The failure, if a known one was seen."""
        return self._best[1] if self._best is not None else None
