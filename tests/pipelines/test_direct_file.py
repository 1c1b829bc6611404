"""Does a file that is written past the page cache hold what was given, and does a full disk show?"""

from __future__ import annotations

import os
import resource
import signal
from glob import glob
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from halofeed.pipelines import direct_file
from halofeed.pipelines.direct_file import BUFFER_BYTES, DirectFile

LENGTHS = [0, 1, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 3 * BUFFER_BYTES + 12_345]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("direct", [True, False])
def test_what_is_read_is_what_was_written(tmp_path: Path, monkeypatch, length: int, direct: bool) -> None:
    if not direct:
        monkeypatch.setattr(direct_file, "fcntl", None)
    data = np.random.default_rng(length).integers(0, 256, length, np.uint8).tobytes()
    file = DirectFile(str(tmp_path / "file"))
    cuts = [0, *sorted(np.random.default_rng(1).integers(0, length + 1, 9).tolist()), length]
    for start, end in pairwise(cuts):
        file.write(data[start:end])
        assert file.tell() == end
    file.close()
    file.close()
    assert (tmp_path / "file").read_bytes() == data


def test_data_may_change_after_it_was_given(tmp_path: Path) -> None:
    data = bytearray(b"a" * (BUFFER_BYTES + 5))
    file = DirectFile(str(tmp_path / "file"))
    file.write(data)
    data[:] = b"b" * len(data)
    file.close()
    assert (tmp_path / "file").read_bytes() == b"a" * len(data)


def write_file(path: Path, length: int) -> None:
    file = DirectFile(str(path))
    try:
        file.write(bytes(length))
    finally:
        file.close()


def test_a_write_that_fails_is_told(tmp_path: Path) -> None:
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BUFFER_BYTES // 2, old[1]))
    try:
        for length in (BUFFER_BYTES - 1, 3 * BUFFER_BYTES):
            with pytest.raises(OSError, match="File too large"):
                write_file(tmp_path / "file", length)
        assert str(tmp_path / "file") not in map(os.path.realpath, glob("/proc/self/fd/*")), "it is closed"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
