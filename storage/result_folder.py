"""Output folder of a command that writes many files: complete or absent, and never over files of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from halofeed.storage import owned_files
from halofeed.storage.atomic_files import temporary_folder
from halofeed.storage.locks import FolderLock
from halofeed.system.errors import UsageError
from halofeed.system.signals import CleanupOnExit


@dataclass(frozen=True, kw_only=True)
class ResultFolder:
    """Folder that `--out` names.

    Args:
        path: path of the folder.
        marker: file that shows what an earlier folder holds.
        holds: what it then holds, such as "predictions".
        overwrite: replace an earlier one.
    """

    path: Path
    marker: str
    holds: str
    overwrite: bool

    def check(self) -> None:
        """Raise the UsageError of `replaced`."""
        folder = self.path
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--out {folder}: is a file; name a folder")
        if folder.is_dir() and any(folder.iterdir()):
            if not (folder / self.marker).is_file():
                raise UsageError(
                    f"--out {folder}: is not empty and holds no {self.holds}; name another folder"
                )
            if not self.overwrite:
                raise UsageError(
                    f"--out {folder}: holds {self.holds}; name another folder, or pass --overwrite to replace them"
                )
            owned_files.check_owned(folder, "--out")

    @contextmanager
    def replaced(self) -> Iterator[Path]:
        """Yield a temporary folder that replaces the folder at the end, or is deleted if an exception is raised.

        Raises:
            UsageError: the folder is a file, holds other files, holds an earlier result that may not be overwritten, or
                its files were changed after halofeed wrote them.
            JobError: another process is writing to it.
        """
        folder = owned_files.real_folder(self.path.absolute())
        self.check()
        lock = FolderLock(f"is writing {self.holds} into", "take another --out")
        with CleanupOnExit(lock.release):
            lock.make(folder)
            self.check()
            with temporary_folder(folder) as temporary:
                yield temporary
