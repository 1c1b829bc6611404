"""Is every file below a source folder found once, whatever links, pipes and locked folders there are?"""

import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from posixpath import splitext

import pytest

from halofeed.errors import SourceError, UsageError
from halofeed.prep.sources import walk
from halofeed.prep.sources.file_names import IMAGE_EXTENSIONS, is_image_name
from halofeed.prep.sources.files import LocalFiles, unlisted_folders
from tests.support.layout_references import make

TWICE = ("selection", "folder is listed under another path")


write = partial(make, content="abc")


def test_links_are_followed_but_not_in_circles_or_to_the_systems_own_files(tmp_path):
    write(tmp_path, "root/cat/a.png", "elsewhere/b.png")
    (tmp_path / "root/cat/up").symlink_to("..")
    (tmp_path / "root/cat/self").symlink_to(".")
    (tmp_path / "root/dog").symlink_to(tmp_path / "elsewhere")
    files = LocalFiles(tmp_path / "root")
    assert dict(files.sizes()) == {"cat/a.png": 3, "dog/b.png": 3}
    assert {path: problem[:2] for path, problem in files.faults().items()} == {
        "cat/self": ("selection", "link to a folder in which it lies"),
        "cat/up": ("selection", "link to a folder in which it lies"),
    }
    write(tmp_path, "system/a.png")
    (tmp_path / "system/devices").symlink_to("/dev")
    (tmp_path / "system/processes").symlink_to("/proc/self")
    files = LocalFiles(tmp_path / "system")
    assert dict(files.sizes()) == {"a.png": 3}
    assert {path: problem[1:] for path, problem in files.faults().items()} == {
        "devices": ("link to the system's own files", "/dev/"),
        "processes": ("link to the system's own files", "/proc/"),
    }


def test_folders_that_all_link_to_one_another_are_listed_once_each(tmp_path):
    names = [f"{number:02}" for number in range(12)]
    for name in names:
        write(tmp_path, f"{name}/{name}.png")
        for other in names:
            (tmp_path / name / f"to_{other}").symlink_to(tmp_path / other)
    files = LocalFiles(tmp_path)
    assert list(files.sizes()) == [f"{name}/{name}.png" for name in names]
    assert set(files.faults()) == {f"{name}/to_{other}" for name in names for other in names}
    assert files.faults()["03/to_07"] == (*TWICE, "07")
    assert not unlisted_folders(files)
    write(tmp_path / "own", "z/deep/below/a.png")
    (tmp_path / "own/a").symlink_to("z/deep")
    files = LocalFiles(tmp_path / "own")
    assert list(files.sizes()) == ["z/deep/below/a.png"], "a folder in its place comes before a link to it"
    assert dict(files.faults()) == {"a": (*TWICE, "z/deep")}


@contextmanager
def listed_in_order(monkeypatch: pytest.MonkeyPatch, *, backwards: bool) -> Iterator[None]:
    """As of a file system that lists names in this order."""

    @contextmanager
    def scandir(path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real(path) as entries:
            yield iter(sorted(entries, key=lambda entry: entry.name, reverse=backwards))

    real = os.scandir
    with monkeypatch.context() as patched:
        patched.setattr(walk.os, "scandir", scandir)
        yield


def test_paths_do_not_depend_on_the_order_of_the_lists(tmp_path, monkeypatch):
    write(tmp_path, "out/one/a.png", "out/two/b.png", "out/two/three/c.png", "root/d.png")
    (tmp_path / "out/one/other").symlink_to(tmp_path / "out/two")
    (tmp_path / "out/two/other").symlink_to(tmp_path / "out/one")
    for name, target in (("m", "one"), ("k", "two"), ("p", "two/three"), ("b", "two/three")):
        (tmp_path / "root" / name).symlink_to(tmp_path / "out" / target)
    found = []
    for backwards in (False, True):
        with listed_in_order(monkeypatch, backwards=backwards):
            files = LocalFiles(tmp_path / "root")
            found.append((list(files.sizes()), dict(files.faults())))
    assert found[0] == found[1]
    assert found[0][0] == ["b/c.png", "d.png", "k/b.png", "m/a.png"]
    assert found[0][1] == {
        "k/other": (*TWICE, "m"),
        "k/three": (*TWICE, "b"),
        "m/other": (*TWICE, "k"),
        "p": (*TWICE, "b"),
    }


def test_a_link_that_leads_nowhere_is_listed_and_cannot_be_read(tmp_path):
    (tmp_path / "a.png").symlink_to("nowhere.png")
    (tmp_path / "b.png").symlink_to("b.png")
    for files in (LocalFiles(tmp_path), listed := LocalFiles(tmp_path)):
        if files is listed:
            assert dict(files.sizes()) == {"a.png": 0, "b.png": 0}
        assert (files.size("a.png"), files.size("b.png"), files.size("c.png")) == (0, 0, None)
        with pytest.raises(SourceError, match="No such file"):
            files.read("a.png")
        with pytest.raises(SourceError, match="Too many levels of symbolic links"):
            files.read("b.png")


def test_what_is_no_regular_file_is_listed_and_never_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    os.mkfifo("pipe.png")
    for name, target in (("link.png", "pipe.png"), ("zero.png", "/dev/zero"), ("socket.png", "talk.sock")):
        Path(name).symlink_to(target)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("talk.sock")
        files = LocalFiles(tmp_path)
        names = ["link.png", "pipe.png", "socket.png", "zero.png"]
        assert dict(files.sizes()) == dict.fromkeys([*names, "talk.sock"], 0)
        assert files.files_in("") == sorted([*names, "talk.sock"])
        for name, kind in zip(names, ("named pipe", "named pipe", "socket", "device"), strict=True):
            for read in (files.read, lambda path: files.head(path, 100)):
                with pytest.raises(SourceError, match=f"it is a {kind}; expected a regular file"):
                    read(name)


def test_names_that_no_file_can_have_are_no_files_and_one_larger_than_memory_is_not_read(tmp_path):
    files = LocalFiles(tmp_path)
    with (tmp_path / "a.png").open("wb") as stream:
        stream.truncate(1 << 42)
    with pytest.raises(SourceError, match=r"it holds 4\.40 TB, and at most"):
        files.read("a.png")
    for name in ("a\0.png", "a\ud800.png", "a" * 300, "a/" * 3000 + "b", f"{tmp_path}/a\0/b.png"):
        assert files.size(name) is None and not files.has_folder(name) and files.files_in(name) == []
        with pytest.raises(SourceError, match="file cannot be read"):
            files.read(name)


def test_folders_without_rights_are_named_and_files_in_them_accounted_for(ordinary_folder, ordinary_user):
    write(ordinary_folder, "open/a.png", "closed/b.png", "list/c.png", "list/inner/d.png")
    write(ordinary_folder, "e.png", "out/f.png", "lost+found/g")
    (ordinary_folder / "link").symlink_to("closed")
    (ordinary_folder / "list/there").symlink_to("../open")
    (ordinary_folder / "hidden").symlink_to("closed/x")
    for name, mode in (("closed", 0), ("list", 0o444), ("e.png", 0), ("lost+found", 0)):
        (ordinary_folder / name).chmod(mode)
    with ordinary_user():
        files = LocalFiles(ordinary_folder)
        unseen = dict.fromkeys(("hidden", "list/c.png", "list/there"), 0)
        assert dict(files.sizes()) == {**dict.fromkeys(("e.png", "open/a.png", "out/f.png"), 3), **unseen}
        denied = "Permission denied"
        assert dict(files.faults()) == {
            "closed": ("read", "folder cannot be listed", denied),
            "hidden": ("read", "entry cannot be looked at", denied),
            "link": (*TWICE, "closed"),
            "list/inner": ("read", "folder cannot be listed", denied),
            "list/there": ("read", "entry cannot be looked at", denied),
            "lost+found": ("selection", "folder cannot be listed", denied),
        }
        assert files.size("closed/b.png") is None and files.refusal("closed/b.png") == denied
        assert files.refusal("open/b.png") == ""
        for name in ("e.png", "list/c.png", "hidden"):
            with pytest.raises(SourceError, match=denied):
                files.read(name)
        one = LocalFiles(ordinary_folder)
        assert one.files_in("closed") == [] and one.files_in("nowhere") == []
        assert unlisted_folders(one) == ["closed"]


def test_a_root_without_rights_is_an_error_that_names_the_cure(ordinary_folder, ordinary_user):
    write(ordinary_folder, "closed/in/a.png")
    (ordinary_folder / "closed").chmod(0o111)
    refused = pytest.raises(UsageError, match=r"closed: cannot be listed: Permission denied; .*chmod")
    with ordinary_user(), refused:
        LocalFiles(ordinary_folder / "closed").sizes()
    (ordinary_folder / "closed").chmod(0)
    with ordinary_user(), pytest.raises(UsageError, match="denied; name a folder that you may read"):
        LocalFiles(ordinary_folder / "closed/in")


@pytest.mark.parametrize("seed", range(5))
def test_an_image_is_told_by_what_splits_off_as_its_extension(seed: int) -> None:
    generator = random.Random(seed)
    parts = ("a", ".", "/", "..", ".jpg", ".JPG", "jpg", ".png", ".txt", "İ", " ", "")
    for _ in range(3_000):
        path = "".join(generator.choices(parts, k=5))
        assert is_image_name(path) == (splitext(path)[1].lower() in IMAGE_EXTENSIONS), path
