"""Where are compiled programs remembered, so that asking again takes a second?

CACHE/programs/KEY.json.gz   what the compiler said of a program for a machine, and the program that it made
CACHE/asked/KEY.json         which program a request makes, and what is known before it is compiled
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

from halofeed.schemas.beside import write_whole
from halofeed.schemas.sealed import sealed, unsealed

FORMAT = 2
"""Since 2 each document states its checksum and its name; what earlier versions remembered is compiled again."""
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
        asked = self._read(f"asked/{request}.json") or {}
        said = self.program(asked.pop("program", ""))
        return None if said is None else {**said, **asked}

    def program(self, key: str) -> dict[str, Any] | None:
        """What was said of a program; None where nothing is known or the file cannot be read."""
        return self._read(f"programs/{key}.json.gz")

    def keep(self, key: str, said: dict[str, Any]) -> None:
        """Remember what was said of a program."""
        if self.folder is None:
            return
        self._write(f"programs/{key}.json.gz", said)
        with contextlib.suppress(OSError):
            programs = (self.folder / "programs").glob(f"{'[0-9a-f]' * 32}.json.gz")
            for other in sorted(programs, key=lambda file: file.stat().st_mtime)[:-_MOST_PROGRAMS]:
                other.unlink()

    def remember(self, request: str, key: str, asked: dict[str, Any]) -> None:
        """Remember which program a request makes, and what is known of the request itself."""
        self._write(f"asked/{request}.json", {"program": key, **asked})

    def _read(self, name: str) -> dict[str, Any] | None:
        """A document, whose file is the last to go from now on; None where there is none as it was written."""
        if self.folder is None:
            return None
        file = self.folder / name
        try:
            data = file.read_bytes()
            text = gzip.decompress(data) if file.suffix == ".gz" else data
            document = unsealed(json.loads(text), required=True)
        except (OSError, EOFError, ValueError, RecursionError, zlib.error):
            return None
        if not isinstance(document, dict) or (document.pop("format", 0), document.pop("name", "")) != (
            FORMAT,
            name,
        ):
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        return document

    def _write(self, name: str, document: dict[str, Any]) -> None:
        if self.folder is not None:
            document = sealed({**document, "format": FORMAT, "name": name})
            file, data = self.folder / name, json.dumps(document).encode()
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, gzip.compress(data, 6) if file.suffix == ".gz" else data)
