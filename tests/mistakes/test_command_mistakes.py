"""Everyday mistakes of options, folders and surroundings: each ends in what, where and the cure."""

import contextlib
import io
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pydicom.uid import SegmentationStorage

from halofeed.cli import main
from halofeed.errors import MissingExtraError, UsageError, install_command
from halofeed.loader import Loader
from halofeed.system import errors
from halofeed.system.memory import machine_memory
from tests.mistakes.dicom_sources import alone, drawn
from tests.mistakes.volume_sources import PATTERNS, pairs
from tests.support.conversions import draw_folders, run_convert
from tests.support.mistakes import check, preparing, refused, usage
from tests.support.volume_support import save_nifti


@preparing
def pictures(source: Path, *more: object) -> list[object]:
    draw_folders(source, 8)
    return ["--layout", "folders", "--source", source, "--height", 16, "--width", 24, *more]


@preparing
def volumes(source: Path, *more: object) -> list[object]:
    array = np.random.default_rng(0).integers(-900, 900, (4, 6, 8)).astype(np.int16)
    for number in range(2):
        save_nifti(source / f"images/{number}.nii.gz", array)
        save_nifti(source / f"labels/{number}.nii.gz", (array > 0).astype(np.uint8))
    patterns = ["--image-pattern", "images/{id}.nii.gz", "--label-pattern", "labels/{id}.nii.gz"]
    return ["--layout", "pairs", "--source", source, *patterns, *more]


SIZE = ("--depth", 4, "--height", 6, "--width", 8)

MISTAKES = {
    "a missing label map": usage(pictures("--label-map /no/labels.txt"), "/no/labels.txt: no such file"),
    "a mask without its series": refused(
        drawn(partial(alone, modality="SEG", sop_class=SegmentationStorage)),
        "found 1 x segmentation",
        "masks need the series",
    ),
    "a pattern that matches nothing": refused(
        pairs("--image-pattern {id}/CT.nii --label-pattern", PATTERNS[-1]),
        "matches the image pattern",
        r"\{id\}/CT\.nii",
        r"p1/ct\.nii\.gz",
    ),
    "an object store that is not known": usage(
        lambda source: ["--layout folders --source abc://bucket/x"], "--source abc://bucket/x", "gs://, s3://"
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
def test_a_folder_that_holds_versions_is_answered_with_their_names(converted, name):
    code, said = command(name, converted.parents[1])
    assert code == 2 and "holds versions, not a data set; name one: " in said and str(converted) in said


def test_a_wrong_partition_is_refused_by_what_is_wrong_with_it(converted, tmp_path):
    given = "--config classifier_small --cores-per-replica 4 --partition image=1,4 --batch-size 2 --steps 1"
    code, said = command("train", converted, *given.split(), "--out", tmp_path / "run")
    says = r"expected dims of length 4, one for each axis of \(2, 16, 24, 3\), got \[1, 4\]"
    assert code == 2 and len(said.splitlines()) == 1 and re.search(says, said), said


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
    assert f"tensorflow is not installed; {install_command('tf')}" in without({"tensorflow"}, program)
    for needs_jax in (program.replace("dataset()", "on_mesh(None, {})"), "from halofeed import make_mesh"):
        assert f"jax is not installed; {install_command('train')}" in without({"jax"}, needs_jax)
    assert issubclass(MissingExtraError, ImportError)


@pytest.mark.parametrize(
    ("source", "installs"),
    [
        (None, "pip install 'halofeed[tf]'"),
        ('{"url": "file:///a.whl", "archive_info": {}}', "pip install 'halofeed[tf] @ file:///a.whl'"),
    ],
)
def test_an_extra_is_installed_from_where_halofeed_came(source, installs, tmp_path, monkeypatch):
    """pip writes direct_url.json (PEP 610) for files and addresses, and none for a release of an index."""
    information = tmp_path / "halofeed-0.1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: halofeed\nVersion: 0.1.0\n")
    if source is not None:
        (information / "direct_url.json").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "halofeed" / "errors.py"))
    monkeypatch.setattr("shutil.which", lambda name: str(Path(sys.executable).with_name(name)))
    assert install_command("tf") == installs


def test_an_extra_is_installed_into_this_interpreter_if_the_pip_of_the_path_is_another_ones(monkeypatch):
    own = install_command("tf").partition(" install ")[2]
    monkeypatch.setattr("shutil.which", lambda name: f"/elsewhere/bin/{name}")
    monkeypatch.setattr(sys, "executable", "/a b/bin/python")
    assert install_command("tf") == f"'/a b/bin/python' -m pip install {own}"


def test_a_store_that_is_asked_before_the_layout_shows_no_warning_of_beams_import():
    program = """
import halofeed, halofeed.errors
try:
    halofeed.convert("hdfs://nowhere/x", "out", name="x")
except halofeed.errors.UsageError as error:
    print("refused", error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("refused hdfs://nowhere/x") and done.stderr == ""


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
        assert f"{flag} {path}" in line and install_command(extra) in line
