"""Exclusive access of one conversion to its output folder: a lock of a local folder, a lease of one in an object store.

    s3://bucket/cards/1.0.0         the folder
    s3://bucket/cards/.1.0.0.lock   the lease: its holder; deleted at the end

The lease is an object with conditional writes, which its holder renews. A killed run leaves it. The next run takes it
over: at once where it sees that the process on this machine has ended, otherwise `LEASE_SECONDS` after the last renewal
by the store's clock. Workers of the killed or suspended run then find another holder, and stop writing.
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

from halofeed.storage.base import ABSENT
from halofeed.storage.choose import store_of
from halofeed.storage.locks import FolderLock
from halofeed.storage.retry import ChangedError
from halofeed.system.addresses import is_remote
from halofeed.system.errors import JobError, StoreError
from halofeed.system.signals import CleanupOnExit
from halofeed.system.threads import run_in_thread, wait_until_done

LEASE_SECONDS: Final = 120.0
RENEWED_SECONDS: Final = 30.0
_TRIES: Final = 5
_SECONDS_TO_RELEASE: Final = 10.0


def lock_of(folder: str) -> str:
    """Return the address of a folder's lease.

    >>> lock_of("s3://bucket/cards/1.0.0")
    's3://bucket/cards/.1.0.0.lock'
    """
    above, _, name = folder.rstrip("/").rpartition("/")
    return f"{above}/.{name.removeprefix('.')}.lock"


@contextmanager
def leased(folder: str) -> Iterator[str]:
    """Hold the lease of a folder in an object store, and provide its token.

    Raises:
        JobError: another run holds the lease.
    """
    lease = _Lease(folder)
    with CleanupOnExit(lease.release):
        lease.take()
        threading.Thread(target=lease.renew, name="lease", daemon=True).start()
        yield lease.token


def check_holder(folder: str, token: str) -> None:
    """Check that the lease of a folder has this token.

    Raises:
        JobError: another run holds the lease.
    """
    address = lock_of(folder)
    holder = _read(address)
    if holder.get("token") != token:
        raise JobError(
            f"{folder}: {holder.get('owner', 'nobody')} holds it now ({address}), so this run, which was suspended or "
            "stopped, writes no more into it"
        )


class _Lease:
    """The lease of one folder and its renewal."""

    def __init__(self, folder: str) -> None:
        self.token = uuid.uuid4().hex
        self._folder, self._address = folder, lock_of(folder)
        above, _, self._name = self._address.rpartition("/")
        self._store = store_of(above)
        self._owner = f"{_user()}@{socket.gethostname()}, process {os.getpid()},"
        self._renewals, self._version = 0, ABSENT
        self._ended = threading.Event()

    def _document(self) -> bytes:
        # Each renewal changes the text, and so the ETag by which S3 knows the version.
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
        """Take the lease; raise JobError where another run holds it."""
        for _ in range(_TRIES):
            try:
                self._version = self._store.write(self._name, self._document(), self._version)
                return
            except ChangedError:
                current, holder = self._store.stat(self._name), _read(self._address)
            self._version = ABSENT if current is None else current.version
            # The holder has released it meanwhile; or the store wrote it and lost its answer.
            if current is None or holder.get("token") == self.token:
                continue
            if current.age_seconds < LEASE_SECONDS and not _has_ended(holder):
                raise JobError(
                    f"{self._folder}: {holder.get('owner', 'another run')} is converting into it: it renewed "
                    f"{self._address} {max(0, current.age_seconds):.0f} s ago, and its lease lasts {LEASE_SECONDS:.0f} "
                    "s after the last renewal; wait until that run has ended, or take another --name or --version"
                )
        raise JobError(
            f"{self._address}: it is changed by other runs all the time; run the same command again"
        )

    def renew(self) -> None:
        """Renew the lease every 30 s until it is released."""
        while not self._ended.wait(RENEWED_SECONDS):
            self._renewals += 1
            # The next renewal may succeed; otherwise the workers find another holder.
            with contextlib.suppress(StoreError):
                try:
                    self._version = self._store.write(self._name, self._document(), self._version)
                except ChangedError:
                    # Another run took the lease over, since this process was suspended for longer than it lasts.
                    if _read(self._address).get("token") != self.token:
                        return
                    current = self._store.stat(self._name)
                    self._version = current.version if current is not None else ABSENT

    def release(self) -> None:
        """Release the lease if this run still holds it; callable from a signal handler."""
        self._ended.set()
        # In a thread, because the main one may hold a lock of the store's client.
        wait_until_done(run_in_thread(self._release, "release"), _SECONDS_TO_RELEASE)

    def _release(self) -> None:
        with contextlib.suppress(StoreError):  # the lease expires
            if _read(self._address).get("token") == self.token:
                self._store.delete([self._name])


def _read(address: str) -> Mapping[str, Any]:
    """Return the content of a lease; {} where there is none or a damaged one."""
    try:
        above, _, name = address.rpartition("/")
        holder = json.loads(store_of(above).read(name))
    except (FileNotFoundError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def _machine() -> str:
    """Return an id of this boot and container, within which process ids are unique; "" where unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _born(process: int) -> str:
    """Return the start time of a process; "" where there is no such process."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # Fields 3 (state) and 22 (start time) of proc_pid_stat(5); the name in field 2 may hold spaces.
    # A zombie has ended, though its parent has not asked for its status.
    return "" if fields[0] in "ZX" else fields[19]


def _has_ended(holder: Mapping[str, Any]) -> bool:
    """Return whether the holder's process is known to have ended."""
    machine = _machine()
    # Process ids mean something only within one boot and one container.
    if not machine or holder.get("machine") != machine or not isinstance(holder.get("process"), int):
        return False
    return _born(holder["process"]) != holder.get("born")


@contextmanager
def held(folder: str) -> Iterator[str | None]:
    """Hold a folder exclusively; a local one must exist. Provide the token of a lease, else None.

    Raises:
        JobError: another run holds the folder.
    """
    if store_of(folder).is_conditional:
        with leased(folder) as token:
            yield token
        return
    lock = FolderLock("is converting into", "take another --name or --version")
    if not is_remote(folder):
        lock.take(folder)
    try:
        yield None
    finally:
        lock.release()
