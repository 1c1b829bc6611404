"""How is the manifest of a data set read that anyone may have made?"""

from __future__ import annotations

import os

from halofeed.inspection.stored.place import Place, open_place
from halofeed.prep.options.recipe import recipe_problems
from halofeed.schemas.errors import ManifestError
from halofeed.schemas.layout import MANIFEST
from halofeed.schemas.manifest import Manifest


def open_manifest(path: str | os.PathLike[str] | Place) -> Manifest:
    """The manifest of a data set.

    Raises:
        UsageError, ManifestError: as `read_manifest`; the latter also where an option is not of its kind.
    """
    place = open_place(path)
    manifest = place.manifest()
    check_recipe(manifest, place.path(MANIFEST))
    return manifest


def check_recipe(manifest: Manifest, where: str) -> None:
    """Refuse a manifest whose recipe holds what no option can; ManifestError names each."""
    problems = [(f"recipe.{name}"[:200], problem) for name, problem in recipe_problems(manifest.recipe)]
    if problems:
        raise ManifestError(where, problems)
