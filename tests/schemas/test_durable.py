"""Are files and folders synced in the order that was asked for, and do two folders change places in one step?"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from halofeed.schemas import durable


@pytest.fixture
def synced(monkeypatch) -> list[str]:
    story: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        story.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(durable.os, "fsync", note)
    return story


def test_a_tree_is_synced_from_its_leaves_to_the_folder_that_holds_it(tmp_path, synced):
    (tmp_path / "run/state").mkdir(parents=True)
    (tmp_path / "run/state/leaf").write_bytes(b"1")
    (tmp_path / "run/about").write_bytes(b"2")
    durable.sync_tree(tmp_path / "run")
    names = [str(Path(path).relative_to(tmp_path)) for path in synced]
    assert names == ["run/state/leaf", "run/state", "run/about", "run", "."]


@pytest.mark.parametrize(
    ("number", "fails"), [(errno.EINVAL, False), (errno.EIO, True), (errno.ENOSPC, True)]
)
def test_a_disk_that_fails_is_an_error_that_names_the_file_and_one_that_cannot_sync_is_none(
    tmp_path, monkeypatch, number, fails
):
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(durable.os, "fsync", refuse)
    (tmp_path / "file").write_bytes(b"")
    if not fails:
        durable.sync([str(tmp_path / "file")])
        return
    with pytest.raises(OSError, match=f"{tmp_path}/file"):
        durable.sync([str(tmp_path / "file")])


def test_two_folders_change_places_and_what_is_open_stays_open(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with (tmp_path / "old/file").open() as held:
        if not durable.exchange(str(tmp_path / "new"), str(tmp_path / "old")):
            pytest.skip("this file system exchanges no names")
        assert held.read() == "old"
    assert (tmp_path / "old/file").read_text() == "new" and (tmp_path / "new/file").read_text() == "old"
    with pytest.raises(FileNotFoundError):
        durable.exchange(str(tmp_path / "new"), str(tmp_path / "absent"))
    assert not durable.exchange(str(tmp_path / "new"), "/proc")
