"""The pages and the flex template name only tests, options and files that exist."""

import argparse
import json
import re
from importlib import metadata
from pathlib import Path

import pytest

from halofeed.cli import _parser
from tests.support.scripts import run_script

ROOT = Path(__file__).parents[1]


def rows(page: str, head: str) -> list[list[str]]:
    """The cells of every row of a page's tables, heads left out."""
    found = []
    for line in (ROOT / "docs" / page).read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0] != head and not set(cells[0]) <= set("-: "):
            found.append(cells)
    return found


@pytest.mark.parametrize(
    "cells",
    [*rows("ambiguity.md", "source"), *rows("guarantees.md", "promise")],
    ids=lambda cells: " / ".join(cells[:2])[:60],
)
def test_a_row_of_meanings_or_guarantees_is_whole_and_held_by_tests_that_exist(cells: list[str]) -> None:
    assert len(cells) in (2, 5) and all(cells), cells
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", cells[-1])
    assert named, cells[-1]
    for file, test in named:
        text = (ROOT / file).read_text()
        assert re.search(rf"^def {test or 'test_'}" + (r"\b" if test else ""), text, re.MULTILINE), (
            f"{file} has no {test}"
        )


def test_options_that_the_pages_name_exist() -> None:
    commands = next(a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    known = {flag for command in commands.choices.values() for flag in command._option_string_actions}
    known |= {"--all", "--exhaustive", "--runner", "--parallelism", "--against", "--planes"}
    known |= {"--only", "--rounds", "--quick", "--larger-than-memory", "--photographs", "--gigabytes"}
    known |= {"--peers", "--pictures", "--volumes"}  # of benchmarks/loading.py and from_disk.py
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


DATAFLOW = ROOT / "examples" / "dataflow"
PARAMETERS = json.loads((DATAFLOW / "metadata.json").read_text())["parameters"]
REQUIRED = {"layout": "folders", "source": "gs://bucket/photos", "out": "gs://bucket/data", "name": "photos"}


def test_every_parameter_of_the_flex_template_is_an_option_of_convert_and_says_what_it_is():
    actions = _parser("convert")._actions
    (commands,) = [action for action in actions if isinstance(action, argparse._SubParsersAction)]
    options = set(commands.choices["convert"]._option_string_actions)
    for parameter in PARAMETERS:
        assert f"--{parameter['name'].replace('_', '-')}" in options
        assert parameter["label"] and parameter["helpText"]
    assert {parameter["name"] for parameter in PARAMETERS if not parameter["isOptional"]} == set(REQUIRED)


def test_the_templates_patterns_take_real_values_and_refuse_local_ones():
    for parameter in PARAMETERS:
        for pattern in parameter.get("regexes", ()):
            assert re.search(pattern, REQUIRED[parameter["name"]])
            assert not re.search(pattern, "/Local")


def test_the_launchers_words_become_a_conversions():
    given = [*(f"--{name}={value}" for name, value in REQUIRED.items()), "--split_shares=train=0.9,test=0.1"]
    given += ["--version=", "--project=p", "--template_location=gs://bucket/t.json"]
    script = (
        f"import sys; sys.path.insert(0, {str(DATAFLOW)!r}); import main; print(*main.command(sys.argv[1:]))"
    )
    assert run_script(script, *given).split() == [
        *("convert", "--layout", "folders", "--source", "gs://bucket/photos", "--out", "gs://bucket/data"),
        *("--name", "photos", "--split-shares", "train=0.9,test=0.1"),
        *("--", "--runner=DataflowRunner", "--project=p", "--template_location=gs://bucket/t.json"),
    ]


def test_the_container_has_the_version_of_beam_that_is_installed_here():
    named = re.findall(r"(?:sdk:|==)(\d+\.\d+\.\d+)", (DATAFLOW / "Dockerfile").read_text())
    assert set(named) == {metadata.version("apache-beam")}
