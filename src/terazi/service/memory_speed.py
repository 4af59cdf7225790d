"""How fast this host's memory is read: a scan by as many threads as there are cores, timed.

The scan is the C library's ``memchr`` for a byte that isn't there: it reads every byte once, with vector loads, and
``ctypes`` lets go of the interpreter's lock meanwhile. That is what decoding does, which writes next to nothing.
"""

import ctypes
import mmap
import threading
import time
from collections.abc import Sequence
from typing import Final

#: Larger than most last-level caches, so that memory answers and not the cache.
LEAST_BYTES: Final = 256 * 1024 * 1024
#: Of what is free, what a measurement may take.
_SHARE: Final = 8


def read_bytes_per_s(threads: int, available_bytes: int, *, passes: int = 5) -> tuple[float, ...]:
    """Bytes per second of each of *passes* scans by *threads* threads together.

    Args:
        threads: as many as an engine would use.
        available_bytes: free memory; no more than an eighth of it is taken.

    Raises:
        MemoryError: not even a megabyte a thread is free.
    """
    each = min(max(LEAST_BYTES // threads, 32 * 1024 * 1024), available_bytes // _SHARE // threads)
    each -= each % mmap.PAGESIZE
    if each < 1024 * 1024:
        raise MemoryError(f"{available_bytes} bytes are free")
    areas = [mmap.mmap(-1, each) for _ in range(threads)]
    views = [(ctypes.c_char * each).from_buffer(area) for area in areas]
    try:
        return _scans([ctypes.addressof(view) for view in views], each, passes)
    finally:
        views.clear()  # a mapping can't be closed while it is looked into
        for area in areas:
            area.close()


def _scans(addresses: Sequence[int], each: int, passes: int) -> tuple[float, ...]:
    memchr = ctypes.CDLL(None).memchr
    memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    memchr.restype = ctypes.c_void_p
    start, end = (threading.Barrier(len(addresses) + 1) for _ in range(2))

    def scan(address: int) -> None:
        # touched by the thread that will read it: the page then lies on that thread's memory node, and is no
        # shared page of zeros
        ctypes.memset(address, 1, each)
        for _ in range(passes):
            start.wait()
            memchr(address, 0, each)
            end.wait()

    workers = [threading.Thread(target=scan, args=(address,), daemon=True) for address in addresses]
    for worker in workers:
        worker.start()
    found = []
    for _ in range(passes):
        start.wait()
        began = time.perf_counter()
        end.wait()
        found.append(each * len(addresses) / (time.perf_counter() - began))
    for worker in workers:
        worker.join()
    return tuple(found)
