"""Does reading a file of a foreign folder end, whatever stands in its place?"""

from __future__ import annotations

import os
import socket

import pytest

from halofeed.schemas.files import open_regular, read_regular


def test_a_file_and_a_link_to_it_are_read(tmp_path):
    file, link = tmp_path / "a", tmp_path / "b"
    file.write_bytes(b"0123456789" * 1000)
    link.symlink_to(file)
    assert read_regular(file, 10_000) == read_regular(str(link), 10_000) == file.read_bytes()
    with open_regular(link) as stream:
        assert stream.read(3) == b"012"


def test_a_larger_file_is_not_read(tmp_path):
    file = tmp_path / "a"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(OSError, match=r"it holds 1\.10 TB, and at most 1\.00 kB are read"):
        read_regular(file, 1000)


def test_none_but_regular_files_are_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    os.mkfifo("pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for path, kind in (
            ("pipe", "a named pipe"),
            ("link", "a named pipe"),
            ("socket", "a socket"),
            (".", "a folder"),
            ("/dev/zero", "a device"),
        ):
            with pytest.raises(OSError, match=f"it is {kind}; expected a regular file"):
                read_regular(path, 1000)
    with pytest.raises(FileNotFoundError):
        read_regular("nothing", 1000)


def test_a_file_of_the_system_without_an_end_is_not_waited_for():
    # Regular by its kind and empty by its size; reading the first waits for the next message.
    for path in ("/proc/kmsg", "/proc/self/maps"):
        if os.access(path, os.R_OK):
            assert read_regular(path, 1000) == b""
