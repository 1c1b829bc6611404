"""How a file or folder appears whole or not at all: it is made under a name beside its own, and gone if it fails."""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halofeed.schemas.stopping import Undone

_MADE = "new"


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A path beside `target` to write to and then to rename; what is there at the end of the block is deleted.

    So it is where a signal ends this process; what processes of this machine left there that were killed goes too.
    """
    target = Path(os.path.abspath(target))
    here = f".{target.name}.{platform.node()}"
    for left in target.parent.glob(f"{glob.escape(here)}.*.{_MADE}"):
        maker = left.name.split(".")[-2]
        if maker.isdecimal() and not _is_alive(int(maker)):
            _delete(left)
    path = target.with_name(f"{here}.{os.getpid()}.{_MADE}")
    with Undone(lambda: _delete(path)):
        yield path


def write_whole(target: Path, data: bytes) -> None:
    """Write a file whole or not at all; OSError where it cannot be."""
    with beside(target) as made:
        made.write_bytes(data)
        made.replace(target)


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _is_alive(process: int) -> bool:
    if os.name != "posix":  # elsewhere the question may end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
