"""How pressed for memory a system is, from the text of the kernel's files.

In: ``/proc/pressure/memory`` or ``memory.pressure``, ``/proc/vmstat``. Out: numbers, None where they aren't there.
"""


def parse_full_avg10(text: str | None) -> float | None:
    """Percent of the last ten seconds in which all work stood still for memory (accounting/psi.rst)."""
    for line in (text or "").splitlines():
        words = line.split()
        if words[:1] == ["full"]:
            for word in words[1:]:
                key, _, value = word.partition("=")
                if key == "avg10":
                    try:
                        return float(value)
                    except ValueError:
                        return None
    return None


def parse_count(text: str | None, key: str) -> int | None:
    """The value of *key* in lines ``key value`` (``pswpin``, ``oom_kill``)."""
    for line in (text or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdecimal():
            return int(value)
    return None
