"""Event files for TensorBoard, without TensorFlow.

A file is a TFRecord file of Event messages: first the version of the format, then one message per step with its
numbers. A message with a session log hides the later steps of earlier files in the folder.
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/event.proto
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/framework/summary.proto
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from halofeed.schemas.tfexample import length_prefixed, varint
from halofeed.schemas.tfrecord import RecordWriter
from halofeed.storage.atomic_files import create_file
from halofeed.storage.paths import open_path

_VERSION = b"brain.Event:2"
"""Version of the format, which TensorBoard expects in the first message."""
_NOT_IN_A_TAG = re.compile(r"[^-/\w.]")
"""Characters that TensorFlow 1 replaced in the name of a summary."""
_START = b"\x08\x01"
"""SessionLog with status = START."""


class EventFile(AbstractContextManager["EventFile"]):
    """New event file; every message is in the file when its call returns.

    Args:
        folder: folder of the file, which exists. TensorBoard reads its files in the order of their names.
        first_step: first step that the file may hold; TensorBoard hides the steps of earlier files from it on.
        clock: time in nanoseconds since 1970.

    Attributes:
        path: path of the file.
    """

    def __init__(self, folder: Path, *, first_step: int = 0, clock: Callable[[], int] = time.time_ns) -> None:
        now = clock()
        # The seconds and the host as TensorFlow names files. A run that resumes in the same second needs another name.
        name = f"events.out.tfevents.{now // 1_000_000_000:010d}.{socket.gethostname()}.{now:020d}"
        self.path = folder / name
        self._clock = clock
        self._file = open_path(create_file(self.path), "wb")
        self._records = RecordWriter(self._file)
        self._write(0, 3, _VERSION)
        self._write(first_step, 7, _START)

    def scalars(self, step: int, values: Iterable[tuple[str, float]]) -> None:
        """Write the numbers of a step; characters of a name that TensorFlow 1 refused become _."""
        summary = b"".join(_message(1, _scalar(name, value)) for name, value in values)
        if summary:
            self._write(step, 5, summary)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __exit__(self, *details: object) -> None:
        self.close()

    def _write(self, step: int, field: int, content: bytes) -> None:
        """Write an Event: wall_time (field 1, in seconds), step (field 2) and one field of bytes."""
        head = b"\x09" + struct.pack("<d", self._clock() / 1e9)
        # Protobuf leaves out a field with its default value.
        number = b"\x10" + varint(step) if step else b""
        event = head + number + _message(field, content)
        self._records.write([event], len(event))
        self._file.flush()


def _scalar(name: str, value: float) -> bytes:
    """Return a Summary.Value: its tag (field 1) and its simple_value (field 2, a float)."""
    tag = _NOT_IN_A_TAG.sub("_", name).lstrip("/").encode()
    # A number beyond float32 is infinite there; `struct` would raise an error.
    with np.errstate(over="ignore"):
        return _message(1, tag) + b"\x15" + np.array(value).astype("<f4").tobytes()


def _message(field: int, content: bytes) -> bytes:
    return length_prefixed(field, len(content)) + content
