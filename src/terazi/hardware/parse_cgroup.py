"""What this process's control groups allow, from the text of their files.

In: /proc/self/cgroup, /proc/self/mountinfo, and each group's files along the way to the root. Out: where to look,
and the tightest limit. A parent's limit binds as much as the group's own, so the whole chain counts.
Sources: kernel documentation, admin-guide/cgroup-v2 and cgroup-v1/memory.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

#: cgroup v1 writes "no limit" as the largest page-aligned 63-bit number; anything near it is none.
_UNLIMITED: Final = 2**60


class GroupFolder(NamedTuple):
    """Where a controller's groups are mounted, and this process's group below it."""

    mount: str
    group: str
    version: int

    def chain(self) -> tuple[str, ...]:
        """Folders from the own group up to the mount."""
        parts = [p for p in self.group.split("/") if p and p != ".."]
        return tuple("/".join((self.mount, *parts[:n])) for n in range(len(parts), -1, -1))


class MemoryLimit(NamedTuple):
    """The limit that leaves least, and what the group that has it holds already (file cache not counted)."""

    limit_bytes: int
    used_bytes: int | None


class GroupFiles(NamedTuple):
    """One group's files as text, ``None`` where a file isn't there."""

    limits: tuple[str | None, ...]
    usage: str | None
    stat: str | None


def find_folder(controller: str, cgroup: str, mountinfo: str) -> GroupFolder | None:
    """Where *controller* ("memory", "cpu") is for this process.

    A v1 hierarchy that carries the controller wins over the unified one: a controller lives in one of them only.

    Args:
        cgroup: /proc/self/cgroup, lines ``id:controllers:path``.
        mountinfo: /proc/self/mountinfo. In a container the mount shows only part of the tree, whose root is named
            there; the path below it is what counts.
    """
    paths: dict[str, str] = {}
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            for name in controllers.split(","):
                paths.setdefault(name, path)
    unified: GroupFolder | None = None
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        words, kind = left.split(), right.split()
        if not dash or len(words) < 5 or len(kind) < 3:
            continue
        root, mount = words[3], words[4].rstrip("/")
        if kind[0] == "cgroup" and controller in kind[2].split(",") and controller in paths:
            return GroupFolder(mount=mount, group=_below(paths[controller], root), version=1)
        if kind[0] == "cgroup2" and "" in paths and unified is None:
            unified = GroupFolder(mount=mount, group=_below(paths[""], root), version=2)
    return unified


def _below(path: str, root: str) -> str:
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return "/" + path.strip("/")


def tightest_memory(groups: Iterable[GroupFiles]) -> MemoryLimit | None:
    """The limit in the chain that leaves least room, or ``None`` without any.

    Usage is counted less the inactive file cache, which the kernel gives back before it kills anyone.
    """
    best: tuple[int, MemoryLimit] | None = None
    for group in groups:
        limits = [n for n in map(_bytes, group.limits) if n is not None]
        if not limits:
            continue
        used = _bytes(group.usage)
        if used is not None:
            used = max(0, used - _reclaimable(group.stat))
        left = min(limits) - (used or 0)
        if best is None or left < best[0]:
            best = left, MemoryLimit(limit_bytes=min(limits), used_bytes=used)
    return None if best is None else best[1]


def _bytes(text: str | None) -> int | None:
    value = (text or "").strip()
    if not value.isdecimal() or int(value) >= _UNLIMITED:
        return None
    return int(value)


def _reclaimable(stat: str | None) -> int:
    found = {}
    for line in (stat or "").splitlines():
        key, _, value = line.partition(" ")
        if value.strip().isdecimal():
            found[key] = int(value)
    # v1 writes the subtree's sum as total_…; v2 counts the subtree anyway.
    return found.get("total_inactive_file", found.get("inactive_file", 0))


def cpu_quota(v2_max: str | None, v1_quota: str | None, v1_period: str | None) -> float | None:
    """CPUs' worth of time that one group may use: v2 ``cpu.max`` ("200000 100000"), or v1's two files."""
    words = (v2_max or "").split() or [(v1_quota or "").strip(), (v1_period or "").strip()]
    if len(words) != 2 or not all(w.isdecimal() for w in words) or int(words[1]) == 0 or int(words[0]) == 0:
        return None
    return int(words[0]) / int(words[1])
