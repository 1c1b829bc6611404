"""How the files of a data set that anyone may have made are opened to be looked at: regular ones, so much of them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

from halofeed.prep.options.recipe import recipe_problems
from halofeed.schemas.errors import CorruptFileError, ManifestError
from halofeed.schemas.files import open_regular
from halofeed.schemas.layout import MANIFEST, local_folder
from halofeed.schemas.limits import LINE_BYTES
from halofeed.schemas.manifest import Manifest, read_manifest


def open_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of a data set of this machine.

    Raises:
        UsageError, ManifestError: as `read_manifest`; the latter also where an option is not of its kind.
    """
    manifest = read_manifest(path)
    check_recipe(manifest, str(local_folder(path) / MANIFEST))
    return manifest


def check_recipe(manifest: Manifest, where: str) -> None:
    """Refuse a manifest whose recipe holds what no option can; ManifestError names each."""
    problems = [(f"recipe.{name}"[:200], problem) for name, problem in recipe_problems(manifest.recipe)]
    if problems:
        raise ManifestError(where, problems)


def lines_of(file: Path) -> Iterator[bytes]:
    """Each line of a regular file with its end.

    Raises:
        OSError: it cannot be read.
        CorruptFileError: a line is longer than any that is written.
    """
    with open_regular(file) as stream, io.BufferedReader(stream) as lines:
        number = 0
        while line := lines.readline(LINE_BYTES + 1):
            number += 1
            if len(line) > LINE_BYTES:
                raise CorruptFileError(f"{file}: line {number} is longer than {LINE_BYTES:,} bytes")
            yield line
