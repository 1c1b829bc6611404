"""Registry of the source folders of data sets that this user converted on this machine.

A data set does not contain these paths: its bytes are the same wherever its sources are, and a stranger may have made
it. The registry has a file of the user's own for each data set, $XDG_STATE_HOME/halofeed/data-sets/<hash of the
version's folder>.json (~/.local/state by default). An entry is valid only for the manifest that it was written with.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from halofeed.schemas.bounded_json import check_json_checksum, with_json_checksum
from halofeed.schemas.manifest import Manifest
from halofeed.storage.atomic_files import open_regular
from halofeed.storage.paths import create_private_file, names_in, open_path
from halofeed.system.addresses import is_remote

MAX_KEPT = 1000
"""Maximum number of data sets; the registry drops those converted longest ago."""
_MAX_BYTES = 1 << 16
_ENTRY = re.compile("[0-9a-f]{32}[.]json")


@dataclass(frozen=True, kw_only=True)
class SourceLocations:
    """Source and folder of its images, as absolute paths or URLs.

    Args:
        stamps: digest of the sizes, times and inodes of the source files before they were read; "" where these do not
            prove that a file is unchanged.
    """

    source: str
    images: str
    stamps: str = ""


def remember(folder: str, manifest: Manifest, origin: SourceLocations, written: bytes = b"") -> bool:
    """Store where the sources of a data set are; return whether that succeeded.

    Args:
        folder: path or URL of the version.
        written: bytes of the manifest if this version of halofeed wrote it, so that they are not formed again.
    """
    document = with_json_checksum(
        {"folder": _place(folder), "manifest": _digest(manifest, written), **vars(origin)}
    )
    try:
        file = _file(folder)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = create_private_file(file.parent)  # readable for its owner alone
        try:
            with open_path(descriptor, "w", encoding="ascii") as stream:
                json.dump(document, stream)
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise
        _forget_oldest(file.parent)
    except (OSError, RuntimeError, ValueError):  # the data set is complete without its entry here
        return False
    return True


def recall(folder: str, manifest: Manifest) -> SourceLocations | None:
    """Return where the sources of a data set are; None where this user did not convert its current version here."""
    try:
        with open_regular(_file(folder)) as stream:
            # In a shared state folder, another user's entry could lead a report to files that this user can read.
            if os.fstat(stream.fileno()).st_uid != os.geteuid():
                return None
            document = check_json_checksum(json.loads(stream.read(_MAX_BYTES)))
        if document["folder"] != _place(folder) or document["manifest"] != _digest(manifest):
            return None
        origin = SourceLocations(
            source=document["source"], images=document["images"], stamps=document.get("stamps", "")
        )
    except (OSError, RuntimeError, ValueError, RecursionError, LookupError, TypeError):
        return None
    are_texts = all(isinstance(value, str) for value in vars(origin).values())
    return origin if are_texts and origin.source and origin.images else None


def _place(folder: str) -> str:
    return folder.rstrip("/") if is_remote(folder) else os.path.realpath(folder)


def _digest(manifest: Manifest, written: bytes = b"") -> str:
    # Of the text in this version's form, because equal manifests of two versions have different bytes.
    return hashlib.sha256(written or manifest.to_json().encode()).hexdigest()


def _file(folder: str) -> Path:
    """Return the path of a data set's entry; raise RuntimeError where the user has no home folder."""
    state = os.environ.get("XDG_STATE_HOME", "")
    # By the specification, a relative path does not count.
    base = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    name = hashlib.sha256(os.fsencode(_place(folder))).hexdigest()[:32]
    return base / "halofeed" / "data-sets" / f"{name}.json"


def _forget_oldest(registry: Path) -> None:
    names = [name for name in names_in(registry) if _ENTRY.fullmatch(name)]
    if len(names) <= MAX_KEPT:
        return
    ages = []
    for name in names:
        path = registry / name
        with contextlib.suppress(FileNotFoundError):  # a concurrent conversion deleted it
            ages.append((os.stat(path).st_mtime_ns, path))
    for _, path in sorted(ages)[:-MAX_KEPT]:
        path.unlink(missing_ok=True)
