"""How is a file mapped into memory so that no fault of it ends the process?

Where a mapped file is shortened, or its disk fails, the next look at it raises SIGBUS, which ends the process. The
handler here is called in the thread that looked: it puts zeros in place of the rest of that file, notes that the file
is lost, and the look goes on. Whoever looked asks afterwards whether the file was lost meanwhile, and reads it by
`preadv` then, which tells what is wrong. Addresses that are none of ours go to the handler that was there before.

The handler is written with ctypes: it may take the interpreter's lock, since no lock is held by code that copies out of
a file. Where another handler took its place (faulthandler's, that of torch's workers), or the system is not a 64-bit
Linux, nothing is mapped.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import platform
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any

_KNOWN = (
    sys.platform == "linux" and sys.maxsize > 2**32 and platform.machine() in ("x86_64", "aarch64", "arm64")
)
_SA_SIGINFO, _SA_NODEFER = 4, 0x40000000
_PROT_READ, _MAP_SHARED, _MAP_ZEROS_HERE = 1, 1, 0x32
_FAILED = 2**64 - 1
_CODE_OFFSET, _ADDRESS_OFFSET = 8, 16
"""Of si_code and si_addr in siginfo_t, on each 64-bit Linux."""


class _Sigaction(ctypes.Structure):
    """As glibc and musl have it."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@dataclass
class _Place:
    """Of a mapped file in memory."""

    start: int
    size: int
    lost: bool = False


class MappedFile:
    """The bytes of a file in memory, as long as this object or an array of it lives: `np.asarray` gives one."""

    def __init__(self, guard: _Guard, start: int, size: int) -> None:
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (start, True), "version": 3}
        self._guard, self._place = guard, _Place(start, size)
        guard.places[start] = self._place

    def __del__(self, suppress: Any = contextlib.suppress) -> None:
        # Where the interpreter ends, modules are empty already.
        with suppress(AttributeError, TypeError):
            self._guard.unmap(self._place)

    @property
    def lost(self) -> bool:
        """Whether zeros were put in place of some of the bytes."""
        return self._place.lost


def map_file(descriptor: int, size: int) -> MappedFile | None:
    """All of an open file, mapped; None where that cannot be done safely, or there is nothing to map."""
    if _guard is None or not size or not is_guarded():
        return None
    start = _guard.map(None, size, _MAP_SHARED, descriptor)
    return MappedFile(_guard, start, size) if start else None


def is_guarded() -> bool:
    """Whether a fault of a mapped file is ours to handle, now; the first call sees to it."""
    return _guard is not None and _guard.stands()


class _Guard:
    """The handler of SIGBUS, and the one that was there before."""

    def __init__(self) -> None:
        self.places: dict[int, _Place] = {}
        self._library = ctypes.CDLL(None, use_errno=True)
        self._library.mmap.restype = ctypes.c_void_p
        self._library.mmap.argtypes = (
            *(ctypes.c_void_p, ctypes.c_size_t),
            *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
        )
        self._library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        # Asked often, by a call that keeps the interpreter's lock: to take it again costs more than the answer.
        self._ask = ctypes.PyDLL(None).sigaction
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._callback = kind(self._handle)  # lives as long as the handler may be called
        self._handler = ctypes.cast(self._callback, ctypes.c_void_p).value
        self._previous = _Sigaction()
        self._lock, self._is_set = threading.Lock(), False

    def stands(self) -> bool:
        """Whether the handler is in force; it is set once, and left alone where another takes its place."""
        if not self._is_set:
            self._set()
        found = _Sigaction()
        self._ask(signal.SIGBUS, None, ctypes.byref(found))
        return bool(found.handler == self._handler)

    def map(self, address: int | None, size: int, flags: int, descriptor: int) -> int:
        """Where so much is mapped that may be read, from its first byte on; 0 where it is not."""
        got = self._library.mmap(address, size, _PROT_READ, flags, descriptor, 0)
        return 0 if got in (None, _FAILED) else int(got)

    def unmap(self, place: _Place) -> None:
        """Give the memory back; forgotten first, since its addresses may be another's then."""
        del self.places[place.start]
        self._library.munmap(place.start, place.size)

    def _set(self) -> None:
        with self._lock:
            if not self._is_set:
                own = _Sigaction(handler=self._handler, flags=_SA_SIGINFO | _SA_NODEFER)
                self._is_set = not self._library.sigaction(
                    signal.SIGBUS, ctypes.byref(own), ctypes.byref(self._previous)
                )

    def _handle(self, number: int, info: int, context: Any) -> None:
        address = ctypes.c_size_t.from_address(info + _ADDRESS_OFFSET).value
        for place in list(self.places.values()):
            if place.start <= address < place.start + place.size:
                page = address & -mmap.PAGESIZE
                place.lost = True
                if self.map(page, place.start + place.size - page, _MAP_ZEROS_HERE, -1):
                    return
        # The handler of before meets the look when it is repeated; what a process has sent is not repeated by itself.
        self._library.sigaction(number, ctypes.byref(self._previous), None)
        if ctypes.c_int.from_address(info + _CODE_OFFSET).value <= 0:
            signal.raise_signal(number)


_guard = _Guard() if _KNOWN else None
