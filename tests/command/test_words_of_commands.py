"""Near names, --recipe, the levels of status and the completion of a shell."""

import re
import subprocess

import pytest

import halofeed
from halofeed.errors import UsageError
from tests.support import conversions
from tests.support.conversions import draw_folders, halofeed_here, shard_bytes

NEAR = {
    "convert --hieght=3": "unrecognized arguments: --hieght=3; did you mean --height?",
    "convert --encoding jpg": "invalid choice: 'jpg'; did you mean jpeg? choose from raw, packed, yuv420, jpeg, png",
    "configs retinanet_smal": "not known; did you mean retinanet_small? known: ",
}
OURS = (
    "halofeed|classifier: .* parameters|step 1/1  loss|report: |q/|a 1.0.0: |  train |Compiling or loading, "
)
OURS += r"|  [0-9.]+ s, .* records/s|layout folders, because |no metrics: "
FAULTY = 'recipe: {layout: folders, hight: 3, width: "24", shards: 0, resize: fixed-shap, pad: 1}'
FAULTS = ("hight: no option of this version; did you mean height?", "width: expected int, got '24'")
FAULTS += ("shards: got 0; expected 1", "resize: got 'fixed-shap'; did you mean", "pad: expected bool, got 1")
PIPELINE = "model { ssd { image_resizer { fixed_shape_resizer { height: 16 width: 24 } } } }"
PIPELINE += "train_input_reader { label_map_path: '$names' }"
FILES = {"a.yaml": (FAULTY, FAULTS[0]), "a.json": ("{", "Expecting"), "b.yml": ("[1]", "options by name")}


@pytest.mark.parametrize("words", NEAR)
def test_a_misspelled_name_is_answered_with_the_nearest_one(words):
    done = halofeed_here(*words.split())
    assert done.returncode == 2 and NEAR[words] in done.stderr, done.stderr


def test_a_recipe_repeats_a_conversion_and_options_override_it(tmp_path):
    source = draw_folders(tmp_path / "source", 6)
    words = ("convert", "--source", source, "--out", tmp_path, "--name")
    done = halofeed_here(*words, "a", "--height", 16, "--width", 24, "--interpolation", "tf1-area", "-q")
    assert (done.returncode, done.stderr) == (0, ""), "the chosen layout is a status line"
    done = halofeed_here(*words, "b", "-v", "--recipe", tmp_path / "a")
    assert re.search(r"planned 6 inputs in .*\n.*wrote 1 shard", done.stderr), done.stderr
    stored = [list(shard_bytes(tmp_path / name / "1.0.0").values()) for name in "ab"]
    assert stored[0] == stored[1]
    (tmp_path / "r.yaml").write_text("layout: folders\nwidth: 8\nheight: 99")
    recipe = halofeed.convert(
        source, tmp_path, recipe=tmp_path / "r.yaml", name="c", height=8
    ).manifest.recipe
    assert (recipe["height"], recipe["width"]) == (8, 8)
    (tmp_path / "names.txt").write_text("\n".join(reversed(conversions.CLASSES)))
    (tmp_path / "p.config").write_text(PIPELINE.replace("$names", str(tmp_path / "names.txt")))
    done = halofeed_here(*words, "e", "--recipe", tmp_path / "p.config", "--width", 8)
    assert "image_resizer.fixed_shape_resizer.height -> --height = 16" in done.stderr, done.stderr
    manifest = halofeed.open(tmp_path / "e").manifest
    assert (manifest.recipe["height"], manifest.recipe["width"]) == (16, 8)
    assert tuple(manifest.labels.values()) == tuple(reversed(conversions.CLASSES))
    for name, (text, fault) in FILES.items():
        (tmp_path / name).write_text(text)
        done = halofeed_here(*words, "d", "--recipe", tmp_path / name, "-q")
        assert done.returncode == 2 and fault in done.stderr
        assert text != FAULTY or all(f"  recipe.{one}" in done.stderr for one in FAULTS)
    (tmp_path / "r.yaml").write_text("layout: folders\nresize: keep-aspect\npad: true")
    done = halofeed_here(*words, "d", "--recipe", tmp_path / "r.yaml", "--height", 9)
    assert "--height has no effect" in done.stderr and "r.yaml has --resize keep-aspect" in done.stderr
    with pytest.raises(UsageError, match=r"^recipe cannot be followed:\nheigt: .*did you mean height"):
        halofeed.convert(source, tmp_path, recipe={**recipe, "heigt": 3})


COMPLETED = [("co", "convert configs"), ("show --sp", "--split"), ("convert --layout = f", "folders")]


@pytest.mark.parametrize(("words", "known"), COMPLETED)
def test_bash_completes_commands_and_options(words, known):
    script = halofeed_here("completion", "bash").stdout + f"\nCOMP_WORDS=(halofeed {words})"
    script += '\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _halofeed; echo "${COMPREPLY[*]}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(known) and done.stderr == ""


@pytest.mark.long
def test_commands_print_lines_of_halofeed_alone(tmp_path):
    draw_folders(tmp_path / "source", 6)
    convert = "convert --source source --out q --name a --height 16 --width 24 -v"
    train = "train q/a/1.0.0 --set model.features=[8] --steps 1 --batch-size 6 --out q/run"
    for words in (convert, train, "show q/a/1.0.0 --output q/batch.png"):
        done = conversions.halofeed(*words.split(), cwd=tmp_path)
        lines = (done.stdout + done.stderr).splitlines()
        assert done.returncode == 0 and not [line for line in lines if not re.match(OURS, line)], lines
    data = ("verify", "inspect", "bench --seconds 0.1", "report", "plan --topology cpu:1 --set batch_size=6")
    run = ("evaluate", "predict --split train --out q/p", "report", "export --out q/e --format savedmodel")
    for path, commands in {"q/a/1.0.0": data, "q/run": run}.items():
        for words in map(str.split, commands):
            errors = conversions.halofeed(words[0], path, *words[1:], cwd=tmp_path).stderr.splitlines()
            assert all(line.startswith("halofeed plan: ") for line in errors), (words, errors)
