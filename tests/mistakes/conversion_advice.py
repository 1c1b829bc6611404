"""Advice of conversions: of classes, of the job and its machine, and of what has come of it."""

import contextlib
import errno
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from halofeed.pipelines import remote_job as remote
from halofeed.pipelines.lease import leased
from halofeed.pipelines.workers import _Worker
from halofeed.storage.retry import ChangedError
from tests.pipelines.test_names_in_labels import LIVER, SPLEEN, table_of
from tests.support.advice import Advice, noted, refused, usage
from tests.support.annotation_writer import boxed, draw, write_annotations
from tests.support.conversions import draw_folders, run_convert
from tests.support.layout_sources import draw_masks, draw_pictures, draw_scans
from tests.support.mistakes import preparing
from tests.support.small_scans import AFFINE, image, mask, nnunet_document, write_json
from tests.support.volume_support import save_nifti

SMALL = ("--height", 16, "--width", 24)
PATTERNS = ("--image-pattern scans/{id}.nii --label-pattern gold/{id}.nii --source {folder}/source",)
DESCRIBED = ("--", "--runner", "tests.support.far_runner.FarRunner", "--template_location", "template")
FAR = "tests.support.far_runner.FarRunner"
SIZE = ("--depth", 5, "--height", 8, "--width", 9)


@preparing
def pictures(source: Path, *more: object, count=4, broken=0, size=SMALL) -> list[object]:
    """Class folders of pictures, the first of which are broken."""
    draw_folders(source, count, broken=broken)
    return ["--layout", "folders", "--source", source, *size, *more]


@preparing
def converted(source: Path, *more: object, broken: int = 0, later: int = 4) -> list[object]:
    """Such pictures that were converted, and how many there are later."""
    words = pictures(broken=broken)(source)
    run_convert(source, source.parent / "out", layout="folders")
    draw_folders(source, later, broken=broken)
    return [*words, *more]


@preparing
def scans(source: Path, *labels: Any, more=(), size: Sequence[object] = SIZE) -> list[object]:
    """Scans, each with its label image."""
    for number, label in enumerate(labels):
        save_nifti(source / f"images/{number}.nii", image(number), AFFINE)
        save_nifti(source / f"labels/{number}.nii", np.asarray(label, np.uint8), AFFINE)
    return ["--layout", "pairs", "--source", source, *size, *more]


@preparing
def named(source: Path, *names: Mapping[int, str] | None, more: Sequence[object] = ()) -> list[object]:
    """A table of scans whose label files name their values in ways of their own, or not at all."""
    table = table_of(source, "a.seg.nrrd", *((mask(), one and dict(one)) for one in names))
    (source.parent / "all.txt").write_text("background\nliver\nspleen\n")
    (source.parent / "organ.txt").write_text("background\norgan\n")
    given = [str(word).format(folder=source.parent) for word in more]
    return ["--layout", "csv", "--task", "segmentation", "--source", table, *SIZE, *given]


@preparing
def organs(source: Path, count: int, *more: object) -> list[object]:
    """A scan with a mask file for each class."""
    draw_scans(source, "s0/ct.nii")
    draw_masks(source, *(f"s0/segmentations/c{number}.nii" for number in range(count)))
    return ["--layout", "class-masks", "--source", source, *SIZE, *more]


@preparing
def nnunet(source: Path, *more: object, **document: Any) -> list[object]:
    """A case of nnU-Net's."""
    draw_scans(source, "imagesTr/a_0000.nii.gz")
    draw_masks(source, "labelsTr/a.nii.gz")
    write_json(source, nnunet_document(labels=("liver",)) | document)
    (source.parent / "folds.json").write_text(json.dumps([{"train": ["a"], "val": []}]))
    return ["--layout", "nnunet", "--source", source, *SIZE, *more]


@preparing
def label_images(source: Path, *values: int, masks: str = "masks") -> list[object]:
    """Pictures with label images of these values."""
    draw_pictures(source, "images/a.png", "images/b.png")
    (source / masks).mkdir()
    for name in "ab":
        Image.fromarray(np.resize(np.array(values, np.uint8), (16, 24))).save(source / masks / f"{name}.png")
    return ["--layout", "pairs", "--task", "segmentation", "--source", source, "--height", 16, "--width", 24]


@preparing
def objects(source: Path, *corners: int, more: Sequence[object] = (), **keys: Any) -> list[object]:
    """Twenty such boxes on one picture, and a sound one on another; with keys they are COCO's."""
    layout = "coco" if keys else "csv"
    draw(source, "a.png", "b.png", size=(40, 60))
    rows = [boxed("a.png", corners)] * 20 + [boxed("b.png", (1, 2, 30, 20))]
    name = write_annotations(source, layout, rows)
    if keys:
        document = json.loads((source / name).read_text())
        for one in document["annotations"][:20]:
            one |= keys
        (source / name).write_text(json.dumps(document))
    return ["--layout", layout, "--source", source, "--height", 40, "--width", 60, *more]


@preparing
def lost(source: Path) -> list[object]:
    """Pictures whose first job is lost."""
    (source.parent / "lost").write_text("1")
    return pictures("--job-restarts", 1, "--", "--runner", FAR)(source)


@preparing
def in_place_of_the_manifest(source: Path) -> list[object]:
    (source.parent / "out/set/1.0.0/manifest.json").mkdir(parents=True)
    return pictures()(source)


@preparing
def foreign(source: Path, file: str) -> list[object]:
    """Pictures whose version folder holds a file of another program."""
    (source.parent / "out/set/1.0.0" / file).parent.mkdir(parents=True)
    (source.parent / "out/set/1.0.0" / file).write_text("{}")
    return pictures()(source)


@preparing
def listed(source: Path) -> list[object]:
    """Pictures with label images, beside lists that divide them."""
    for split, name in {"train": "a", "val": "b"}.items():
        (source / f"{split}.txt").write_text(f"{name}\n")
    return label_images(0, 1)(source)


@preparing
def unlabeled(source: Path, *size: object) -> list[object]:
    """A table of a body in air, without the label that lies in another folder."""
    scan = np.full((5, 8, 9), -1000, np.int16)
    scan[1:4, 1:7, 1:8] = 40
    save_nifti(source / "scans/0.nii", scan, AFFINE)
    save_nifti(source / "gold/0.nii", np.uint8(mask() == 1), AFFINE)
    for name, label in {"empty": "", "full": "gold/0.nii"}.items():
        (source.parent / f"{name}.csv").write_text(f"id,image,label\n0,scans/0.nii,{label}\n")
    table = ["--layout", "csv", "--source", source.parent / "empty.csv", "--images", source]
    return [*table, "--task", "segmentation", *size]


@preparing
def channels(source: Path) -> list[object]:
    """A scan of three channels in files of their own."""
    for number in range(3):
        save_nifti(source / f"images/a_{number}.nii", image(number), AFFINE)
    save_nifti(source / "labels/a.nii", mask(), AFFINE)
    patterns = ["--image-pattern", "images/{id}_{channel}.nii", "--label-pattern", "labels/{id}.nii"]
    return ["--layout", "pairs", "--source", source, *patterns, "--channels", 3]


@preparing
def elsewhere(source: Path) -> list[object]:
    """A table apart from its picture."""
    draw(source.parent / "pictures", "a.png", size=(40, 60))
    draw(source, "b.png")
    write_annotations(source, "csv", [boxed("a.png", (1, 2, 30, 20))])
    return ["--layout", "csv", "--source", source, "--height", 16, "--width", 24]


def corner() -> Any:
    """A label in a corner of a scan."""
    label = np.zeros_like(mask())
    label[:, :3, :3] = 1
    return label


def dying(worker: Any, request: Any, ask: Any = _Worker._ask) -> Any:
    """Ask a worker that dies at its first call."""
    if callable(request[0]):
        os.kill(worker._process, signal.SIGKILL)
    return ask(worker, request)


@contextlib.contextmanager
def far(**environment: str) -> Iterator[None]:
    """Looks often at a job on other machines, and wonders at once."""
    seconds = {"_SECONDS_TO_WARN": 0.0, "_POLL_SECONDS": 0.02}
    with mock.patch.dict(os.environ, environment), mock.patch.multiple(remote, **seconds):
        yield


@contextlib.contextmanager
def leased_by_another() -> Iterator[None]:
    """Every folder is one of a store, and held by another command."""
    store = mock.Mock(
        write=mock.Mock(side_effect=ChangedError), stat=mock.Mock(return_value=mock.Mock(age_seconds=5))
    )
    lease = patched("pipelines.lease.store_of", return_value=store)
    with (
        lease(),
        mock.patch.object(store, "read", return_value=b"{}"),
        patched("pipelines.convert.held", new=leased)(),
    ):
        yield


def patched(target: str, **how: Any) -> Any:
    """Replaces something of the product or of the system while a command gets its message."""
    return lambda: mock.patch(f"halofeed.{target}", **how)


refused_4, usage_4, noted_4 = (partial(how, proves="4 records") for how in (refused, usage, noted))

ADVICE: dict[str, Advice] = {
    "a name where labels hold values": refused(
        scans(mask(), more=("--classes liver",)),
        (r"such as (--classes) 3,5", "1"),
        (r"or (--map-classes) 3=liver", "1=liver"),
        proves="2 classes",
    ),
    "every class left out": refused(
        nnunet(
            "--class-overlap channels --map-classes whole=background",
            labels={"background": 0, "whole": [1, 2]},
        ),
        (r"(--map-classes) leaves out every class", "whole=organ"),
        proves="2 classes",
    ),
    "channels without names": refused(
        named(None, more=("--class-overlap channels",)),
        r"such as (--classes 1,2)",
        (r"file with (--label-map)", "{folder}/all.txt"),
        proves="3 classes",
    ),
    "more classes than channels hold": refused(
        organs(17, "--class-overlap channels"), (r"choose with (--classes)", "c1,c2"), proves="3 classes"
    ),
    "a target that the label map lacks": refused(
        named(LIVER, SPLEEN, more=("--map-classes liver=organ --label-map {folder}/all.txt",)),
        (r"of --classes or (--map-classes)", "liver=spleen"),
    ),
    "a class to keep that the label map lacks": refused(
        named(LIVER, SPLEEN, more=("--classes 1 --label-map {folder}/all.txt",)),
        (r"of (--classes) or", "liver"),
        proves="2 classes",
    ),
    "classes that the label map lacks": refused(
        named(LIVER, more=("--map-classes liver=organ --label-map {folder}/organ.txt",)),
        (r"out with (--map-classes) '(spleen=background)'", "--map-classes liver=organ"),
        proves="2 classes",
    ),
    "255 is the only class": refused(
        scans(np.uint8(255) * (mask() == 1)),
        r"(--map-classes 255=foreground) makes",
        proves="2 classes",
        writes=True,
    ),
    "values that mean two classes": refused(
        named(LIVER, SPLEEN, None), (r"add (--label-map)", "{folder}/all.txt"), proves="3 classes"
    ),
    "a value of two meanings is mapped": refused(
        named(LIVER, SPLEEN, more=("--map-classes 1=organ",)),
        (r"(--map-classes) 1: .*write their names", "liver=organ"),
        proves="3 classes",
    ),
    "0 and 255": noted(label_images(0, 255), (r"(--map-classes) 255=NAME", "255=car"), proves="2 classes"),
    "the void of VOC": noted(
        label_images(0, 1, 255, masks="SegmentationClass"), r"(--map-classes 255=255)", proves="3 classes"
    ),
    # what there is already
    "too many rejects": refused(converted("--max-rejected 0", broken=1), (r"(--max-rejected) allows 0", "1")),
    "what was rejected earlier is mended": refused(
        converted("--max-rejected 0", broken=1),
        r"add (--overwrite)",
        first=lambda source: (source / "hat/0000.jpg").unlink(),
        proves="3 records",
    ),
    "another recipe": usage(
        converted("--encoding jpeg"), (r"another (--version)", "1.0.1"), r"(--overwrite)", proves="converted"
    ),
    "other sources": usage(
        converted(later=6), (r"another (--version)", "1.0.1"), r"add (--overwrite)", proves="6 records"
    ),
    "a folder as the manifest": usage_4(in_place_of_the_manifest(), (r"another (--version)", "1.0.1")),
    "a folder that another command holds": refused_4(
        pictures(),
        (r"another (--name)", "other"),
        (r"or (--version)", "1.0.1"),
        around=patched("storage.locks.try_lock", side_effect=BlockingIOError),
    ),
    "a folder of a store that another command holds": refused(
        pictures(), (r"another (--name)", "other"), (r"or (--version)", "1.0.1"), around=leased_by_another
    ),
    # the job
    "output in the source": usage_4(
        lambda source: [*pictures()(source), "--out", source / "out"], (r"(--out) .* outside", "{folder}/out")
    ),
    "files of another program": usage(
        foreign("features.json"),
        *(
            (r"another (--name)", "other"),
            (r"(--version) or --out", "2.0.0"),
            (r"or (--out)", "{folder}/else"),
        ),
    ),
    "leftovers of another program": refused(
        foreign(".incomplete/abc"), (r"another (--out)", "{folder}/else")
    ),
    "lists of splits": noted(listed(), r"with (--split-lists) (\S+)", proves=r"val +1 record"),
    "a listing for another runner": usage(pictures("--listing job"), r"(--listing) job: .* leave it out"),
    "a share in percent": usage(scans(mask(), more=("--warn-cut 5",)), (r"(--warn-cut) .*a share", "0.05")),
    "a name in capitals": usage(pictures("--name Set"), (r"(--name) 'Set': expected lower case", "set")),
    "a version of two numbers": usage(pictures("--version 1.0"), r"(--version) .* such as (1\.0\.0)"),
    "restarts here": usage(pictures("--job-restarts 1"), r"(--job-restarts) has no effect.* leave it out"),
    "silence here": usage(pictures("--max-silence-minutes 1"), r"(--max-silence-minutes) has .*leave it out"),
    "workers of Beam's": usage_4(
        pictures("--", "--direct_num_workers 1"), (r"use (--workers)", "1"), without=("--direct_num_workers",)
    ),
    "no room": usage_4(
        pictures(),
        (r"(--height), --width", "8"),
        (r"(--width)", "8"),
        r"(--encoding packed)",
        r"(--encoding jpeg)",
        r"(--encoding) jpeg or (png)",
        r"insist with (--disk-check ignore)",
        throughout=patched("pipelines.disk_space.shutil.disk_usage", return_value=mock.Mock(free=3000)),
    ),
    "no room for scans": usage(
        scans(mask()),
        (r"(--height), --width", "4"),
        (r"(--width)", "4"),
        (r"(--depth)", "2"),
        r"(--encoding packed)",
        throughout=patched("pipelines.disk_space.shutil.disk_usage", return_value=mock.Mock(free=600)),
        proves="1 record",
    ),
    "no room with the aspect kept": usage_4(
        pictures("--resize keep-aspect --pad --max-dimension 64 --min-dimension 16", size=()),
        (r"or (--max-dimension)", "32"),
        throughout=patched("pipelines.disk_space.shutil.disk_usage", return_value=mock.Mock(free=20_000)),
    ),
    "no room on this disk": usage_4(
        pictures(),
        (r"another (--out)", "{folder}/elsewhere"),
        around=patched("pipelines.disk_space.shutil.disk_usage", return_value=mock.Mock(free=0)),
    ),
    "more is rejected than a command allows": refused_4(
        pictures("--max-rejected 0", broken=2, count=6), (r"(--max-rejected) 0", "2")
    ),
    # objects
    "boxes of width and height": refused(
        objects(30, 20, 12, 10), r"(--box-form corner-size)", r"(--on-bad-object reject)", proves=r"\d record"
    ),
    "masks that are no masks": refused(
        objects(1, 2, 30, 20, more=("--masks",), segmentation=[]),
        r"leave (--masks) out",
        r"with (--on-bad-object reject)",
    ),
    "masks of another size": refused(
        objects(1, 2, 30, 20, more=("--masks",), segmentation={"size": [5, 5], "counts": [0, 25]}),
        r"leave (--masks) out",
        r"with (--on-bad-object reject)",
        writes=True,
    ),
    # planning
    "a fold without splits": usage(
        nnunet("--nnunet-fold 0"),
        (r"(--nnunet-splits); add that", "{folder}/folds.json"),
        r"(--nnunet-fold) has .*leave it out",
    ),
    "channels that the data set has not": usage(nnunet("--channels 2"), r"use (--channels 1)"),
    "labels under names of their own": noted(
        unlabeled(*SIZE),
        (r"with (--layout csv) and", "--source {folder}/full.csv"),
        (r"or (--layout pairs) with", *PATTERNS),
        proves="2 classes",
    ),
    "channel files": usage(channels(), (r"with (--depth)", "5", "--height 8 --width 9"), proves="1 record"),
    "elsewhere": refused(elsewhere(), (r"(--images) names another", "{folder}/pictures"), proves="1 record"),
    # what the machine lacks
    "too little memory": refused(
        pictures(),
        (r"fewer (--workers) and", "1", "--threads 1"),
        around=patched("pipelines.convert.make_plan", side_effect=MemoryError),
    ),
    "a worker that does not begin": refused_4(
        pictures("--workers 2 --shards 2"),
        r"(--workers 1) works in this process",
        around=patched("pipelines.workers._Worker._ask", side_effect=EOFError),
    ),
    "a worker that is killed": refused_4(
        pictures("--workers 2 --shards 2"),
        (r"fewer (--threads) or", "1", "--workers 1"),
        around=patched("pipelines.workers._Worker._ask", new=dying),
    ),
    "a full disk": refused_4(
        pictures(),
        (r"Free some space .* (--out) names the folder", "elsewhere"),
        around=patched("pipelines.output_folder._rename", side_effect=OSError(errno.ENOSPC, "full")),
    ),
    "a disk that fails": refused_4(
        pictures(),
        (r"The disk failed.* (--out) names the folder", "elsewhere"),
        around=patched("pipelines.output_folder._rename", side_effect=OSError(errno.EIO, "fails")),
    ),
    # what has come of it
    "many rejects": noted(pictures(broken=1), r"accept them with (--max-rejected \d+%)", proves="3 records"),
    "many rejects that are corrected": noted(
        pictures(broken=1),
        r"lists and convert again with (--overwrite)",
        first=lambda source: (source / "hat/0000.jpg").unlink(),
        proves="3 records",
    ),
    "a limit that is no number": usage(
        pictures("--max-rejected few", broken=1), (r"(--max-rejected) few: expected .* such as", "50%")
    ),
    "more is rejected than all workers may": refused(
        pictures("--max-rejected 0", broken=1),
        (r"and (--max-rejected) allows 0", "1"),
        around=patched("pipelines.shard_writer.is_failure", return_value=False),
        proves="3 records",
        writes=True,
    ),
    "more boxes than a batch has": noted(
        objects(1, 2, 30, 20, more=("--max-boxes 5",)), (r"more than (--max-boxes)", "20"), proves="2 records"
    ),
    "a label outside of the records": noted(
        scans(corner(), size=("--depth 5 --height 4 --width 5",)),
        (r"a (--spacing-mm) coarser", "3,4,3"),
        r"(--fit tiles), or",
        r"or (--center label)",
    ),
    "bodies outside of the records": noted(
        unlabeled("--depth 5 --height 3 --width 4"),
        (r"a (--spacing-mm) coarser", "9,9,9"),
        r"or (--fit tiles)",
    ),
    "more padding than scan": noted(
        scans(mask(), size=("--depth 9 --height 16 --width 18",)),
        (r"take (--depth 8 --height 8 --width 16)",),
    ),
    # other runners
    "a listing in a job": usage_4(pictures("--listing job"), (r"\((-- --runner)=", FAR)),
    "a listing of images elsewhere": usage_4(
        lambda source: [*pictures("--listing job --images", source)(source), "--", "--runner", FAR],
        r"without (--images); leave",
    ),
    "a listing of groups": usage_4(
        pictures("--listing job --group-pattern (.) -- --runner", FAR), (r"(--split-shares)", "train=1")
    ),
    "a listing of COCO": usage(
        lambda source: [*objects(1, 2, 30, 20, a=1)(source), "--listing job -- --runner", FAR],
        r"(--listing) job: layout coco .* leave it out",
        proves="2 records",
    ),
    "a job that fails": refused(
        pictures("--", "--runner", FAR),
        r"(--debug) shows all",
        throughout=lambda: far(FAR_TIMES="0", FAR_ERROR="1"),
        ends=1,
        proves="(?s)Traceback.*KeyError: 'colour'",
    ),
    "a lost job": noted_4(lost(), (r"(--job-restarts) leaves", "2"), throughout=lambda: far(FAR_LOST="lost")),
    "a job's template": noted_4(
        lambda source: [*pictures()(source), "--out", source.parent / "out", *DESCRIBED],
        r"leave (--template_location) out",
    ),
    "a job of which nothing is heard": noted(
        pictures("--", "--runner", FAR),
        (r"(--max-silence-minutes) sets a limit", "5"),
        throughout=far,
        proves="gives the job up after 5 min",
    ),
}
