"""Are kind of image and task looked up in tables, and asked for in few other places?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    found = []
    for part in PARTS:
        for path in sorted((ROOT / part).glob("*.py" if part == "halofeed" else "**/*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name not in TABLES:
                found += [f"{name}:{line}" for line in branches(path.read_text())]
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
