"""Advice of what comes after a conversion: loading, training, planning, reports, and of the command line itself."""

import contextlib
import functools
import html
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from halofeed.errors import JobError
from halofeed.inspection.html.run_report import config_as_toml
from halofeed.loader import FlipUpDown, Loader, Mixture
from halofeed.schemas.manifest import read_manifest
from halofeed.trainer.initial_weights import initial_weights
from halofeed.trainer.loaded_run import LoadedRun
from halofeed.trainer.new_files import recipe_for_new_files
from halofeed.trainer.plan.compiling import CompileResult
from halofeed.trainer.plan.requests import Request
from halofeed.trainer.run_folder import open_run
from halofeed.trainer.task import DataFacts, data_facts
from halofeed.trainer.training_setup import build_training_setup
from tests.mistakes.conversion_advice import SMALL, organs, patched, pictures, scans
from tests.support.advice import Advice, noted, refused, usage
from tests.support.annotation_writer import boxed, draw, write_annotations
from tests.support.conversions import draw_folders, halofeed, run_convert
from tests.support.mistakes import Prepare, preparing
from tests.support.small_scans import mask

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

TINY = ("--config", "classifier_small", "--set", "model.features=[8]", "--steps", 1, "--batch-size", 8)
MOBILENET = ("--config classifier_small --model mobilenet_v1 --set backbone_weights=w.h5 --batch-size 8",)
PICTURES = ("--config", "classifier_small", "--picture-size", "300,400", "--topology", "v3-8")
SIZED = ("--config", "classifier_small", "--set", "image_shape=[16,24,3]", "--set", "batch_size=8")
_KEPT = tempfile.TemporaryDirectory(prefix="halofeed-advice-")


@functools.cache
def data() -> Path:
    """A data set of eight pictures."""
    source = draw_folders(Path(_KEPT.name) / "source", 8)
    return Path(run_convert(source, Path(_KEPT.name) / "out", layout="folders").folder)


@functools.cache
def trained() -> Path:
    """A run on it."""
    run = Path(_KEPT.name) / "run"
    assert not call("train", data(), *TINY, "--out", run)
    return run


def call(*words: object) -> int:
    from halofeed.cli import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return main(list(map(str, words)))


@preparing
def train(source: Path, *more: object) -> list[object]:
    """The training of a tiny model."""
    return ["train", data(), *TINY, "--out", source.parent / "run", *more]


@preparing
def train_scans(source: Path, *more: object) -> list[object]:
    """The same of scans."""
    scans(*map(mask, range(8)))(source)
    sides = {"depth": 8, "height": 8, "width": 8}
    done = run_convert(source, source.parent / "out", layout="pairs", **sides)
    tiny = ["--set", "model.depth=2", "--set", "model.width=4", "--set", "augment=[]", "--steps", 1]
    model = ["--config", "unet3d_small", *tiny, "--batch-size", 8]
    return ["train", done.folder, *model, "--out", source.parent / "run", *more]


@preparing
def train_from(source: Path, *more: object) -> list[object]:
    """The training of a tiny model from the weights of that run."""
    return [*train("--init", trained())(source), *more]


def train_another(source: Path) -> list[object]:
    """The training of another model from its weights."""
    model = ("--config", "classifier_small", "--set", "model.features=[4]", "--batch-size", 8, "--steps", 1)
    return ["train", data(), *model, "--init", trained(), "--out", source.parent / "run"]


@preparing
def train_longer(source: Path, steps: int, again: int) -> list[object]:
    """The training of a copy of that run to more steps, then to others."""
    words = [*of_run("train")(source)[:1], *train()(source)[1:], "--steps"]
    assert not call(*words, steps)
    return [*words, again]


@preparing
def of_run(source: Path, command: str, *more: object) -> list[object]:
    """A command on a run of one's own."""
    shutil.copytree(trained(), source.parent / "run")
    return [command, source.parent / "run", *more]


def train_again(source: Path) -> list[object]:
    """The training of that run."""
    return train()(source)


def predicted(source: Path) -> Sequence[object]:
    """Nothing more to type, and predictions that are there."""
    assert not call("predict", trained(), data(), "--split", "train", "--out", source.parent / "found")
    return ()


def own_config(source: Path) -> list[object]:
    """A training whose own file has options of another task."""
    text = 'model = "classifier"\nbatch_size = 8\nsteps = 1\n[task_options]\nalpha = 0.5\n'
    (source.parent / "own.toml").write_text(text)
    return ["train", data(), "--config", "own.toml", "--steps", 1, "--batch-size", 8, "--out", "run"]


def folder_of(source: Path) -> Path:
    return source.parent / "out/set/1.0.0"


@preparing
def converted_before(source: Path, words: Prepare, check: Callable[[Path], object]) -> list[object]:
    """What a program does with a data set."""
    assert not call("convert", *words(source), "--out", source.parent / "out", "--name", "set")
    return [lambda: check(folder_of(source))]


def check_training(folder: Path) -> DataFacts:
    return data_facts(read_manifest(folder), "train")


def new_files(folder: Path) -> object:
    return recipe_for_new_files(read_manifest(folder).recipe, "classification")


def start_from(folder: Path) -> object:
    """The weights of that run, as the first ones on another data set."""
    config, facts = open_run(trained()).config.changed(init=str(trained())), check_training(folder)
    return initial_weights(config, facts, build_training_setup(config, facts))


def report_page(folder: Path) -> str:
    assert not call("report", folder, "--output", "page.html")
    return html.unescape(Path("page.html").read_text())


def run_page() -> str:
    return html.unescape((trained() / "report.html").read_text())


def kept_aspect(source: Path) -> list[object]:
    return pictures("--resize", "none", "--encoding", "jpeg", size=())(source)


@preparing
def damaged(source: Path, file: str, length: int | None) -> list[object]:
    """A look at a record of a data set one of whose files is cut off, or missing."""
    assert not call("convert", *pictures()(source), "--out", source.parent / "out", "--name", "set")
    path = next(folder_of(source).glob(file))
    if length is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:length])
    return ["show", folder_of(source)]


def show_jpeg(source: Path) -> list[object]:
    words = pictures("--encoding", "jpeg")(source)
    assert not call("convert", *words, "--out", source.parent / "out", "--name", "set")
    return ["show", folder_of(source)]


@preparing
def export(source: Path, words: Prepare, to: str, *more: object) -> list[object]:
    """An export of a data set that is converted before."""
    if not folder_of(source).exists():
        assert not call("convert", *words(source), "--out", source.parent / "out", "--name", "set")
    return ["export", folder_of(source), "--to", to, "--out", source.parent / "exported", *more]


@preparing
def boxes(source: Path, *more: object) -> list[object]:
    """Pictures with boxes."""
    draw(source, "a.png", "b.png", "c.png", "d.png")
    write_annotations(source, "coco", [boxed(f"{name}.png", (1, 2, 9, 9)) for name in "abcd"])
    return ["--layout", "coco", "--source", source, *SMALL, *more]


def a_file(source: Path) -> Path:
    """A file where a folder is expected."""
    (source.parent / "file").write_text("notes")
    return source.parent / "file"


HALVES = "--split-shares a=0.5,b=0.5"
TILED = scans(mask(), more=("--fit", "tiles"))
CUT = scans(mask(), size=("--depth", 5, "--height", 4, "--width", 9))
OVERLAPPING = organs(3, "--class-overlap channels")


def mixture(source: Path) -> list[object]:
    """A program's mixture of two data sets that name their classes otherwise."""
    (source.parent / "labels.txt").write_text("hat\nshirt\n")
    words = pictures()(source)
    shutil.rmtree(source / "shirt")
    assert not call("convert", *words, "--out", source.parent / "out", "--name", "set")
    return [lambda: Mixture({data(): 1.0, folder_of(source): 1.0}, batch_size=2)]


@preparing
def planes_of(source: Path, *options: object) -> list[object]:
    """A program's loader of mirrored color planes, of class folders that were converted with these options."""
    draw_folders(source, 4)
    out = source.parent / "out"
    words = ["--layout", "folders", "--source", source, "--out", out, "--name", "set", *options]
    assert not call("convert", *words)
    return [lambda: Loader(folder_of(source), batch_size=2, color="planes", augment=[FlipUpDown()])]


@preparing
def plan(source: Path, *more: object) -> list[object]:
    return ["plan", "--topology", "cpu:8", "--cores-per-replica", 2, *more]


@contextlib.contextmanager
def compiled(*, needs_remat: bool = False) -> Iterator[None]:
    """Compilers that answer at once; the TPU's is installed, and up to 1,000 pixels a side fit."""

    def said(request: Request) -> dict[str, Any]:
        known = {"state": dict.fromkeys(("parameters", "optimizer", "average"), 1), "batch_bytes": 0}
        known |= {"whole_levels": [], "seconds": 1.0, "compiler_bytes": 1}
        if max(request.config.image_shape or (0,)) > 1000 or needs_remat > request.config.remat:
            return {**known, "out_of_memory": "RESOURCE_EXHAUSTED: Used 30.0G of 15.5G hbm"}
        memory = dict.fromkeys(("argument", "output", "alias", "temp", "generated_code"), 1)
        return {**known, "memory": memory, "cost": {"flops": 1e9}, "hlo": ""}

    def answers(requests: Sequence[Request], cache: object, **_: object) -> list[CompileResult]:
        return [CompileResult(compiled=said(request)) for request in requests]

    with contextlib.ExitStack() as stack:
        for module in ("document", "search", "pictures"):
            stack.enter_context(patched(f"trainer.plan.{module}.compile_all", new=answers)())
        stack.enter_context(patched("trainer.plan.requests.versions", return_value={"libtpu": "1"})())
        yield


@contextlib.contextmanager
def without_libtpu() -> Iterator[None]:
    with compiled(), patched("trainer.plan.requests.versions", return_value={"libtpu": "none"})():
        yield


@contextlib.contextmanager
def compiled_and_ready() -> Iterator[None]:
    with compiled(), READY["throughout"]():
        yield


@contextlib.contextmanager
def many_gathers() -> Iterator[None]:
    with compiled(), patched("inspection.plan_report._MAX_GATHERS", new=-1)():
        yield


@contextlib.contextmanager
def ready_with_weights() -> Iterator[None]:
    with READY["throughout"](), patched("trainer.initial_weights.load_backbone")():
        yield


def alone(*words: str) -> object:
    """A command in a process of its own, with what stands for its environment among the words."""
    own = dict(word.split("=", 1) for word in words if word.startswith("XLA_FLAGS="))
    plain = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1", "JAX_PLATFORMS": "cpu"} | own
    return halofeed(*(word for word in words if not word.startswith("XLA_FLAGS=")), env=plain | flags)


def train_in_vain(source: Path) -> list[object]:
    """A training in a process of its own, which ends where it finds its folder taken, before a step is compiled."""
    (source.parent / "run/else").mkdir(parents=True)
    return [alone, *train("--cores-per-replica", 2, "--partition", "image=1,2,1,1")(source)]


READY: dict[str, Any] = {
    "throughout": patched("trainer.train._Evaluation", side_effect=JobError("all is ready")),
    "ends": 1,
    "proves": r"(?s)^(?!.*warning).*all is ready",
}
"""Of training that ends where its first step would be compiled."""


ADVICE: dict[str, Advice] = {
    "no recipe": noted(
        lambda source: ["train", data(), *TINY[2:], "--out", source.parent / "run"],
        (r"with (--config) NAME", "classifier_small"),
    ),
    # settings of training
    "cores without a partition": usage(
        train("--cores-per-replica 2"), r"pass (--partition image=1,2,1,1) \(for volumes", proves="step 1/1"
    ),
    "cores without a partition, of scans": usage(
        train_scans("--cores-per-replica 2"), r"(--partition) .*\(for volumes (image=1,2,1,1,1)\)", **READY
    ),
    "cores that all do the same": refused(
        train("--cores-per-replica 2 --partition image=1,1,1,1"),
        r"pass (--partition image=1,2,1,1), or",
        r"or (--cores-per-replica 1)",
        **READY,
    ),
    "cores that all do the same, of scans": refused(
        train_scans("--cores-per-replica 2 --partition image=1,1,1,1,1"),
        r"pass (--partition image=1,2,1,1,1), or",
        **READY,
    ),
    "too large a batch": usage(train("--batch-size 100"), r"take (--set batch_size=8) or less", **READY),
    "another size": usage(train("--set image_shape=[32,32,3]"), r"(--set image_shape=\[16,24,3\])", **READY),
    "a normalization by labels that are none": usage(
        train("--set normalization=foreground"), r"take (--set normalization=dataset)", **READY
    ),
    "a normalization of three channels": usage(
        train_scans("--set normalization=caffe"), r"take (--set normalization=dataset)", **READY
    ),
    "too many cores": usage(train("--partition image=1,2,1,1"), r"\((--cores-per-replica 2); of", **READY),
    "a plan of a partition of more cores": usage(
        plan(*SIZED, "--set partition=image=1,2,1,1"), r"(--set cores_per_replica=2)\)", throughout=compiled
    ),
    "a run with other settings": usage(
        lambda source: [*of_run("train")(source)[:1], *train("--set seed=3")(source)[1:]],
        r"pass (--overwrite) to start",
        r"\((--out \S+ --init \S+) starts there",
        **READY,
    ),
    "fewer steps than a run has taken": usage(
        train_longer(2, 1), r"pass (--steps 2) or more", (r"name another (--out)", "{folder}/other"), **READY
    ),
    "more steps than a run had": noted(
        train_longer(2, 3),
        r"with (--set schedule_steps=2) it follows",
        proves="follows the cosine of 2 steps",
    ),
    "weights of the run itself": usage(
        lambda source: [*of_run("train")(source)[:1], *train("--init run")(source)[1:]],
        r"leave (--init) out to resume",
        (r"name another folder with (--out)", "{folder}/other"),
        **READY,
    ),
    "weights of another model": usage(
        train_another, r"leave (--config) and the options of the model out", without=("--set",), **READY
    ),
    "weights for pixels on another scale": usage(
        train_from("--set normalization=caffe"), r"pass (--set normalization=dataset)", **READY
    ),
    "weights of pictures with other channels": usage(
        converted_before(pictures("--channels 1"), start_from),
        (r"with (--recipe \S+)", "--overwrite"),
        into=pictures(),
    ),
    "weights of a backbone and of a run": usage(
        train_from("--backbone-weights w.h5"), r"leave (--backbone-weights) out", **READY
    ),
    "weights of a backbone in a recipe, and of a run": usage(
        train_from("--set backbone_weights=w.h5"), r"add (--set backbone_weights=)", **READY
    ),
    # what a run is asked for
    "a compile cache that cannot be written": noted(
        lambda source: [*of_run("evaluate", data(), "--split train --compile-cache")(source), a_file(source)],
        (r"with (--compile-cache), or", "programs"),
        (r"with (--compile-cache), or (none)",),
        proves=r"(?s)^(?!.*cannot store).*accuracy",
    ),
    "predictions that are there": usage(
        lambda source: [*of_run("predict", data(), "--split train --out found")(source), *predicted(source)],
        r"pass (--overwrite) to replace",
        proves="8 pictures",
    ),
    "new files and a split": usage(
        of_run("predict", "--source", Path(_KEPT.name) / "source", "--split train --out found"),
        r"leave out FOLDER and (--split)",
        r"leave out .* or (--source)",
        proves="8 pictures",
    ),
    "no run": usage(
        lambda source: ["evaluate", source.parent / "run"],
        (r"`halofeed train (--out)` made", "{folder}/run"),
        into=lambda source: train()(source)[:-2],
    ),
    "options of another task": usage(
        own_config, (r"name a (--config) for", "classifier_small", "--set model.features=[8]"), **READY
    ),
    "weights of another normalization": usage(
        lambda source: ["train", data(), *MOBILENET, "--out run"],
        r"pass (--set normalization=\w+)",
        **{**READY, "throughout": ready_with_weights},
    ),
    "recipes and models": noted(
        lambda source: ["configs"],
        (r"recipes \((--config)\)", "classifier_small"),
        (r"models \((--model)\)", "classifier", "--set model.features=[8]"),
        into=train_again,
        **READY,
    ),
    "too little memory for a batch": refused(
        train(),
        (r"smaller (--batch-size)", "8"),
        around=patched("trainer.data.open_data", side_effect=MemoryError),
        proves="step 1/1",
    ),
    "data of other channels": usage(
        converted_before(pictures("--channels 1"), lambda at: LoadedRun(open_run(trained()), at, "train")),
        (r"with (--recipe \S+)", "--overwrite"),
        into=pictures(),
    ),
    # data sets that training refuses
    "classes that overlap": usage(
        converted_before(organs(3, "--class-overlap channels"), check_training),
        (r"with (--class-overlap last) or", "--overwrite"),
        (r"with (--class-overlap) last or (first)", "--overwrite"),
        into=organs(3, "--class-overlap channels"),
        proves="1 record",
    ),
    # exports
    "an export of what a target does not hold": usage(export(boxes(), "folders"), r"use (--to coco)"),
    "an export of volumes as tar files": usage(export(organs(1), "webdataset"), r"use (--to nifti)"),
    "an export of unusual splits as YOLO": usage(export(boxes(HALVES), "yolo"), r"use (--to voc)"),
    "an export of unusual splits as folders": noted(
        export(pictures(HALVES), "folders"),
        r"with (--split-folders yes)",
        into=lambda source: ["--layout", "folders", *SMALL, "--source", source.parent / "exported"],
    ),
    "an export of tiles": usage(
        export(TILED, "nifti"), (r"with (--fit crop-or-pad)", "--overwrite"), into=TILED, proves="1 record"
    ),
    "an export of parts of scans on the scans' grid": usage(
        export(CUT, "nifti", "--grid", "source"), r"use (--grid stored)"
    ),
    "an export of parts of scans, which may be whole": usage(
        export(CUT, "nifti", "--grid", "source"), (r"with (--fit stretch)", "--overwrite"), into=CUT
    ),
    "an export on the grid of pictures that are not at hand": noted(
        export(boxes(), "coco", "--grid", "source"), r"add (--images)", more=("{source}", "--overwrite")
    ),
    "an export that holds pictures which are not at hand": usage(
        export(boxes(), "yolo", "--grid", "source"), r"add (--images)", more=("{source}",)
    ),
    "pictures to copy onto the stored grid": usage(
        export(boxes(), "coco", "--images", "source"), r"(--images) source: .* leave it out"
    ),
    "an export of classes that overlap": usage(
        export(OVERLAPPING, "nifti"), (r"with (--class-overlap last)", "--overwrite"), into=OVERLAPPING
    ),
    "an export of a run with a target": usage(
        of_run("export", "--to coco --out exported"), r"(--to) coco: .* leave it out", around=compiled
    ),
    "pictures in sizes of their own": usage(
        converted_before(kept_aspect, new_files),
        (r"\((--resize fixed-shape),", "--overwrite"),
        (r"or (--resize keep-aspect --pad)\)", "--overwrite"),
        into=kept_aspect,
        proves="4 records",
    ),
    "a table of sizes": noted(
        converted_before(kept_aspect, report_page),
        (r"square \((--pad)\)", "--resize keep-aspect --overwrite"),
        into=kept_aspect,
        proves="4 records",
    ),
    # plans
    "a plan without a size": usage(
        plan("--config classifier_small"), r"such as (--set image_shape=\[128,128,3\])", throughout=compiled
    ),
    "a plan of volumes without a size": usage(
        plan("--config unet3d_small"),
        (r"such as (--set) image_shape=.*for volumes", "image_shape=[64,64,64,1]"),
        throughout=compiled,
    ),
    "a TPU's plan without its compiler": usage(
        plan(*SIZED, "--topology v3-8"), r"take (--topology cpu:8)", throughout=without_libtpu
    ),
    "a TPU by another name": usage(
        plan(*SIZED, "--topology ironwood-8"),
        "`(halofeed plan --topologies)` lists them",
        proves="tpu7x-8, tpu7x-16",
    ),
    "savings": noted(
        plan(*SIZED, "--savings"),
        r"\n *(--remat):",
        r"(--set optimizer=sgd --set momentum=0\.9):",
        r"(--set optimizer=sgd --set momentum=0\.0):",
        r"(--set average_decay=0):",
        into=train_again,
        throughout=compiled_and_ready,
        ends=1,
    ),
    "tiles larger than the picture": usage(
        plan(*PICTURES, "--tile-sizes 2048"), r"take (--tile-sizes 300x400)", throughout=compiled
    ),
    "tiles of the overlap": usage(
        plan(*PICTURES, "--tile-sizes 64 --tile-overlap 64,64"),
        r"at most (--tile-overlap 63,63)",
        (r"larger (--tile-sizes)", "128"),
        throughout=compiled,
    ),
    "tiles below the stride": usage(
        plan(*PICTURES, "--tile-sizes 16 --tile-overlap 4,4"), r"take (--tile-sizes 32)", throughout=compiled
    ),
    "pictures of a config for volumes": usage(
        plan("--config unet3d_128 --picture-size 300,400 --tile-sizes 64 --tile-overlap 4,4"),
        r"such as (--config unet2d_small)",
        throughout=compiled,
    ),
    "tiles that do not fit": refused(
        plan(*PICTURES, "--tile-sizes 64 --tile-overlap 4,4"),
        r"take (--remat), or",
        throughout=lambda: compiled(needs_remat=True),
        proves="Use ",
    ),
    "an overlap below the object": noted(
        plan(*PICTURES, "--tile-sizes 64 --tile-overlap 4,4 --object-size 20"),
        r"with (--tile-overlap 20,20)",
        throughout=compiled,
        proves="among",
    ),
    "tiles without an object size": noted(
        plan(*PICTURES, "--tile-sizes 64 --tile-overlap 4,4"),
        (r"(--object-size) N also", "3"),
        throughout=compiled,
        proves="objects of 3 pixels whole",
    ),
    "an object without a picture": usage(
        plan(*SIZED, "--object-size 5"), r"such as (--picture-size 20000,20000)", throughout=compiled
    ),
    "the depth of pictures": usage(
        plan(*SIZED, "--topology v3-8 --search depth"),
        r"take (--search side)",
        throughout=compiled,
        proves="The largest side that fits",
    ),
    "a plan of what does not fit": refused(
        plan(*SIZED, "--topology v3-8"),
        r"images, (--remat), or",
        throughout=lambda: compiled(needs_remat=True),
        proves="rematerialized",
    ),
    "a plan of a batch that does not divide": usage(
        plan(*SIZED, "--set batch_size=9 --topology v3-8"),
        r"replicas: (--set batch_size=8) or",
        r"or (--set batch_size=12)",
        throughout=compiled,
    ),
    "a plan of a batch larger than the split": usage(
        lambda source: ["plan", data(), "--topology cpu:8 --cores-per-replica 2"],
        r"take (--set batch_size=8) or less",
        throughout=compiled,
    ),
    "what to take": noted(
        lambda source: ["plan", data(), "--set batch_size=8 --topology cpu:8 --cores-per-replica 2"],
        (r"(halofeed train .*)", "--out run --set model.features=[8]"),
        throughout=compiled_and_ready,
        ends=1,
        proves="all is ready",
    ),
    "more in JSON": noted(plan(*SIZED), (r"all in (--json)", "-"), throughout=many_gathers, proves=r"^\{"),
    "more cores than devices": usage(
        train_in_vain,
        r"with (--virtual-devices 2) \((XLA_FLAGS=--xla_force_host_platform_device_count=2)\)",
        ends=2,
        proves="holds no run",
    ),
    # pages
    "a page of a data set": noted(
        lambda source: [report_page, data()],
        (r"(halofeed train \S+ --split [^<]*--partition [\w=,;]+)", "--out run"),
        **READY,
    ),
    "a page of a run": noted(
        lambda source: [run_page],
        r"(halofeed train .*? --config again.toml --out RUN-AGAIN)",
        r"(halofeed evaluate .*? --split \w+)",
        r"(halofeed predict .*? --out predictions)",
        first=lambda source: (source.parent / "again.toml").write_text(
            config_as_toml(json.loads((trained() / "run.json").read_text())["config"])
        ),
    ),
    # damaged data sets
    "a shard that is missing": refused(
        damaged("set-train.tfrecord-*", None), r"with (--overwrite) to rebuild", into=pictures()
    ),
    "an index that is cut off": refused(damaged("_index*", 40), r"(--overwrite) to rebuild", into=pictures()),
    "a picture that cannot be decoded": refused(
        show_jpeg,
        r"convert` with (--overwrite)",
        around=patched("prep.voxels.encoded_image.check_encoded_image", side_effect=ValueError("no JPEG")),
        into=pictures("--encoding jpeg"),
    ),
    "an index that is too large": refused(
        pictures("--workers 1"),
        (r"more (--shards)", "4"),
        throughout=patched("schemas.index.INDEX_BYTES", new=4400),
        writes=True,
    ),
    "planes of raw pictures": usage(
        planes_of("--height 8 --width 12"),
        (r"convert with (--encoding yuv420)", "--overwrite"),
        into=pictures(),
    ),
    "mirrored planes of padded pictures": usage(
        planes_of("--encoding yuv420", "--resize keep-aspect --pad --min-dimension 9 --max-dimension 24"),
        (r"convert with (--resize fixed-shape)", "--overwrite --encoding yuv420"),
        into=pictures(),
    ),
    "a mixture of other classes": usage(
        mixture, (r"one (--label-map)", "{folder}/labels.txt", "--overwrite"), into=pictures()
    ),
    # the command line
    "pictures in place of a data set": usage(
        lambda source: ["verify", draw_folders(source, 8)], r"`(halofeed convert .*)`", proves="8 records"
    ),
    "a setting as an option": usage(
        plan(*SIZED, "--lr=0.1"), r"(--set learning_rate=0.1)\?", without=("--lr=0.1",), throughout=compiled
    ),
    "a preview of a conversion": usage(
        pictures("--preview sample.png"), "with (--dry-run)", proves="dry run"
    ),
    "an error that nobody expects": refused(
        pictures(),
        r"\((--debug) shows where",
        throughout=patched("pipelines.convert.make_plan", side_effect=ValueError("odd")),
        ends=1,
        proves="Traceback",
    ),
}
