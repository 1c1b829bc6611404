"""Reading ends whatever stands in a file's place; files and folders are synced in order and exchanged in one step."""

import contextlib
import errno
import os
import socket
from pathlib import Path

import pytest

from halofeed.storage import atomic_files
from halofeed.storage.atomic_files import read_regular


@pytest.mark.parametrize("change", [lambda at: os.utime(at, ns=(1, 1)), lambda at: os.truncate(at, 5)])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch, change):
    file, read = tmp_path / "a", os.read
    file.write_bytes(b"0123456789")
    monkeypatch.setattr(os, "read", lambda descriptor, size: (change(file), read(descriptor, size))[1])
    with pytest.raises(OSError, match="it was changed while it was read"):
        read_regular(file, 1000)


def test_none_but_regular_files_are_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    os.mkfifo("pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        kinds = {"pipe": "a named pipe", "link": "a named pipe", "socket": "a socket", ".": "a folder"}
        for path, kind in {**kinds, "/dev/zero": "a device"}.items():
            with pytest.raises(OSError, match=f"it is {kind}; expected a regular file"):
                read_regular(path, 1000)
    with pytest.raises(FileNotFoundError):
        read_regular("nothing", 1000)


def test_a_file_of_the_system_without_an_end_is_not_waited_for():
    # Regular by its kind and empty by its size; reading the first waits for the next message.
    for path in ("/proc/kmsg", "/proc/self/maps"):
        if os.access(path, os.R_OK):
            assert read_regular(path, 1000) == b""


@pytest.fixture
def synced(monkeypatch):
    story: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        story.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(atomic_files.os, "fsync", note)
    return story


def test_a_tree_is_synced_from_its_leaves_to_the_folder_that_holds_it(tmp_path, synced):
    (tmp_path / "run/state").mkdir(parents=True)
    (tmp_path / "run/state/leaf").write_bytes(b"1")
    (tmp_path / "run/about").write_bytes(b"2")
    atomic_files.fsync_tree(tmp_path / "run")
    names = [str(Path(path).relative_to(tmp_path)) for path in synced]
    assert names == ["run/state/leaf", "run/state", "run/about", "run", "."]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_is_named_and_one_that_cannot_sync_is_no_error(tmp_path, monkeypatch, number):
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(atomic_files.os, "fsync", refuse)
    (tmp_path / "file").write_bytes(b"")
    fails = pytest.raises(OSError, match=f"{tmp_path}/file")
    with contextlib.nullcontext() if number == errno.EINVAL else fails:
        atomic_files.fsync_paths([str(tmp_path / "file")])


def test_two_folders_change_places_and_what_is_open_stays_open(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with (tmp_path / "old/file").open() as held:
        if not atomic_files.swap_paths(str(tmp_path / "new"), str(tmp_path / "old")):
            pytest.skip("this file system exchanges no names")
        assert held.read() == "old"
    assert (tmp_path / "old/file").read_text() == "new" and (tmp_path / "new/file").read_text() == "old"
    with pytest.raises(FileNotFoundError):
        atomic_files.swap_paths(str(tmp_path / "new"), str(tmp_path / "absent"))
    assert not atomic_files.swap_paths(str(tmp_path / "new"), "/proc")
