"""Everyday mistakes of options, folders and surroundings: each ends in what, where and the cure."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.cli import main
from halofeed.loader import Loader
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.errors import MissingExtraError, UsageError
from halofeed.schemas.memory import machine_memory
from tests.mistakes.support import Mistake, check
from tests.pipelines.support import draw_folders, run_convert
from tests.volume_support import save_nifti


def pictures(*more: object) -> Any:
    def prepare(source: Path) -> list[object]:
        draw_folders(source, 8)
        return ["--layout", "folders", "--source", source, "--height", 16, "--width", 24, *more]

    return prepare


def volumes(*more: object) -> Any:
    def prepare(source: Path) -> list[object]:
        array = np.random.default_rng(0).integers(-900, 900, (4, 6, 8)).astype(np.int16)
        for number in range(2):
            save_nifti(source / f"images/{number}.nii.gz", array)
            save_nifti(source / f"labels/{number}.nii.gz", (array > 0).astype(np.uint8))
        patterns = ["--image-pattern", "images/{id}.nii.gz", "--label-pattern", "labels/{id}.nii.gz"]
        return ["--layout", "pairs", "--source", source, *patterns, *more]

    return prepare


SIZE = ("--depth", 4, "--height", 6, "--width", 8)

MISTAKES = {
    "no layout": Mistake(prepare=lambda source: ["--source", source], says=("--layout: say how",)),
    "a layout that is not known": Mistake(
        prepare=lambda source: ["--layout", "yolo", "--source", source], says=("'yolo'", "folders", "coco")
    ),
    "a source that is not there": Mistake(
        prepare=lambda source: ["--layout", "folders", "--source", source / "no"],
        says=("no such folder or file", "source/no"),
    ),
    "an empty source": Mistake(
        prepare=lambda source: ["--layout", "folders", "--source", source],
        says=("source: no image file lies below it; expected class/image.jpg",),
        exit_code=1,
    ),
    "--depth on pictures": Mistake(prepare=pictures("--depth", 4), says=("--depth", "pictures", "leave")),
    "--depth on a layout that holds boxes alone": Mistake(
        prepare=lambda source: ["--layout", "coco", "--source", source, "--depth", 4],
        says=("--depth", "coco", "volumes"),
    ),
    "no --depth on volumes": Mistake(prepare=volumes(), says=("is a volume", "--depth")),
    "--spacing-mm with one number": Mistake(
        prepare=volumes(*SIZE, "--spacing-mm", "1.5"), says=("three lengths: depth,height,width",)
    ),
    "--spacing-mm of zero": Mistake(prepare=volumes(*SIZE, "--spacing-mm", "0,1,1"), says=("three lengths",)),
    "a window the wrong way round": Mistake(
        prepare=volumes(*SIZE, "--window-hu", "240,-160"), says=("--window-hu", "a low and a higher end")
    ),
    "a window that is not known": Mistake(
        prepare=volumes(*SIZE, "--window", "belly"), says=("'belly'", "abdomen", "lung")
    ),
    "two windows": Mistake(
        prepare=volumes(*SIZE, "--window", "lung", "--window-hu", "0,1"), says=("give one of them",)
    ),
    "uint8 volumes without a window": Mistake(
        prepare=volumes(*SIZE, "--store", "uint8"), says=("--store uint8 needs a window",)
    ),
    "jpeg volumes": Mistake(
        prepare=volumes(*SIZE, "--encoding", "jpeg"), says=("--encoding jpeg: volumes are stored raw",)
    ),
    "boxes of volumes": Mistake(
        prepare=volumes(*SIZE, "--task", "detection"), says=("--depth goes with --task segmentation",)
    ),
    "tiles that overlap whole": Mistake(
        prepare=volumes(*SIZE, "--fit", "tiles", "--tile-overlap", "4,6,8"),
        says=("--tile-overlap", "less than"),
    ),
    "too many channels": Mistake(
        prepare=volumes(*SIZE, "--channels", 3),
        says=("number of channels", "such as images/0.nii.gz", "expected 3"),
        exit_code=1,
    ),
    "a pattern without {id}": Mistake(
        prepare=lambda source: [
            *volumes(*SIZE)(source)[:4],
            "--image-pattern",
            "images/*.nii.gz",
            "--label-pattern",
            "labels/{id}.nii.gz",
            *SIZE,
        ],
        says=("--image-pattern", r"\{id\}"),
    ),
    "a pattern that fits nothing": Mistake(
        prepare=lambda source: [
            *volumes(*SIZE)(source)[:4],
            "--image-pattern",
            "imagesTr/{id}.nii.gz",
            "--label-pattern",
            "labels/{id}.nii.gz",
            *SIZE,
        ],
        says=("imagesTr",),
        exit_code=1,
    ),
    "a height of 0": Mistake(prepare=pictures("--height", 0), says=("--height 0: expected 1 or more",)),
    "a raw encoding without one size": Mistake(
        prepare=pictures("--resize", "none"), says=("--encoding raw needs one size", "jpeg")
    ),
    "keep-aspect with swapped limits": Mistake(
        prepare=pictures("--resize", "keep-aspect", "--min-dimension", 100, "--max-dimension", 50, "--pad"),
        says=("--min-dimension 100 is more than --max-dimension 50", "swap"),
    ),
    "shares in percent": Mistake(
        prepare=pictures("--split-shares", "train=80,test=20"), says=("expected a sum of 1, got 100",)
    ),
    "a version of two numbers": Mistake(prepare=pictures("--version", "1.0"), says=("three numbers",)),
    "a label map that is not there": Mistake(
        prepare=pictures("--label-map", "/no/labels.txt"), says=("/no/labels.txt: no such file",)
    ),
    "an option that has no effect": Mistake(
        prepare=pictures("--image-sets", "train"), says=("--image-sets has no effect without --layout voc",)
    ),
    "an option of Beam before the --": Mistake(
        prepare=pictures("--runner", "DirectRunner"), says=("unrecognized|--runner",)
    ),
    "an output inside of the source": Mistake(
        prepare=lambda source: [*pictures()(source)[:2], "--source", source.parent],
        says=("--out .*: lies inside --source", "name a folder outside"),
    ),
    "an object store that is not known": Mistake(
        prepare=lambda source: ["--layout", "folders", "--source", "abc://bucket/x"],
        says=("--source abc://bucket/x", "gs://, s3://"),
    ),
    "no room on the disk": Mistake(
        prepare=pictures("--height", 20_000, "--width", 1_000_000),
        says=("--height|records", "free", "--disk-check"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_ends_in_what_where_and_the_cure(tmp_path, mistake):
    check(mistake, tmp_path)


# What comes after the conversion ------------------------------------------------------------------------


def command(*arguments: object) -> tuple[int, str]:
    """A command's exit code and everything that it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(list(map(str, arguments)))
    return code, printed.getvalue()


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("set")
    draw_folders(root / "source", 8)
    return Path(run_convert(root / "source", root / "out", layout="folders").folder)


@pytest.mark.parametrize("name", ["verify", "inspect", "report", "train"])
@pytest.mark.parametrize("above", [1, 2])
def test_a_folder_that_holds_versions_is_answered_with_their_names(converted, name, above):
    code, said = command(name, converted.parents[above - 1])
    assert code == 2 and "holds versions, not a data set; name one: " in said and str(converted) in said


@pytest.mark.parametrize("name", ["verify", "inspect", "report"])
def test_a_folder_of_something_else_is_said_to_be_that(tmp_path, name):
    code, said = command(name, tmp_path)
    assert code == 2 and "no manifest.json in it; name the folder that `halofeed convert` wrote" in said


@pytest.mark.parametrize(
    ("partition", "says"),
    [
        (
            "image=1,4",
            r"image: expected dims of length 4, one for each axis of \(2, 16, 24, 3\), got \[1, 4\]",
        ),
        ("imag=1,4,1,1", "'imag': the batch has no such key; it has .*image"),
        ("image=1,1,1,4", r"channel of size 3 does not divide by 4.*\[1,4,1,1\]"),
    ],
)
def test_a_wrong_partition_is_refused_by_what_is_wrong_with_it(converted, tmp_path, partition, says):
    code, said = command(
        *(
            "train",
            converted,
            "--config",
            "classifier_small",
            "--cores-per-replica",
            4,
            "--out",
            tmp_path / "run",
        ),
        *("--partition", partition, "--batch-size", 2, "--steps", 1),
    )
    assert code == 2 and re.search(says, said) and "warning" not in said, said
    assert len(said.strip().splitlines()) == 1


def test_a_batch_larger_than_the_split_is_refused_before_anything_is_compiled(converted, tmp_path):
    given = ("train", converted, "--config", "classifier_small", "--out", tmp_path / "run")
    code, said = command(*given, "--batch-size", 100_000, "--steps", 1)
    assert code == 2 and "batch_size 100000: split 'train' has 8 records" in said and "compiled" not in said


def test_batches_larger_than_the_machine_are_refused_by_the_loader(converted):
    rows = machine_memory() // (16 * 24 * 3) + 1
    with pytest.raises(UsageError, match=r"GB a batch, and this machine has .* GB; take .* or less"):
        Loader(converted, batch_size=rows)


WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if any(name == top or name.startswith(top + ".") for top in {missing!r}):
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Missing())
"""


def without(missing: set[str], program: str) -> str:
    """The standard error of a program in a process that lacks some modules."""
    text = WITHOUT.format(missing=missing) + program
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    return done.stderr


def test_a_missing_tensorflow_is_answered_with_its_extra(converted):
    program = f"from halofeed.loader import Loader; Loader({str(converted)!r}, batch_size=2).dataset()"
    assert "tensorflow is not installed; pip install 'halofeed[tf]'" in without({"tensorflow"}, program)
    assert issubclass(MissingExtraError, ImportError)


@pytest.mark.parametrize(
    ("path", "missing", "extra"), [("s3://b/x", "boto3", "aws"), ("gs://b/x", "google.cloud", "gcp")]
)
@pytest.mark.parametrize("flag", ["--source", "--out"])
def test_an_object_store_without_its_library_is_answered_with_its_extra(tmp_path, path, missing, extra, flag):
    given = {"--source": str(tmp_path), "--out": str(tmp_path / "out"), flag: path}
    words = [word for pair in given.items() for word in pair]
    program = (
        f"from halofeed.cli import main; main(['convert', '--layout', 'folders', '--name', 'x', *{words!r}])"
    )
    said = without({missing}, program)
    assert f"{flag} {path}" in said and f"pip install 'halofeed[{extra}]'" in said
    assert len(said.strip().splitlines()) == 1


def test_a_recipe_of_a_program_says_the_same():
    with pytest.raises(UsageError, match="--depth is for volumes and layout coco holds pictures"):
        Recipe(layout="coco", depth=4)
