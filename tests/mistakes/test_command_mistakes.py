"""Everyday mistakes of options, folders and surroundings: each ends in what, where and the cure."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from halofeed.cli import main
from halofeed.loader import Loader
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.errors import MissingExtraError, UsageError
from halofeed.schemas.memory import machine_memory
from tests.support.conversions import draw_folders, run_convert
from tests.support.mistakes import check, preparing, refused, usage
from tests.support.volume_support import save_nifti


@preparing
def pictures(source: Path, *more: object) -> list[object]:
    draw_folders(source, 8)
    return ["--layout", "folders", "--source", source, "--height", 16, "--width", 24, *more]


@preparing
def volumes(source: Path, *more: object, images: str = "images/{id}.nii.gz") -> list[object]:
    array = np.random.default_rng(0).integers(-900, 900, (4, 6, 8)).astype(np.int16)
    for number in range(2):
        save_nifti(source / f"images/{number}.nii.gz", array)
        save_nifti(source / f"labels/{number}.nii.gz", (array > 0).astype(np.uint8))
    patterns = ["--image-pattern", images, "--label-pattern", "labels/{id}.nii.gz"]
    return ["--layout", "pairs", "--source", source, *patterns, *more]


SIZE = ("--depth", 4, "--height", 6, "--width", 8)

MISTAKES = {
    "no layout": usage(lambda source: ["--source", source], "--layout: say how"),
    "a layout that is not known": usage(
        lambda source: ["--layout", "yolo", "--source", source], "'yolo'", "folders", "coco"
    ),
    "a source that is not there": usage(
        lambda source: ["--layout", "folders", "--source", source / "no"],
        "no such folder or file",
        "source/no",
    ),
    "an empty source": refused(
        lambda source: ["--layout", "folders", "--source", source],
        "source: no image file lies below it; expected class/image.jpg",
    ),
    "--depth on pictures": usage(pictures("--depth", 4), "--depth", "pictures", "leave"),
    "--depth on a layout that holds boxes alone": usage(
        lambda source: ["--layout", "coco", "--source", source, "--depth", 4], "--depth", "coco", "volumes"
    ),
    "no --depth on volumes": usage(volumes(), "is a volume", "--depth"),
    "too many channels": refused(
        volumes(*SIZE, "--channels", 3), "number of channels", "such as images/0.nii.gz", "expected 3"
    ),
    "a pattern without {id}": usage(volumes(*SIZE, images="images/*.nii.gz"), "--image-pattern", r"\{id\}"),
    "a pattern that fits nothing": refused(volumes(*SIZE, images="imagesTr/{id}.nii.gz"), "imagesTr"),
    "a height of 0": usage(pictures("--height", 0), "--height 0: expected 1 or more"),
    "a raw encoding without one size": usage(
        pictures("--resize", "none"), "--encoding raw needs one size", "jpeg"
    ),
    "keep-aspect with swapped limits": usage(
        pictures("--resize", "keep-aspect", "--min-dimension", 100, "--max-dimension", 50, "--pad"),
        "--min-dimension 100 is more than --max-dimension 50",
        "swap",
    ),
    "shares in percent": usage(
        pictures("--split-shares", "train=80,test=20"), "expected a sum of 1, got 100"
    ),
    "a version of two numbers": usage(pictures("--version", "1.0"), "three numbers"),
    "a label map that is not there": usage(
        pictures("--label-map", "/no/labels.txt"), "/no/labels.txt: no such file"
    ),
    "an option that has no effect": usage(
        pictures("--image-sets", "train"), "--image-sets has no effect without --layout voc"
    ),
    "an option of Beam before the --": usage(pictures("--runner", "DirectRunner"), "unrecognized|--runner"),
    "an object store that is not known": usage(
        lambda source: ["--layout", "folders", "--source", "abc://bucket/x"],
        "--source abc://bucket/x",
        "gs://, s3://",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_what_where_and_the_cure(tmp_path, name):
    check(MISTAKES[name], tmp_path)


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
    given = ("train", converted, "--config", "classifier_small", "--cores-per-replica", 4)
    more = ("--partition", partition, "--batch-size", 2, "--steps", 1, "--out", tmp_path / "run")
    code, said = command(*given, *more)
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


def test_an_object_store_without_its_library_is_answered_with_its_extra(tmp_path):
    cases = [
        (flag, path, extra)
        for flag in ("--source", "--out")
        for path, extra in (("s3://b/x", "aws"), ("gs://b/x", "gcp"))
    ]
    program = "from halofeed.cli import main\n"
    for flag, path, _ in cases:
        given = {"--source": str(tmp_path), "--out": str(tmp_path / "out"), flag: path}
        words = [word for pair in given.items() for word in pair]
        program += f"main(['convert', '--layout', 'folders', '--name', 'x', *{words!r}])\n"
    said = without({"boto3", "google.cloud"}, program).strip().splitlines()
    assert len(said) == len(cases), said
    for line, (flag, path, extra) in zip(said, cases, strict=True):
        assert f"{flag} {path}" in line and f"pip install 'halofeed[{extra}]'" in line


def test_a_recipe_of_a_program_says_the_same():
    with pytest.raises(UsageError, match="--depth is for volumes and layout coco holds pictures"):
        Recipe(layout="coco", depth=4)
