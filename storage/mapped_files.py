"""Memory-mapped files whose read errors do not end the process (a handler of SIGBUS).

If a mapped file is shortened, or its disk fails, the next access raises SIGBUS, which ends the process. The handler
here runs in the thread of the access: it maps zeros over the rest of the file, marks the file as lost, and the access
continues. The reader asks afterwards whether the file was lost, and then reads it with `preadv`, which reports the
error. The handler passes any other address to the previous handler.

The handler is written with ctypes. It may take the interpreter's lock, because code that copies out of a file holds no
lock. Nothing is mapped if another handler has replaced it (faulthandler's, that of torch's workers), or if the system
is not a 64-bit Linux.
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

_IS_SUPPORTED = (
    sys.platform == "linux" and sys.maxsize > 2**32 and platform.machine() in ("x86_64", "aarch64", "arm64")
)
_SA_SIGINFO, _SA_NODEFER = 4, 0x40000000
_PROT_READ, _MAP_SHARED, _MAP_PRIVATE_FIXED_ANONYMOUS = 1, 1, 0x32
_MAP_FAILED = 2**64 - 1
_CODE_OFFSET, _ADDRESS_OFFSET = 8, 16
"""Offsets of si_code and si_addr in siginfo_t on 64-bit Linux."""


class _Sigaction(ctypes.Structure):
    """struct sigaction of glibc and musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@dataclass
class _Mapping:
    """Address range of a mapped file."""

    start: int
    size: int
    lost: bool = False


class MappedFile:
    """Bytes of a file in memory as long as this object or an array of it exists; `np.asarray` returns the array."""

    def __init__(self, guard: _Guard, start: int, size: int) -> None:
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (start, True), "version": 3}
        self._guard, self._mapping = guard, _Mapping(start, size)
        guard.mappings[start] = self._mapping

    def __del__(self, suppress: Any = contextlib.suppress) -> None:
        # Modules may already be empty when the interpreter ends.
        with suppress(AttributeError, TypeError):
            self._guard.unmap(self._mapping)

    @property
    def lost(self) -> bool:
        """True if zeros have replaced some of the bytes."""
        return self._mapping.lost


def map_file(descriptor: int, size: int) -> MappedFile | None:
    """Map an open file; return None for an empty file, or where mapping is not safe."""
    # mmap(2) refuses a length of 0.
    if _guard is None or not size or not is_guarded():
        return None
    start = _guard.map(None, size, _MAP_SHARED, descriptor)
    return MappedFile(_guard, start, size) if start else None


def is_guarded() -> bool:
    """Return True if the handler of SIGBUS is in force; the first call installs it."""
    return _guard is not None and _guard.is_active()


class _Guard:
    """Handler of SIGBUS, and the previous handler."""

    def __init__(self) -> None:
        self.mappings: dict[int, _Mapping] = {}
        self._library = ctypes.CDLL(None, use_errno=True)
        self._library.mmap.restype = ctypes.c_void_p
        self._library.mmap.argtypes = (
            *(ctypes.c_void_p, ctypes.c_size_t),
            *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
        )
        self._library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        # PyDLL keeps the interpreter's lock: releasing and taking it costs more than this frequent call.
        self._get_action = ctypes.PyDLL(None).sigaction
        handler_type = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._callback = handler_type(self._handle)  # must exist as long as the handler may be called
        self._handler = ctypes.cast(self._callback, ctypes.c_void_p).value
        self._previous = _Sigaction()
        self._lock, self._is_installed = threading.Lock(), False

    def is_active(self) -> bool:
        """Return True if the handler is in force; install it once, and never again if another handler replaces it."""
        if not self._is_installed:
            self._install()
        current = _Sigaction()
        self._get_action(signal.SIGBUS, None, ctypes.byref(current))
        return bool(current.handler == self._handler)

    def map(self, address: int | None, size: int, flags: int, descriptor: int) -> int:
        """Map readable memory and return its address; 0 if the system refuses."""
        start = self._library.mmap(address, size, _PROT_READ, flags, descriptor, 0)
        return 0 if start in (None, _MAP_FAILED) else int(start)

    def unmap(self, mapping: _Mapping) -> None:
        """Forget the mapping and free its addresses, in this order: another file may get them at once."""
        del self.mappings[mapping.start]
        self._library.munmap(mapping.start, mapping.size)

    def _install(self) -> None:
        with self._lock:
            if not self._is_installed:
                own = _Sigaction(handler=self._handler, flags=_SA_SIGINFO | _SA_NODEFER)
                self._is_installed = not self._library.sigaction(
                    signal.SIGBUS, ctypes.byref(own), ctypes.byref(self._previous)
                )

    def _handle(self, number: int, info: int, context: Any) -> None:
        address = ctypes.c_size_t.from_address(info + _ADDRESS_OFFSET).value
        for mapping in list(self.mappings.values()):
            if mapping.start <= address < mapping.start + mapping.size:
                page = address & -mmap.PAGESIZE
                mapping.lost = True
                if self.map(page, mapping.start + mapping.size - page, _MAP_PRIVATE_FIXED_ANONYMOUS, -1):
                    return
        # The previous handler gets the access when it repeats. A signal that a process has sent must be raised again.
        self._library.sigaction(number, ctypes.byref(self._previous), None)
        if ctypes.c_int.from_address(info + _CODE_OFFSET).value <= 0:
            signal.raise_signal(number)


_guard = _Guard() if _IS_SUPPORTED else None
