"""Kind of image and task are looked up in tables, and each key of a record is spelled in one place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from halofeed.schemas import keys

ROOT = Path(__file__).parents[1]
PARTS = ("schemas", "prep", "pipelines", "loader", "trainer", "inspection", "halofeed")
TABLES = {
    *("schemas/kinds.py", "schemas/tasks.py", "schemas/earlier_options.py", "inspection/facts/kinds.py"),
    *(f"prep/options/{name}.py" for name in ("recipe", "uses", "pictures", "volumes", "clips")),
}
"""Where each kind and task is named, and what a recipe means for it."""
NAMES = {"picture", "volume", "clip", "classification", "detection", "segmentation"}
FLAGS = {"is_volume", "is_volumetric", "is_detection", "is_segmentation", "volumes"}
MOST_BRANCHES = 10


def programs() -> Iterator[tuple[str, str]]:
    """The name and the text of every file of halofeed."""
    for part in PARTS:
        for path in sorted((ROOT / part).glob("*.py" if part == "halofeed" else "**/*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def conditions(tree: ast.AST) -> Iterator[ast.expr]:
    """What every branch of a program asks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.Match):
            yield node.subject


def asks_for_kind_or_task(condition: ast.expr) -> bool:
    """Whether a condition compares a kind or a task, or what stands for one: a depth, the rank of an image."""
    for node in ast.walk(condition):
        if isinstance(node, ast.Name | ast.Attribute):
            if (node.id if isinstance(node, ast.Name) else node.attr) in FLAGS:
                return True
        elif isinstance(node, ast.Compare):
            parts = [inner for part in (node.left, *node.comparators) for inner in ast.walk(part)]
            words = {part.id for part in parts if isinstance(part, ast.Name)}
            words |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
            values = {part.value for part in parts if isinstance(part, ast.Constant)}
            if (words & {"kind", "task"} and values & NAMES) or ("depth" in words and None in values):
                return True
            if "depth" in values or ("len" in words and words & {"shape", "image_shape"} and 4 in values):
                return True
    return False


def branches(text: str) -> list[int]:
    """The lines of a program that ask for kind or task."""
    return [one.lineno for one in conditions(ast.parse(text)) if asks_for_kind_or_task(one)]


def test_few_branches_outside_the_tables_ask_for_kind_or_task():
    found = [f"{name}:{line}" for name, text in programs() if name not in TABLES for line in branches(text)]
    assert len(found) <= MOST_BRANCHES, found


@pytest.mark.parametrize(
    "text",
    [
        "if task == 'segmentation': pass",
        "x = 1 if recipe.depth is None else 2",
        "if len(field.shape) == 4: pass",
        "y = [a for a in b if facts.is_volume]",
        "if 'depth' in field.axes: pass",
        "if manifest.kind.name in ('picture', 'clip'): pass",
    ],
)
def test_a_branch_is_found(text):
    assert branches(text) == [1]


def test_a_lookup_is_no_branch():
    assert branches("x = TABLE[manifest.kind.name]\nif rules.is_heavy: pass") == []


def spelled(text: str) -> list[str]:
    """The keys that a program holds as texts of their own; messages may name keys."""
    texts = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return [value for value in texts if isinstance(value, str) and re.fullmatch("image/[a-z0-9_/]+", value)]


def test_keys_are_spelled_in_the_schema_alone() -> None:
    assert spelled("features['image/height']") == ["image/height"]
    found = {
        name: names for name, text in programs() if name != "schemas/keys.py" and (names := spelled(text))
    }
    assert not found


def test_no_key_has_two_names() -> None:
    named = [value for value in vars(keys).values() if isinstance(value, str) and value.startswith("image/")]
    assert len(named) == len(set(named)) >= 35
