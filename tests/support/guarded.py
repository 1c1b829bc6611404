"""Memory whose end a test cannot read or write past."""

import ctypes
import mmap

import numpy as np


def guarded(size):
    """So many bytes before a page that nobody may read or write."""
    pages = -(-size // mmap.PAGESIZE) + 1
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    array = np.frombuffer(memory, np.uint8)
    last = array.ctypes.data + (pages - 1) * mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(last), mmap.PAGESIZE, 0) == 0
    return array[(pages - 1) * mmap.PAGESIZE - size : (pages - 1) * mmap.PAGESIZE]
