"""The pages name only tests, options and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
AMBIGUITY = ROOT / "docs" / "ambiguity.md"


def rows() -> list[list[str]]:
    """The cells of every row of the page's tables, heads left out."""
    found = []
    for line in AMBIGUITY.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0] != "source" and not set(cells[0]) <= set("-: "):
            found.append(cells)
    return found


@pytest.mark.parametrize("cells", rows(), ids=lambda cells: " / ".join(cells[:2])[:60])
def test_a_row_of_what_input_can_mean_is_whole_and_held_by_tests_that_exist(cells: list[str]) -> None:
    assert len(cells) == 5 and all(cells), cells
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", cells[4])
    assert named, cells[4]
    for file, test in named:
        text = (ROOT / file).read_text()
        assert re.search(rf"^def {test}\b", text, re.MULTILINE), f"{file} has no {test}"


def test_options_that_the_pages_name_exist() -> None:
    import argparse

    from halofeed.cli import _parser

    parser = _parser()
    commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    known = {flag for command in commands.choices.values() for flag in command._option_string_actions}
    known |= {"--all", "--exhaustive", "--runner", "--parallelism", "--against", "--planes"}
    known |= {
        "--only",
        "--rounds",
        "--quick",
        "--larger-than-memory",
        "--photographs",
    }  # of benchmarks/loading.py
    known |= {"--peers", "--pictures", "--volumes", "--gigabytes"}  # of that and from_disk.py
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+(?![\w-])", page.read_text()))
        assert not named - known, (page.name, sorted(named - known))


def test_the_map_of_the_house_names_files_and_tables_that_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {path.parent for path in ROOT.glob("*/**/*.py") if ".venv" not in path.parts}
    for name in set(re.findall(r"`([\w/]+\.py)`", text)):
        assert any((place / name).is_file() for place in (ROOT, *rooms)), f"{name} is not there"
    tables = re.findall(r"`([\w/]+)\.([A-Z_]+)`", text)
    assert len(tables) > 8
    for module, table in tables:
        files = [place / f"{module}{end}" for place in (ROOT, *rooms) for end in (".py", "/__init__.py")]
        assert any(file.is_file() and re.search(rf"^{table}\b", file.read_text(), re.M) for file in files), (
            f"{module} has no {table}"
        )
