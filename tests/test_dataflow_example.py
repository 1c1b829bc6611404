"""The flex template of examples/dataflow/ names real options, and its command parses."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path

from halofeed.cli import _parser
from tests.support.scripts import run_script

FOLDER = Path(__file__).parents[1] / "examples" / "dataflow"
PARAMETERS = json.loads((FOLDER / "metadata.json").read_text())["parameters"]
REQUIRED = {"layout": "folders", "source": "gs://bucket/photos", "out": "gs://bucket/data", "name": "photos"}


def test_every_parameter_is_an_option_of_convert_and_says_what_it_is():
    (subparsers,) = [
        action for action in _parser("convert")._actions if hasattr(action, "choices") and action.choices
    ]
    options = {word for action in subparsers.choices["convert"]._actions for word in action.option_strings}
    for parameter in PARAMETERS:
        assert f"--{parameter['name'].replace('_', '-')}" in options
        assert parameter["label"] and parameter["helpText"]
    assert {parameter["name"] for parameter in PARAMETERS if not parameter["isOptional"]} == set(REQUIRED)


def test_its_patterns_take_real_values_and_refuse_local_ones():
    for parameter in PARAMETERS:
        for pattern in parameter.get("regexes", ()):
            assert re.search(pattern, REQUIRED[parameter["name"]])
            assert not re.search(pattern, "/Local")


def test_the_launchers_words_become_a_conversions():
    given = [*(f"--{name}={value}" for name, value in REQUIRED.items()), "--split_shares=train=0.9,test=0.1"]
    given += ["--version=", "--project=p", "--template_location=gs://bucket/t.json"]
    script = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import main; print(*main.command(sys.argv[1:]))"
    )
    assert run_script(script, *given).split() == [
        *("convert", "--layout", "folders", "--source", "gs://bucket/photos", "--out", "gs://bucket/data"),
        *("--name", "photos", "--split-shares", "train=0.9,test=0.1"),
        *("--", "--runner=DataflowRunner", "--project=p", "--template_location=gs://bucket/t.json"),
    ]


def test_the_container_has_the_version_of_beam_that_is_installed_here():
    named = re.findall(r"(?:sdk:|==)(\d+\.\d+\.\d+)", (FOLDER / "Dockerfile").read_text())
    assert set(named) == {metadata.version("apache-beam")}
