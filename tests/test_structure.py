"""The size of each folder, docstrings that are statements, and public names with one meaning."""

import ast
import re
from collections import defaultdict

import pytest

from .test_import_rules import ROOT, sources

CEILINGS = {
    "halofeed": (11, 2250),
    "system": (16, 2650),
    "schemas": (17, 3650),
    "prep": (111, 29900),
    "pipelines": (30, 7400),
    "loader": (45, 9950),
    "trainer": (56, 10650),
    "inspection": (29, 7300),
}
"""Files and lines of each folder. A higher ceiling needs a reason in docs/decisions.md."""
QUESTION = re.compile(
    r"(How|What|Which|Where|Whether|Why|When|Who|Whose|Does|Is|Are|May|Has|Have|Can|Should)\b|.*\?$"
)
SHARED = {"list_references", "label_values", "channel_names", "main"}
"""Functions that several modules define because they implement one interface."""
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sources()}


@pytest.mark.parametrize("folder", CEILINGS)
def test_a_folder_stays_below_its_ceiling(folder):
    counted = [
        path.read_text().count("\n") for path in sources() if path.relative_to(ROOT).parts[0] == folder
    ]
    files, lines = CEILINGS[folder]
    print(f"{folder}: {len(counted)} of {files} files, {sum(counted)} of {lines} lines")
    assert len(counted) <= files and sum(counted) <= lines


def test_docstrings_begin_with_a_statement():
    found = []
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
                text := ast.get_docstring(node)
            ):
                first = text.partition("\n")[0]
                if QUESTION.match(first):
                    found.append(f"{name}:{getattr(node, 'lineno', 1)}: {first}")
    assert found == []


def test_a_public_name_has_one_meaning():
    """Aliases with the same value, and constants of a module's own format tables, count once."""
    meanings: dict[str, dict[str, str]] = defaultdict(dict)
    for file, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                meanings[node.name][file] = file
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                meanings[node.targets[0].id][ast.dump(node.value)] = file
    several = {
        name: sorted(places.values())
        for name, places in meanings.items()
        if len(places) > 1 and not name.startswith("_") and name not in SHARED
    }
    assert several == {}
