"""The Python API does what the command line does, and its errors name parameters."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import halofeed
from halofeed import api, loader, stubs
from halofeed.errors import CorruptFileError, UsageError
from halofeed.keywords import check_keywords, keywords_of
from halofeed.options import Option
from halofeed.trainer.config import TrainConfig
from tests.support.conversions import draw_folders, shard_bytes


def test_three_lines_give_batches_and_the_command_lines_bytes(tmp_path):
    draw_folders(tmp_path / "My Photos", 12)
    how = {"layout": "folders", "height": 16, "width": 24, "shards": 2}
    data = halofeed.convert(tmp_path / "My Photos", tmp_path / "out", **how)
    assert "def parse(record)" in halofeed.inspect(data.path, parser=True) and "<img" in data._repr_html_()
    words = ["--source", str(tmp_path / "My Photos"), "--out", str(tmp_path / "too"), "--name", "my_photos"]
    words += ["--layout", "folders", "--height", "16", "--width", "24", "--shards", "2"]
    subprocess.run([sys.executable, "-m", "halofeed", "convert", *words], check=True, capture_output=True)
    assert shard_bytes(tmp_path / "too/my_photos/1.0.0") == shard_bytes(tmp_path / "out/my_photos/1.0.0")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"hieght": 3}, r"^hieght: convert has no such parameter; did you mean height\?$"),
        ({"layout": "yola"}, r"^layout 'yola' is not known; did you mean yolo\?"),
        ({"shards": "x"}, "^shards: expected a whole number, got 'x'; meaning: files per split"),
        ({"height": "x"}, "^height: expected a whole number, got 'x'; meaning: rows of a fixed shape"),
        ({"height": (16, 16)}, r"^height: expected one value, got \(16, 16\); meaning"),
        ({"height": 8.5}, "^height: expected a whole number such as 8, got 8.5$"),
        ({"height": True}, "^height: expected a value, got True; meaning"),
        ({"warn_cut": "much"}, "^warn_cut: expected a number, got 'much'; meaning"),
        ({"window_hu": ("low", 4)}, "^window_hu: expected numbers separated by commas.* got 'low'; meaning"),
        ({"background": (1, None)}, "^background: expected a whole number such as 8, got None"),
        ({"keep": {"view", "occluded"}}, "^keep: expected a text, got {"),
        (
            {"encoding": "jpg"},
            "^encoding: invalid choice: 'jpg'; did you mean jpeg[?] choose from raw, packed",
        ),
        ({"overwrite": "yes"}, "^overwrite: expected True or False, got 'yes'$"),
        ({"quiet": True, "verbose": True}, "^verbose: not allowed with argument quiet$"),
        ({"label_map": ["hat"]}, "^label_map: expected one value, .* write a file, json.dump"),
        ({"runner": "F"}, r"^runner: .* option of Beam: beam_options=\['--runner=F'\]$"),
        ({"resize": "keep-aspect"}, "keep-aspect without padding.* keep-aspect pad in place of height"),
    ],
)
def test_errors_name_parameters(tmp_path, how, words):
    draw_folders(tmp_path / "src", 3)
    with pytest.raises(UsageError, match=words):
        halofeed.convert(
            tmp_path / "src", tmp_path / "out", **{"layout": "folders", "height": 16, "width": 24} | how
        )


def test_the_package_imports_nothing_and_has_every_name_of_its_stub():
    program = "import halofeed, sys; print(len({'numpy', 'argparse', 'jax'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "0"
    stub = Path(f"{halofeed.__file__}i").read_text()
    assert {*loader.__all__, *api.__all__} - {"split_id"} <= {*halofeed._MODULES}
    assert all(re.search(rf" as {name}$|^def {name}\(", stub, re.M) for name in halofeed._MODULES)
    functions = [name for name in halofeed._MODULES if name not in halofeed._AUGMENTATIONS]
    assert all(">>> " in getattr(halofeed, name).__doc__ for name in functions), "a test runs these"


@pytest.mark.parametrize(
    ("command", "given", "expected"),
    [
        ("convert", {"height": np.int64(16), "width": "24"}, {"height": 16, "width": 24}),
        ("convert", {"spacing_mm": (2, 1.5, 1.5)}, {"spacing_mm": (2.0, 1.5, 1.5)}),
        ("convert", {"spacing_mm": np.array([2, 1.1], "float32")}, {"spacing_mm": (2.0, 1.1)}),
        ("convert", {"warn_cut": np.float32(0.1)}, {"warn_cut": 0.1}),
        ("convert", {"classes": ["liver, left", 3]}, {"classes": ("liver, left", "3")}),
        ("convert", {"split_shares": "a=0.8, b=0.2"}, {"split_shares": ("a=0.8", "b=0.2")}),
        ("convert", {"split_shares": {"a": 0.8, "b": 0.2}}, {"split_shares": ("a=0.8", "b=0.2")}),
        ("convert", {"images": Path("a"), "label_map": None, "pad": False}, {"images": "a", "pad": False}),
        ("convert", {"kernel": "tf1-area"}, {"interpolation": "tf1-area"}),
        ("evaluate", {"checkpoint": 100}, {"checkpoint": "100"}),
        ("train", {"set": {"model": {"features": [8]}}}, {"settings": [("model.features", [8])]}),
        ("train", {"set": ["steps=3"]}, {"settings": ["steps=3"]}),
    ],
)
def test_a_value_reaches_the_command_with_the_type_of_its_option(command, given, expected):
    values = check_keywords(command, given)
    assert {name: values[name] for name in expected} == expected
    assert "label_map" not in values


def test_a_call_parses_no_words(tmp_path, monkeypatch):
    draw_folders(tmp_path / "photos", 4)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", None)
    data = halofeed.convert(tmp_path / "photos", tmp_path / "out", height=16, width=24)
    assert data.splits == {"train": 4}


def test_a_setting_is_given_once():
    with pytest.raises(UsageError, match=r"^steps: given by itself and in set"):
        check_keywords("train", {"steps": 3, "set": {"steps": 4}})


def test_settings_are_values_as_they_are():
    augment = [{"name": "RandomCrop", "size": [8, 8]}]
    changed = TrainConfig().changed([("augment", augment), ("model.features", [8]), "steps=3"])
    assert changed.augment == tuple(augment) and changed.model_options == {"features": [8]}
    assert changed.steps == 3


def test_rejected_inputs_are_counted_and_named(tmp_path):
    draw_folders(tmp_path / "photos", 4)
    broken = next((tmp_path / "photos").rglob("*.jpg"))
    broken.write_bytes(broken.read_bytes()[:60])
    data = halofeed.convert(tmp_path / "photos", tmp_path / "out", height=16, width=24)
    assert data.splits == {"train": 3} and sum(data.rejected.values()) == 1
    (entry,) = data.rejected_sources()
    assert entry["source"].endswith(broken.name)
    assert list(data.rejected) == [f"{entry['stage']}: {entry['reason']}"]
    assert "3 records, 1 input rejected, in" in repr(data)
    Path(data.path, "rejected.jsonl").write_text("{")
    with pytest.raises(CorruptFileError, match=r"rejected.jsonl: cannot be read.*halofeed verify"):
        data.rejected_sources()


@pytest.mark.parametrize("path", stubs.GENERATED, ids=lambda path: path.name)
def test_generated_files_are_current(path):
    assert path.read_text() == stubs.GENERATED[path](), "run `python -m halofeed.stubs`"


def test_the_saved_help_is_that_of_the_options():
    for command in ("convert", "train"):
        texts = [_help(command, saved) for saved in (True, False)]
        assert texts[0] == texts[1]


def _help(command, saved):
    from halofeed.cli import _parser
    from halofeed.parser import subparsers

    return subparsers(_parser(command, saved=saved))[command].format_help()


@pytest.mark.parametrize(
    "function", [one for one in stubs.functions() if one.options], ids=lambda one: one.name
)
def test_every_keyword_has_a_type_and_a_meaning(function):
    assert all(stubs.annotation(row) and row.help for row in function.options)
    known = keywords_of(stubs._COMMANDS_OF.get(function.name, function.name))
    assert all(isinstance(known[row.name], Option) for row in function.options)


USER = """\
import os
from pathlib import Path

import halofeed

data = halofeed.convert(
    Path("photos"), "data", height=16, width=24, split_shares={"train": 0.8, "test": 0.2}, encoding="jpeg"
)
counts: dict[str, int] = {**data.splits, **data.rejected}
run: Path = halofeed.train(data, steps=10, optimizer="adam", set={"model.features": [8, 16]})
metrics = halofeed.evaluate(run, checkpoint="last")
fits = [split["fits"] for split in halofeed.plan(topology="v3-8", cores_per_replica=[1, 2])["splits"]]
"""
WRONG = {
    'halofeed.convert("photos", "data", height="x")': 'Argument "height".*"str"; expected "int"',
    'halofeed.convert("photos", "data", hieght=3)': 'Unexpected keyword argument "hieght"',
    'halofeed.convert("photos", "data", encoding="jpg")': 'Argument "encoding"',
    'halofeed.train("data", steps=1.5)': 'Argument "steps".*"float"; expected "int . None"',
    'halofeed.predict("run")': 'Missing named argument "out"',
}


@pytest.mark.long
def test_a_type_checker_checks_the_keywords_of_a_script(tmp_path):
    script = tmp_path / "user.py"
    script.write_text(USER + "\n".join(WRONG) + "\n")
    root = Path(__file__).parents[2]
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--ignore-missing-imports",
    ]
    done = subprocess.run(
        [*command, "--output=json", str(script)],
        cwd=root,
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    problems = {problem["line"]: problem["message"] for problem in map(json.loads, done.stdout.splitlines())}
    first = len(USER.splitlines()) + 1
    assert sorted(problems) == list(range(first, first + len(WRONG))), done.stdout
    for line, words in enumerate(WRONG.values(), first):
        assert re.search(words, problems[line]), problems[line]
