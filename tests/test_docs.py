"""The pages and the flex template name only tests, options and files that exist."""

import argparse
import json
import re
from importlib import metadata
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from halofeed.cli import _parser
from halofeed.options import from_options
from halofeed.prep.layouts import LAYOUTS
from halofeed.prep.options.recipe import Recipe
from tests.support.scripts import run_script

ROOT = Path(__file__).parents[1]


def rows(page: str, head: str) -> list[list[str]]:
    """The cells of every row of a page's tables, heads left out."""
    found = []
    for line in (ROOT / "tests" / page).read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0] != head and not set(cells[0]) <= set("-: "):
            found.append(cells)
    return found


@pytest.mark.parametrize(
    "cells",
    [*rows("readings.md", "source"), *rows("guarantees.md", "promise")],
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
    known |= {"--all", "--exhaustive", "--runner", "--project", "--region", "--parallelism", "--planes"}
    for script in ROOT.glob("benchmarks/*.py"):
        known |= set(re.findall(r'add_argument\(\s*"(--[a-z][a-z-]+)"', script.read_text()))
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("tests/*.md"))):
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
        assert any(one.is_file() and re.search(rf"^{table}\b", one.read_text(), re.M) for one in files), table


def test_the_page_about_encodings_names_every_table_with_an_entry_per_encoding() -> None:
    text = (ROOT / "docs" / "extending.md").read_text()
    named = dict(re.findall(r"^\| `([\w/]+\.py)` \| (`[\w`, ]+`) \|", text, re.MULTILINE))
    parts = ("schemas", "loader", "prep", "pipelines", "inspection", "trainer")
    found = [
        path for part in parts for path in ROOT.glob(f"{part}/**/*.py") if '"yuv420"' in path.read_text()
    ]
    assert sorted(named) == sorted(str(path.relative_to(ROOT)) for path in found)
    for file, tables in named.items():
        for table in re.findall(r"\w+", tables):
            assert re.search(rf"^(class )?{table}\b", (ROOT / file).read_text(), re.MULTILINE), (file, table)


DATAFLOW = ROOT / "examples" / "dataflow"
METADATA = (DATAFLOW / "metadata.json").read_text()


def test_the_flex_template_has_dataflows_form_names_beams_options_and_every_layout():
    types = pytest.importorskip("google.cloud.dataflow_v1beta3").types
    options, *beams = types.TemplateMetadata.from_json(METADATA).parameters
    assert all(one.label and one.help_text and one.param_type.name != "DEFAULT" for one in (options, *beams))
    assert set(re.search("Layouts: (.+)[.]$", options.help_text)[1].split(", ")) == set(LAYOUTS)
    assert {one.name for one in beams} <= set(PipelineOptions([]).get_all_options())


def test_the_launch_of_the_readme_becomes_a_conversion_on_machines_that_hold_it():
    (given,) = re.findall(r'--parameters "\^~\^(.+)"$', (DATAFLOW / "README.md").read_text(), re.M)
    words = [f"--{word.replace('$', 'gs://')}" for word in given.split("~")]
    assert re.search(json.loads(METADATA)["parameters"][0]["regexes"][0], words[0].partition("=")[2])
    script = "import json, sys; sys.path.insert(0, {!r}); import main; print(json.dumps(main.command(sys.argv[1:])))"
    command = json.loads(run_script(script.format(str(DATAFLOW)), *words, "--project=p", "--subnetwork="))
    ours, beam = command[: command.index("--")], command[command.index("--") + 1 :]
    recipe = from_options(Recipe, _parser("convert").parse_args(ours))
    assert recipe.max_boxes == 100 and recipe.split_shares
    assert beam[2:-1] == ["--sdk_container_image=gs://IMAGE", "--max_num_workers=250", "--project=p"]
    machines = {"2048": "n2-standard-4", "6144": "n2-highmem-4", "8192": "n2-highmem-2"}
    for memory, machine in machines.items():
        launched = run_script(script.format(str(DATAFLOW)), f"--options=--max-memory {memory} -- --network=n")
        assert f"--machine_type={machine}" in launched and "--network=n" in launched


def test_the_container_has_the_version_of_beam_that_is_installed_here():
    named = re.findall(r"(?:sdk:|==)(\d+\.\d+\.\d+)", (DATAFLOW / "Dockerfile").read_text())
    assert set(named) == {metadata.version("apache-beam")}
