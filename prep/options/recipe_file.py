"""Files of recipes: a manifest, the options of one in JSON or YAML, or a pipeline.config."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halofeed.prep.annotations.documents import parse_yaml
from halofeed.prep.options.option import flag
from halofeed.prep.options.pipeline_data import read_pipeline_data
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.options.volumes import SCAN
from halofeed.schemas import limits
from halofeed.schemas.bounded_json import parse_json
from halofeed.schemas.file_layout import MANIFEST
from halofeed.schemas.manifest import Manifest, only_version
from halofeed.storage.atomic_files import read_regular
from halofeed.storage.choose import read_option_file
from halofeed.storage.paths import find_paths
from halofeed.system.addresses import Address, address_of
from halofeed.system.errors import UsageError

_ALTERNATIVES = (
    ("window", "window_hu", "window_percentiles"),
    ("normalize", "window_percentiles"),
    ("frame_stride", "frame_rate"),
    ("label_channels", "label_colors"),
)
"""Options of which a recipe has one."""
_CURE = "name a manifest.json that `halofeed convert` wrote, a .json or .yaml file with options, or a pipeline.config"


@dataclass(frozen=True, kw_only=True)
class GivenRecipe:
    """Options of a recipe in a manifest's form, before they are checked.

    Args:
        document: value by option, such as {"layout": "voc", "height": 300}.
        where: name of the file, for messages.
        below: path of the options in the document, such as "recipe.".
        labels: classes of the data set if the file is its manifest, else None.
        label_map: file of class names that the options are for, or None.
        mapped: lines for people about fields that were translated.
        option: the option that names the file.
    """

    document: Mapping[str, Any]
    where: str = ""
    below: str = ""
    labels: Mapping[int, str] | None = None
    label_map: str | None = None
    mapped: tuple[str, ...] = ()
    option: str = "--recipe"

    def changed(self, given: Mapping[str, Any]) -> Recipe:
        """Return the recipe with the options of the command line in place of its own, and of what excludes them.

        Args:
            given: value by option.

        Raises:
            UsageError: lists every option that is unknown or has a wrong value, each with its path.

        >>> earlier = GivenRecipe(document={"layout": "msd", "depth": 8, "window": "lung", "shards": 2})
        >>> recipe = earlier.changed({"window_hu": (0, 80), "shards": 4})
        >>> recipe.window, recipe.window_hu, recipe.shards
        (None, (0, 80), 4)
        """
        excluded = {name for group in _ALTERNATIVES if given.keys() & set(group) for name in group}
        # `VolumeOptions._scale_problems` refuses a window beside it.
        if given.get("normalize") == SCAN:
            excluded |= set(_ALTERNATIVES[0])
        kept = {name: value for name, value in self.document.items() if name not in excluded}
        beside = f" with {', '.join(map(flag, given))}" if given else ""
        return Recipe.from_json(
            {**kept, **given},
            where=f"{self.option} {self.where}".rstrip() + beside,
            path=lambda name: f"{self.below}{name}",
        )

    def check_used(self, recipe: Recipe, given: Mapping[str, Any]) -> None:
        """Refuse options of the command line that have no effect, and name the options here that prevent it.

        Raises:
            UsageError: lists each such option and what it needs.
        """
        try:
            recipe.check_used(given)
        except UsageError as error:
            named = [one.replace("-", "_") for one in re.findall(r"--([a-z-]+)", str(error))]
            own = {
                name: self.document[name] for name in named if name not in given and self.document.get(name)
            }
            # The options themselves are the reason, and not the recipe.
            if not own:
                raise
            has = ", ".join(f"{flag(name)} {value}" for name, value in own.items())
            raise UsageError(f"{error}\n{self.option} {self.where}".rstrip() + f" has {has}") from error


def read_recipe(file: str | os.PathLike[str] | Mapping[str, Any]) -> GivenRecipe:
    """Read a recipe: a manifest's file or folder, a file with its member `recipe` or the options alone, or a mapping.

    A file or folder may be the address of a web server or a store. A folder may be that of the data set's only version.

    A file whose name ends in .yaml or .yml is YAML, one in .config a pipeline.config of the TensorFlow Object Detection
    API, any other JSON.

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
    where, data = _read_address(address) if (address := address_of(file)) else _read_path(file)
    if where.endswith(".config"):
        return _read_pipeline(where, data)
    return _recipe_of_document(where, data, _parse_document(where, data))


def _parse_document(where: str, data: bytes) -> Any:
    """Return the document of a YAML or JSON file."""
    form = "YAML" if where.lower().endswith((".yaml", ".yml")) else "JSON"
    try:
        return parse_yaml(data) if form == "YAML" else parse_json(data, limits.MANIFEST_VALUES)
    except ValueError as error:
        raise UsageError(f"--recipe {where}: is no {form}: {error}; {_CURE}") from error


def _recipe_of_document(where: str, data: bytes, document: Any) -> GivenRecipe:
    """Return the recipe in a manifest, in the member `recipe`, or in the document itself."""
    # A manifest is checked as one, and also gives the classes.
    if isinstance(document, dict) and "format_version" in document:
        manifest = Manifest.from_json(data, where)
        return GivenRecipe(document=manifest.recipe, where=where, below="recipe.", labels=manifest.labels)
    below = "recipe." if isinstance(document, dict) and "recipe" in document else ""
    options = document["recipe"] if below else document
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise UsageError(f"--recipe {where}: expected options by name, got {options!r:.60}; {_CURE}")
    return GivenRecipe(document=options, where=where, below=below)


def _read_address(address: Address) -> tuple[str, bytes]:
    """Return the text of a recipe's address, without its secrets, and the bytes there.

    An address is never a `Path`, which would make one slash of two and a name of the query. An address without
    the extension of a recipe is that of a data set's folder.
    """
    if not str(address).lower().endswith((".json", ".yaml", ".yml", ".config")):
        address = address / MANIFEST
    return str(address), read_option_file("--recipe", address.full, limits.MANIFEST_BYTES)


def _read_path(file: str | os.PathLike[str]) -> tuple[str, bytes]:
    """Return the path of a recipe's file, or of the manifest in the folder that is named, and its bytes."""
    path = Path(only_version(file))
    if path.is_dir():
        # A data set's folder holds one folder per version; `only_version` went into that of a single one.
        versions = sorted(str(one.parent) for one in find_paths(path, f"[!.]*/{MANIFEST}"))
        if versions and not (path / MANIFEST).exists():
            raise UsageError(
                f"--recipe {path}: holds {len(versions)} versions; name one: {', '.join(versions[:5])}"
            )
        path = path / MANIFEST
    try:
        return str(path), read_regular(path, limits.MANIFEST_BYTES)
    except OSError as error:
        raise UsageError(f"--recipe {path}: cannot be read: {error.strerror or error}; {_CURE}") from error


def _read_pipeline(where: str, data: bytes) -> GivenRecipe:
    try:
        options, label_map, mapped = read_pipeline_data(data.decode())
    except (UsageError, UnicodeDecodeError) as error:
        raise UsageError(f"--recipe {where}: {error}") from error
    found = label_map if os.path.isfile(label_map) else None
    if label_map:
        meaning = f"--label-map = {found}" if found else f"nothing: {label_map} is no file here"
        mapped.append(f"train_input_reader.label_map_path -> {meaning}")
    return GivenRecipe(document=options, where=where, label_map=found, mapped=tuple(mapped))
