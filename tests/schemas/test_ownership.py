"""What halofeed writes follows no link and keeps modes; what it deletes is what its list names, as it was written."""

import os
from pathlib import Path

import pytest

from halofeed.errors import UsageError
from halofeed.storage import owned_files
from halofeed.storage.atomic_files import (
    atomic_write,
    open_owned_file,
    restricted_umask,
    temporary_folder,
    temporary_path,
)

FOREIGN = {
    "notes.txt": lambda at: at.write_text("mine"),
    "a.json": lambda at: at.write_bytes(b"[2]"),
    "exported/": lambda at: (at.mkdir(), (at / "model").write_text("mine")),
    "empty/": lambda at: at.mkdir(),
    "link": lambda at: at.symlink_to("/etc"),
    "log.jsonl": lambda at: (at.unlink(), at.symlink_to("/etc/hostname")),
    "checkpoints/2/more": lambda at: at.write_text("mine"),
    "checkpoints/mine/": lambda at: at.mkdir(),
}


def made(folder: Path) -> Path:
    """A folder with a file of each sort that a list names."""
    folder.mkdir()
    owned_files.begin_list(folder)
    atomic_write(folder / "a.json", b"[1]")
    owned_files.record_growing_file(folder, "log.jsonl")
    (folder / "log.jsonl").write_text("{}")
    owned_files.record_library_folder(folder, "checkpoints/2", whole=False)
    (folder / "checkpoints/2/state").mkdir(parents=True)
    (folder / "checkpoints/2/state/d").write_bytes(b"123")
    owned_files.record_library_folder(folder, "checkpoints/2", whole=True)
    owned_files.record_library_folder(folder, "checkpoints/3", whole=False)
    (folder / "checkpoints/3/half").mkdir(parents=True)
    (folder / ".a.json.here.1.0123456789abcdef.new").write_text("of a killed process")
    return folder


def test_only_what_the_list_names_is_deleted_and_the_rest_is_listed(tmp_path):
    for number, (name, draw) in enumerate(FOREIGN.items()):
        folder = made(tmp_path / str(number))
        assert not owned_files.foreign_paths(folder)
        draw(folder / name.rstrip("/"))
        (line,) = owned_files.foreign_paths(folder)
        assert line.split(" (")[0] == name
        with pytest.raises(UsageError, match="--out .*does not delete; move it away(.|\n)*" + name):
            owned_files.check_owned(folder, "--out")
        assert not owned_files.delete_owned(folder) and os.path.lexists(folder / name.rstrip("/"))
        left = {str(path.relative_to(folder)) for path in folder.rglob("*")} - {owned_files.LIST}
        assert all(name.startswith(path) or path.startswith(name) for path in left), left
    assert Path("/etc/hostname").exists()
    assert owned_files.delete_owned(made(tmp_path / "whole")) and not (tmp_path / "whole").exists()
    (tmp_path / "unlisted").mkdir()
    (tmp_path / "unlisted/a").write_text("mine")
    assert not owned_files.delete_owned(tmp_path / "unlisted") and (tmp_path / "unlisted/a").exists()


def test_a_file_that_is_replaced_keeps_its_mode_and_no_link_is_followed(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "link").symlink_to(mine)
    atomic_write(tmp_path / "link", b"new")
    assert mine.read_text() == "mine" and (tmp_path / "link").read_bytes() == b"new"
    (tmp_path / "again").symlink_to(mine)
    with pytest.raises(OSError, match="regular file of halofeed's own; move away"):
        open_owned_file(tmp_path / "again", os.O_WRONLY | os.O_APPEND)
    mine.chmod(0o600)
    atomic_write(mine, b"private")
    assert mine.stat().st_mode & 0o777 == 0o600
    with restricted_umask(mine):
        atomic_write(tmp_path / "also", b"private")
    atomic_write(tmp_path / "public", b"")
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("also", "public")]
    assert modes == [0o600, 0o666 & ~os.umask(os.umask(0o022))]
    names = set()
    for _ in range(2):
        with temporary_path(tmp_path / "report") as path:
            names.add(path.name)
    assert len(names) == 2  # nobody can lay a link there before


def test_a_folder_that_is_replaced_keeps_its_modes_and_the_files_of_others(tmp_path):
    target = tmp_path / "p"
    for number in range(2):
        with temporary_folder(target) as folder:
            assert not number or folder.stat().st_mode & 0o777 == 0o700
            for name in ("a", f"b{number}"):
                (folder / name).write_text(str(number))
        if not number:
            (target / "notes.txt").write_text("mine")
            (target / "a").chmod(0o600)
            target.chmod(0o750)
    assert {path.name: path.stat().st_mode & 0o777 for path in target.iterdir() if path.name[0] in "ab"} == {
        "a": 0o600,
        "b1": 0o600,
    }
    assert target.stat().st_mode & 0o777 == 0o750 and (target / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
