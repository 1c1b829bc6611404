"""How one run holds a folder of an object store: an object beside it, written on condition and renewed while it runs.

    s3://bucket/cards/1.0.0         the folder
    s3://bucket/cards/.1.0.0.lock   who holds it; gone at the end

A run that was killed leaves it. The next one takes it over: at once where it sees that the process has ended, on this
machine, else once it was not renewed for `LEASE_SECONDS`, by the store's clock. What writes for the one that was held
up so long finds another holder, and writes no more.

How one conversion holds the folder that it writes, so that a second one stays away.

A local folder is locked (halofeed.system.locks), one of an object store is leased (halofeed.pipelines.lease).
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from halofeed.errors import JobError, StoreError
from halofeed.pipelines.objects.base import ABSENT, ChangedError
from halofeed.pipelines.objects.choose import store_of
from halofeed.system.locks import FolderLock
from halofeed.system.signals import CleanupOnExit
from halofeed.system.threads import in_thread, is_done

LEASE_SECONDS: Final = 120.0
RENEWED_SECONDS: Final = 30.0
_TRIES: Final = 5
_SECONDS_TO_RELEASE: Final = 10.0


def lock_of(folder: str) -> str:
    """The address of the object that says who holds a folder.

    >>> lock_of("s3://bucket/cards/1.0.0")
    's3://bucket/cards/.1.0.0.lock'
    """
    above, _, name = folder.rstrip("/").rpartition("/")
    return f"{above}/.{name.removeprefix('.')}.lock"


@contextmanager
def leased(folder: str) -> Iterator[str]:
    """Hold a folder of an object store; gives the word by which the holder is known to those who write for it.

    Raises:
        JobError: another run holds it, which is named.
    """
    lease = _Lease(folder)
    with CleanupOnExit(lease.release):
        lease.take()
        threading.Thread(target=lease.renew, name="lease", daemon=True).start()
        yield lease.token


def check_holder(folder: str, token: str) -> None:
    """See that a folder is still held by whom this token belongs to.

    Raises:
        JobError: it is not.
    """
    address = lock_of(folder)
    holder = _read(address)
    if holder.get("token") != token:
        raise JobError(
            f"{folder}: {holder.get('owner', 'nobody')} holds it now ({address}), so that this run, which was held up "
            "for long or stopped, writes no more into it"
        )


class _Lease:
    """The lock of one folder, as one run has it."""

    def __init__(self, folder: str) -> None:
        self.token = uuid.uuid4().hex
        self._folder, self._address = folder, lock_of(folder)
        self._store = store_of(folder)
        self._owner = f"{_user()}@{socket.gethostname()}, process {os.getpid()},"
        self._renewals, self._version = 0, ABSENT
        self._ended = threading.Event()

    def _document(self) -> bytes:
        # A renewal changes the text, and so the version that S3 gives it.
        document = {
            "owner": self._owner,
            "token": self.token,
            "renewals": self._renewals,
            "machine": _machine(),
            "process": os.getpid(),
            "born": _born(os.getpid()),
        }
        return json.dumps(document).encode()

    def take(self) -> None:
        """Become the holder; JobError where there is another one."""
        for _ in range(_TRIES):
            try:
                self._version = self._store.write(self._address, self._document(), self._version)
                return
            except ChangedError:
                stands, holder = self._store.stat(self._address), _read(self._address)
            self._version = ABSENT if stands is None else stands.version
            if stands is None or holder.get("token") == self.token:
                continue
            if stands.age_seconds < LEASE_SECONDS and not _has_ended(holder):
                raise JobError(
                    f"{self._folder}: {holder.get('owner', 'another run')} is converting into it: it renewed "
                    f"{self._address} {max(0, stands.age_seconds):.0f} s ago, and holds it until it has not done so "
                    f"for {LEASE_SECONDS:.0f} s; wait until that has ended, or take another --name or --version"
                )
        raise JobError(f"{self._address}: it changes hands all the time; run the same command again")

    def renew(self) -> None:
        """Renew it now and then until it is released."""
        while not self._ended.wait(RENEWED_SECONDS):
            self._renewals += 1
            # The next time, or those who write will find another holder.
            with contextlib.suppress(StoreError):
                try:
                    self._version = self._store.write(self._address, self._document(), self._version)
                except ChangedError:
                    if _read(self._address).get("token") != self.token:
                        return
                    stands = self._store.stat(self._address)
                    self._version = stands.version if stands is not None else ABSENT

    def release(self) -> None:
        """Let go of the folder, if this run still holds it; also while a signal is heard."""
        self._ended.set()
        # In a thread, as the main one may hold what the store's client needs.
        is_done(in_thread(self._release, "release"), _SECONDS_TO_RELEASE)

    def _release(self) -> None:
        with contextlib.suppress(StoreError):  # it ends by itself
            if _read(self._address).get("token") == self.token:
                self._store.delete([self._address])


def _read(address: str) -> Mapping[str, Any]:
    """What a lock says; {} where there is none, or not one of these."""
    try:
        holder = json.loads(store_of(address).read(address))
    except (FileNotFoundError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def _machine() -> str:
    """Where a process id means the same process: this start of this machine, and this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _born(process: int) -> str:
    """When a process began; "" where there is none."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _has_ended(holder: Mapping[str, Any]) -> bool:
    """Whether the holder's process is known to have ended."""
    machine = _machine()
    if not machine or holder.get("machine") != machine or not isinstance(holder.get("process"), int):
        return False
    return _born(holder["process"]) != holder.get("born")


@contextmanager
def held(folder: str) -> Iterator[str | None]:
    """Hold a folder; a local one is there. Gives the word by which an object store's holder is known, else None.

    Raises:
        JobError: another run holds it; it is named.
    """
    if folder.startswith(("s3://", "gs://")):
        with leased(folder) as token:
            yield token
        return
    lock = FolderLock("is converting into", "take another --name or --version")
    if "://" not in folder:
        lock.take(folder)
    try:
        yield None
    finally:
        lock.release()
