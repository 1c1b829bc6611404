"""Where are compiled programs remembered, so that asking again takes a second?

CACHE/programs/KEY.json.gz   what the compiler said of a program for a machine, and the program that it made
CACHE/asked/KEY.json         which program a request makes, and what is known before it is compiled
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from pathlib import Path
from typing import Any

from halofeed.schemas.beside import write_whole

FORMAT = 1
_MOST_PROGRAMS = 500


def cache_folder() -> Path:
    """`$HALOFEED_PLAN_CACHE`, else `halofeed/plans` in the user's folder of caches."""
    own = os.environ.get("HALOFEED_PLAN_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(own) if own else Path(home) / "halofeed" / "plans"


class Cache:
    """What compilers said; `folder` None remembers nothing.

    >>> Cache(None).recall("a") is None
    True
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def recall(self, request: str) -> dict[str, Any] | None:
        """What was said of a request's program, and of the request; None where nothing is known."""
        if self.folder is None:
            return None
        try:
            asked = json.loads((self.folder / "asked" / f"{request}.json").read_bytes())
            said = self.program(asked.pop("program"))
        except (OSError, ValueError, KeyError):
            return None
        return None if said is None else {**said, **asked}

    def program(self, key: str) -> dict[str, Any] | None:
        """What was said of a program; None where nothing is known or the file cannot be read."""
        if self.folder is None:
            return None
        file = self._file(key)
        try:
            said: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
        except (OSError, EOFError, ValueError):
            return None
        if said.get("format") != FORMAT:
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        return said

    def keep(self, key: str, said: dict[str, Any]) -> None:
        """Remember what was said of a program."""
        if self.folder is None:
            return
        file = self._file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, gzip.compress(json.dumps({**said, "format": FORMAT}).encode(), 6))
        with contextlib.suppress(OSError):
            oldest_first = sorted(file.parent.iterdir(), key=lambda other: other.stat().st_mtime)
            for other in oldest_first[:-_MOST_PROGRAMS]:
                other.unlink()

    def remember(self, request: str, key: str, asked: dict[str, Any]) -> None:
        """Remember which program a request makes, and what is known of the request itself."""
        if self.folder is None:
            return
        (self.folder / "asked").mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / "asked" / f"{request}.json", json.dumps({"program": key, **asked}).encode())

    def _file(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / "programs" / f"{key}.json.gz"
