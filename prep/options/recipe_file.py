"""Files of recipes: a manifest, or the options of one in JSON or YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halofeed.errors import UsageError
from halofeed.prep.annotations.yaml_documents import parse_yaml
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas import limits
from halofeed.schemas.bounded_json import parse_json
from halofeed.schemas.files import MANIFEST
from halofeed.schemas.manifest import Manifest, only_version
from halofeed.system.atomic_files import read_regular

_CURE = "name a manifest.json that `halofeed convert` wrote, or a .json or .yaml file with options"


@dataclass(frozen=True, kw_only=True)
class GivenRecipe:
    """Options of a recipe in a manifest's form, before they are checked.

    Args:
        document: value by option, such as {"layout": "voc", "height": 300}.
        where: name of the file, for messages.
        below: path of the options in the document, such as "recipe.".
        labels: classes of the data set if the file is its manifest, else None.
    """

    document: Mapping[str, Any]
    where: str = ""
    below: str = ""
    labels: Mapping[int, str] | None = None

    def changed(self, given: Mapping[str, Any]) -> Recipe:
        """Return the recipe with the options of the command line in place of its own.

        Args:
            given: value by option.

        Raises:
            UsageError: lists every option that is unknown or has a wrong value, each with its path.

        >>> GivenRecipe(document={"layout": "voc", "shards": 2}).changed({"shards": 4}).shards
        4
        """
        return Recipe.from_json(
            {**self.document, **given},
            where=f"--recipe {self.where}".rstrip(),
            path=lambda name: f"{self.below}{name}",
        )


def read_recipe(file: str | os.PathLike[str] | Mapping[str, Any]) -> GivenRecipe:
    """Read a recipe: a manifest's file or folder, a file with its member `recipe` or the options alone, or a mapping.

    A folder may be that of the data set's only version.

    A file whose name ends in .yaml or .yml is YAML, any other JSON.

    Raises:
        UsageError: the file cannot be read, or holds no recipe.
        ManifestError: the file is a manifest that was changed or is damaged.
    """
    if isinstance(file, Mapping):
        return GivenRecipe(document=file)
    if isinstance(file, str) and file.lstrip().startswith("{"):
        raise UsageError(
            f"--recipe {file:.60}: expected a path, got options; {_CURE}, or in Python give a dict"
        )
    path = Path(only_version(file))
    if path.is_dir():
        versions = sorted(str(one.parent) for one in path.glob(f"[!.]*/{MANIFEST}"))
        if versions and not (path / MANIFEST).exists():
            raise UsageError(
                f"--recipe {path}: holds {len(versions)} versions; name one: {', '.join(versions[:5])}"
            )
        path = path / MANIFEST
    try:
        data = read_regular(path, limits.MANIFEST_BYTES)
    except OSError as error:
        raise UsageError(f"--recipe {path}: cannot be read: {error.strerror or error}; {_CURE}") from error
    try:
        if path.suffix.lower() in (".yaml", ".yml"):
            document = parse_yaml(data)
        else:
            document = parse_json(data, limits.MANIFEST_VALUES)
    except ValueError as error:
        form = "YAML" if path.suffix.lower() in (".yaml", ".yml") else "JSON"
        raise UsageError(f"--recipe {path}: is no {form}: {error}; {_CURE}") from error
    if isinstance(document, dict) and "format_version" in document:
        manifest = Manifest.from_json(data, str(path))
        return GivenRecipe(document=manifest.recipe, where=str(path), below="recipe.", labels=manifest.labels)
    below = "recipe." if isinstance(document, dict) and "recipe" in document else ""
    options = document["recipe"] if below else document
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise UsageError(f"--recipe {path}: expected options by name, got {options!r:.60}; {_CURE}")
    return GivenRecipe(document=options, where=str(path), below=below)
