"""Makes a process cheap to fork: half of a short-lived child's cost is the copying of the page table."""

import ctypes
from pathlib import Path

_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_HUGE = 2 << 20


def huge_pages() -> None:
    """Put what is allocated into huge pages, of which 50 are copied instead of 25,000 small ones. Where the kernel does
    not offer it, nothing happens.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, _, *name = line.split()
        start, end = (int(address, 16) for address in addresses.split("-"))
        first, last = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if access == "rw-p" and name in ([], ["[heap]"]) and first < last:
            madvise(start, end - start, _MADV_HUGEPAGE)
            madvise(first, last - first, _MADV_COLLAPSE)
