"""Lineage of a version: the earlier version that it was made from, and which of its shards are older than itself.

A manifest has it as `inputs.parent`, so that programs that do not know it read the data set as any other.

    version, crc32c   version and checksum of the manifest of the parent
    name              of a subset: name of the data set of the parent
    where             of a subset: the condition that its records meet, with that of a parent that is a subset
    generations       shards by split: those of the first version, then those that each later version added
    recipes           of a conversion: what older shards were made with, where that differs from this version

An example keeps its shard as long as it keeps its split. New examples are in the shards that a version adds, by the
same hash of their ids as in a first version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halofeed.schemas.identity import shard_of

PARENT = "parent"
"""Member of a manifest's `inputs`."""
_MOST_SHARDS = 99_999
_MOST_RECIPES = 10_000


@dataclass(frozen=True, kw_only=True)
class OlderRecipe:
    """Options and classes of shards that an earlier version made, where they differ from those of the version now.

    Args:
        options: options of the recipe with other values; only those that assign splits may differ.
        without_classes: ids of classes that a later version has added.
    """

    options: Mapping[str, Any]
    without_classes: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"options": dict(self.options), "without_classes": list(self.without_classes)}


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The parent of a version, and the generations of its shards; see the text of this module."""

    version: str
    crc32c: int
    generations: Mapping[str, tuple[int, ...]]
    recipes: tuple[OlderRecipe, ...] = ()
    where: str | None = None
    name: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for a manifest."""
        document: dict[str, Any] = {
            "version": self.version,
            "crc32c": self.crc32c,
            "generations": {split: list(counts) for split, counts in self.generations.items()},
        }
        if self.recipes:
            document["recipes"] = [one.to_json() for one in self.recipes]
        texts = {"where": self.where, "name": self.name}
        document |= {name: text for name, text in texts.items() if text is not None}
        return document


def lineage_of(inputs: Mapping[str, Any]) -> Lineage | None:
    """Return the lineage in the `inputs` of a checked manifest; None for a version without a parent.

    >>> lineage_of({"count": 3, "parent": {"version": "1.0.0", "crc32c": 7, "generations": {"train": [4, 1]}}})
    Lineage(version='1.0.0', crc32c=7, generations={'train': (4, 1)}, recipes=(), where=None, name=None)
    """
    found = inputs.get(PARENT)
    if found is None:
        return None
    return Lineage(
        version=found["version"],
        crc32c=found["crc32c"],
        generations={split: tuple(counts) for split, counts in found["generations"].items()},
        recipes=tuple(
            OlderRecipe(options=one["options"], without_classes=tuple(one["without_classes"]))
            for one in found.get("recipes", ())
        ),
        where=found.get("where"),
        name=found.get("name"),
    )


_MEMBERS: tuple[tuple[str, type, str], ...] = (
    ("version", str, "a text"),
    ("crc32c", int, "a checksum"),
    ("generations", dict, "shards by split"),
)


def lineage_problems(inputs: Mapping[str, Any], shards: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield (path, problem) for each problem of the lineage in the `inputs` of a manifest.

    Args:
        shards: number of shards by split.
    """
    found = inputs.get(PARENT)
    path = f"inputs.{PARENT}"
    if found is None:
        return
    if not isinstance(found, dict):
        yield path, f"expected an object, got {found!r:.60}"
        return
    for name, kind, words in _MEMBERS:
        if type(found.get(name)) is not kind:
            yield f"{path}.{name}", f"expected {words}, got {found.get(name)!r:.60}"
            return
    for name in ("where", "name"):
        if not isinstance(found.get(name, ""), str):
            yield f"{path}.{name}", f"expected a text, got {found[name]!r:.60}"
    generations = found["generations"]
    for split, count in shards.items():
        counts = generations.get(split)
        if not _are_counts(counts) or sum(counts) != count:
            yield (
                f"{path}.generations.{split}"[:200],
                f"expected counts with the sum {count}, got {counts!r:.60}",
            )
    recipes = found.get("recipes", [])
    if not isinstance(recipes, list) or len(recipes) > _MOST_RECIPES or not all(map(_is_recipe, recipes)):
        yield f"{path}.recipes", f"expected options and without_classes of each, got {recipes!r:.60}"


def _are_counts(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(type(one) is int and 0 < one <= _MOST_SHARDS for one in value)


def _is_recipe(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("options"), dict):
        return False
    ids = value.get("without_classes")
    return isinstance(ids, list) and all(type(one) is int and one >= 0 for one in ids)


def possible_shards(identity: int, generations: Sequence[int]) -> list[int]:
    """Return the shards in which an example may be: one of each generation.

    >>> possible_shards(7, (4,)), possible_shards(7, (4, 2, 1))
    ([1], [1, 4, 6])
    """
    found, before = [], 0
    for count in generations:
        found.append(before + shard_of(identity, count))
        before += count
    return found
