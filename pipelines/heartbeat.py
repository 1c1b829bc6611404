"""Heartbeats between a command and the workers of its job on another runner: files in the output folder.

A runner may keep a job running after it reports that it cancelled the job (Beam's job server does so with Flink), and
a command may be killed before it can cancel. So a job may run only while the command's file exists. Workers check for
it before they write a shard, before they name it, and before each step of listing DICOM series. A stopped command
deletes the file, and so does the next command, which sweeps the folder.

A runner may also wait forever for a worker that was killed while it started. So each worker regularly extends a file
of its own, and a command that sees no change for a long time gives the job up.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator

from halofeed.pipelines.output_folder import OutputFolder
from halofeed.schemas.file_layout import TEMPORARY_FOLDER
from halofeed.system.errors import JobError

_BEAT_SECONDS = 30.0
_CHECK_SECONDS = 5.0


def start_heartbeat(output: OutputFolder) -> str:
    """Write the file that lets a job run, and return its path."""
    name = f"{TEMPORARY_FOLDER}/wanted-{uuid.uuid4().hex}"
    output.write(name, b"wanted\n")
    return output.path(name)


def split_heartbeat_path(path: str) -> tuple[OutputFolder, str]:
    """Return the output folder of a command's file, and the file's name in it."""
    folder, _, name = path.rpartition(f"/{TEMPORARY_FOLDER}/")
    return OutputFolder(folder), f"{TEMPORARY_FOLDER}/{name}"


def check_alive(path: str | None) -> None:
    """Check that the command that submitted a job still wants it.

    Args:
        path: path of the command's file; None for a local job, which ends with its command.

    Raises:
        JobError: the command was stopped, or another one replaced it.
    """
    if path is None:
        return
    output, name = split_heartbeat_path(path)
    if not output.exists(name):
        raise JobError(
            f"{output.root}: the command that submitted this job was stopped, or another command replaced it"
        )


class Heartbeat:
    """Heartbeat of a worker: a file that grows.

    Args:
        path: path of the command's file; None for a local job, which needs no heartbeat.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._name = f"{TEMPORARY_FOLDER}/alive-{uuid.uuid4().hex}"
        self._beats, self._next = 0, 0.0

    def beat(self) -> None:
        """Extend the file, unless the last beat was less than 30 s ago.

        Raises:
            JobError: the command does not want the job any more.
        """
        if self._path is None or time.monotonic() < self._next:
            return
        check_alive(self._path)
        self._beats += 1
        split_heartbeat_path(self._path)[0].write(self._name, b"." * self._beats)
        self._next = time.monotonic() + _BEAT_SECONDS

    @contextlib.contextmanager
    def beat_during(self) -> Iterator[None]:
        """Beat in a thread while a long block runs.

        Raises:
            JobError: the command does not want the job when the block begins.
        """
        check_alive(self._path)
        ended = threading.Event()

        def beat_until_ended() -> None:
            while True:
                with contextlib.suppress(Exception):  # the block will meet the same error
                    self.beat()
                if ended.wait(min(_BEAT_SECONDS, _CHECK_SECONDS)):
                    return

        if self._path is not None:
            threading.Thread(target=beat_until_ended, name="heartbeat", daemon=True).start()
        try:
            yield
        finally:
            ended.set()
