"""Is each key of a record spelled in one place?"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from halofeed.schemas import keys

ROOT = Path(__file__).parents[2]
PARTS = ("schemas", "prep", "pipelines", "loader", "trainer", "inspection", "halofeed")


def spelled(text: str) -> list[str]:
    """The keys that a program holds as texts of their own; messages may name keys."""
    texts = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return [value for value in texts if isinstance(value, str) and re.fullmatch("image/[a-z0-9_/]+", value)]


def test_keys_are_spelled_in_the_schema_alone() -> None:
    assert spelled("features['image/height']") == ["image/height"]
    found = {
        str(path.relative_to(ROOT)): names
        for part in PARTS
        for path in (ROOT / part).glob("*.py" if part == "halofeed" else "**/*.py")
        if (names := spelled(path.read_text())) and path != ROOT / "schemas" / "keys.py"
    }
    assert not found


def test_no_key_has_two_names() -> None:
    named = [value for value in vars(keys).values() if isinstance(value, str) and value.startswith("image/")]
    assert len(named) == len(set(named)) >= 35
