"""Help, near names, --recipe, the levels of status and the completion of a shell."""

import io
import json
import re
import subprocess
import time
from pathlib import Path

import pytest

import halofeed
from halofeed.errors import UsageError
from halofeed.system.console import status_with_time
from tests.support.conversions import draw_folders, halofeed_here, shard_bytes
from tests.support.conversions import halofeed as halofeed_process

NEAR = {
    "convrt": "did you mean convert?",
    "convert --hieght=3": "unrecognized arguments: --hieght=3; did you mean --height?",
    "convert --encoding jpg": "invalid choice: 'jpg'; did you mean jpeg? choose from raw, jpeg, png",
    "convert --layout foldrs --source . --out o --name n": "did you mean folders? known: folders, csv",
    "configs retinanet_smal": "did you mean retinanet_small? known: ",
    "plan --config unet3d_128 --set stpes=3": "stpes: no such setting; did you mean steps? known: ",
    "plan --topology v8-8 --config unet3d_128": "did you mean v",
}
LINES = r"halofeed \w+: .*|classifier: .* parameters, .*|step 1/1  loss .*|report: .*|q/.*|\S+ 1\.0\.0: .*|  train .*|Compiling, .*"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return draw_folders(tmp_path_factory.mktemp("words") / "source", 6)


@pytest.mark.parametrize("words", NEAR)
def test_a_misspelled_name_is_answered_with_the_nearest_one(words):
    done = halofeed_here(*words.split())
    assert done.returncode == 2 and NEAR[words] in done.stderr, done.stderr


def test_a_recipe_repeats_a_conversion_and_options_override_it(source, tmp_path):
    first = halofeed.convert(
        source, tmp_path, layout="folders", name="a", height=16, width=24, interpolation="tf1-area"
    )
    file, out = f"{first.path}/manifest.json", ("--source", source, "--out", tmp_path, "--name")
    done = halofeed_here("convert", "--recipe", file, *out, "b", "-q")
    assert done.returncode == 0 and done.stderr == ""
    assert shard_bytes(tmp_path / "b/1.0.0") == shard_bytes(tmp_path / "a/1.0.0")
    again = halofeed.convert(source, tmp_path, recipe=first.manifest.recipe, name="c", shards=2)
    assert again.manifest.recipe == {**first.manifest.recipe, "shards": 2}
    for name, text in {
        "r.json": json.dumps({"recipe": {"layout": "folders"}}),
        "r.yaml": "layout: folders",
    }.items():
        (tmp_path / name).write_text(text)
        done = halofeed_here("convert", "--recipe", tmp_path / name, *out, name[2:], "--height", 8, "-v")
        assert done.returncode == 0 and re.search(r"planned 6 inputs in .*\n.*wrote 1 shard", done.stderr)


def test_all_faults_of_a_recipe_are_listed_with_their_paths(source, tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text('recipe: {layout: folders, hight: 3, width: "24", shards: 0, resize: fixed-shap, pad: 1}')
    done = halofeed_here("convert", "--recipe", file, "--source", source, "--out", tmp_path, "--name", "a")
    for part in ("hight: no option of this version; did you mean height?", "width: expected int, got '24'"):
        assert f"recipe.{part}" in done.stderr
    for part in (
        "shards: got 0; expected 1 or more",
        "resize: got 'fixed-shap'; did you mean",
        "pad: expected bool, got 1",
    ):
        assert f"recipe.{part}" in done.stderr
    assert done.returncode == 2 and "known options: " in done.stderr
    with pytest.raises(UsageError, match=r"^recipe cannot be followed:\nheigt: .*did you mean height"):
        halofeed.convert(source, tmp_path, recipe={"heigt": 3})
    for name, text, fault in (
        ("a.json", "{", "Expecting"),
        ("a.yaml", "[1]", "options by name"),
        ("no", None, "No such file"),
    ):
        if text is not None:
            (tmp_path / name).write_text(text)
        done = halofeed_here(
            "convert", "--recipe", tmp_path / name, "--source", source, "--out", tmp_path, "--name", "a"
        )
        assert done.returncode == 2 and fault in done.stderr and "name a manifest.json" in done.stderr


def test_the_time_of_a_compilation_is_printed_while_it_lasts():
    stream = io.StringIO()
    with status_with_time("Compiling", stream=stream, every_seconds=0.05):
        time.sleep(0.3)
    assert 2 <= len(re.findall(r"^Compiling, 0 s so far$", stream.getvalue(), re.MULTILINE)) <= 6


def test_bash_completes_commands_options_and_values(tmp_path):
    script = halofeed_here("completion", "bash").stdout
    for words, expected in (
        ("co", "convert configs completion"),
        ("convert --encoding j", "jpeg"),
        ("show --stp", ""),
    ):
        known = f'COMP_WORDS=(halofeed {words}); COMP_CWORD=${{#COMP_WORDS[@]}}-1; _halofeed; echo "${{COMPREPLY[*]}}"'
        done = subprocess.run(
            ["bash", "-c", f"{script}\n{known}"], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected and done.stderr == ""


@pytest.mark.long
def test_commands_print_lines_of_halofeed_alone(source, tmp_path):
    convert = f"convert --layout folders --source {source} --out q --name a --height 16 --width 24 -v"
    train = "train q/a/1.0.0 --config classifier_small --set model.features=[8] --steps 1 --batch-size 6 --out q/run"
    for words in (convert, train, "show q/a/1.0.0 --output q/batch.png"):
        done = halofeed_process(*words.split(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert not [
            line for line in (done.stdout + done.stderr).splitlines() if not re.fullmatch(LINES, line)
        ]
