"""Python API: a function for each command, and `open` for a data set.

Parameters have the names of the command line's options with underscores: `--batch-size 8` is `batch_size=8`. The
examples below run after `import halofeed`, in a folder with class folders `photos`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halofeed.schemas.file_layout import OBJECT, REJECTED, SELECTION
from halofeed.storage.paths import load_bytes
from halofeed.system.arguments import explains_calls, path_text
from halofeed.system.console import print_status
from halofeed.system.errors import CorruptFileError, HalofeedError, UsageError
from halofeed.system.wording import plural

if TYPE_CHECKING:
    from halofeed.inspection.review.review import Review
    from halofeed.inspection.verify import VerifyReport
    from halofeed.inspection.version_difference import VersionDifference
    from halofeed.loader import Loader
    from halofeed.pipelines.convert import Conversion
    from halofeed.pipelines.run_counts import ConversionSummary

__all__ = [
    *("ConvertedDataset", "Dataset", "convert", "diff", "dry_run", "evaluate", "export", "inspect", "open"),
    *("plan", "predict", "report", "review", "show", "subset", "train", "verify"),
]
StrPath = str | os.PathLike[str]


class Dataset:
    """A converted data set: its splits and classes, what was rejected, and loaders of its batches.

    Attributes:
        path: folder or address of the version.
        manifest: everything that is known of the data set.
        splits: number of records by split.
        class_names: `class_names[label]`; 0 is the background if labels begin at 1.
        rejected: number of inputs that are not in the data set by reason, such as {"decode: file is truncated": 2}.
            "object: ..." counts dropped objects of inputs that are in it, and "selection: ..." other files that were
            left out on purpose.

    >>> data = halofeed.Dataset("data/photos/1.0.0")
    >>> data.splits, data.rejected
    ({'train': 8}, {})
    """

    def __init__(self, path: StrPath) -> None:
        from halofeed.inspection.dataset_files import open_manifest
        from halofeed.loader.dataset import class_names_of

        self.path = os.fspath(path)
        self.manifest = open_manifest(self.path)
        self.splits = {name: split.records for name, split in self.manifest.splits.items()}
        self.class_names = class_names_of(self.manifest)
        self.rejected = dict(self.manifest.rejected)

    def rejected_sources(self, limit: int = 1000) -> list[dict[str, str]]:
        """Return the source, stage, reason and detail of each entry that `rejected` counts, up to a limit.

        Args:
            limit: number of entries to read at most. The file PATH/rejected.jsonl has all of them.

        Raises:
            CorruptFileError: the list is damaged.

        >>> halofeed.open("data/photos").rejected_sources()
        []
        """
        from halofeed.inspection.dataset_files import open_files

        if not self.rejected:
            return []
        files = open_files(self.path)
        try:
            lines = itertools.islice(files.lines(REJECTED), limit)
            return [json.loads(line.decode("utf-8", "surrogateescape")) for line in lines]
        except (OSError, ValueError) as error:
            raise CorruptFileError(
                f"{files.path(REJECTED)}: cannot be read: {error}; run `halofeed verify {files}`"
            ) from error

    @explains_calls
    def loader(self, split: str = "train", *, batch_size: int, **options: Any) -> Loader:
        """Return `halofeed.Loader(path, split=split, batch_size=batch_size, ...)`."""
        from halofeed.loader import Loader

        return Loader(self.path, split=split, batch_size=batch_size, **options)

    def tfds_info(self) -> Any:
        """Return TensorFlow Datasets' DatasetInfo in which pictures are an Image feature, raw ones too.

        `tfds.show_examples(examples, info)` draws Image features only. TFDS's Image feature decodes files, so the
        info of `tfds.builder_from_directory(path)`, with which TFDS reads, has raw pictures as a tensor.
        """
        import tensorflow_datasets as tfds

        from halofeed.schemas.keys import ENCODED

        builder = tfds.builder_from_directory(self.path)
        features = {key: builder.info.features[key] for key in builder.info.features}
        image = features[ENCODED]
        # TFDS takes axes in any number and type, but its Image feature those of pictures alone.
        if not isinstance(image, tfds.features.Image) and self.manifest.kind.name == "picture":
            features[ENCODED] = tfds.features.Image(shape=image.shape, dtype=image.np_dtype)
        return tfds.core.DatasetInfo(
            builder=builder,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=builder.info.supervised_keys,
        )

    def info(self) -> str:
        """Describe fields, splits, labels, rejects, padding and recipe, as `halofeed inspect` does."""
        return inspect(self.path)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        splits = ", ".join(f"{name}: {records:,}" for name, records in self.splits.items())
        known = self.manifest
        # Neither dropped objects nor files that were left out on purpose are failures.
        kept = (f"{OBJECT}: ", f"{SELECTION}: ")
        failed = sum(count for reason, count in self.rejected.items() if not reason.startswith(kept))
        told = f", {plural(failed, 'input')} rejected" if failed else ""
        return f"<{known.name} {known.version}: {known.task}, {splits} records{told}, in {self.path}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the first batch of the first split that has records."""
        split = next(name for name, records in self.splits.items() if records)
        return self.loader(split, batch_size=4, shuffle=False)._repr_html_()


class ConvertedDataset(Dataset):
    """A data set that `halofeed.convert` returns, with what this run of the conversion did.

    Attributes:
        summary: time, records, bytes and kept shards of the run, and rejects by reason; the command prints the same.
        changes: with `from_`, everything that differs from the earlier version, as of `halofeed.diff`; otherwise None.

    >>> done = halofeed.convert("photos", "data", name="again", height=16, width=24)
    >>> done.summary.records, done.summary.shards_kept, done.summary.rejected
    (8, 0, {})
    """

    def __init__(
        self, path: StrPath, summary: ConversionSummary, changes: VersionDifference | None = None
    ) -> None:
        super().__init__(path)
        self.summary = summary
        self.changes = changes


@explains_calls
def open(path: StrPath) -> Dataset:  # noqa: A001
    """Open a data set by its version's folder or address, or by the folder of its only version.

    Raises:
        UsageError: there is none, or there are several versions; the message names them.
        ManifestError: the conversion has not finished, or the manifest is wrong.

    >>> halofeed.open("data/photos").class_names
    ('hat', 'shirt')
    """
    from halofeed.schemas.manifest import only_version

    return Dataset(only_version(path_text("path", path)))


@explains_calls
def convert(
    source: StrPath,
    out: StrPath,
    *,
    layout: str = "",
    recipe: StrPath | Mapping[str, Any] | None = None,
    name: str = "",
    beam_options: Sequence[str] = (),
    **options: Any,
) -> ConvertedDataset:
    """Convert images and annotations into sharded TFRecords, and open the result; the same call resumes.

    The data set is in OUT/NAME/VERSION. What the run did is in the result's `summary`. Without `max_rejected` more than
    5% rejected inputs give a warning on standard error.

    Args:
        source: folder or file of the annotations, and of the images if they are beside them.
        out: folder below which NAME/VERSION is made.
        layout: layout of the source; `halofeed convert --help` lists them; default: that of `recipe`, else the only one
            that fits the files.
        recipe: recipe of an earlier conversion: its manifest's file or folder, a file of options in JSON or YAML, or
            options by name, such as `halofeed.open(path).manifest.recipe`; other options override it.
        name: name of the data set; default: the source's, in lower case letters, digits and underscores.
        beam_options: Beam's own options, such as ["--runner=DataflowRunner"].
        options: options of `halofeed convert`, such as height=640, pad=True, spacing_mm=(2, 1, 1).

    Raises:
        UsageError: a parameter is wrong; and as `halofeed.pipelines.convert.convert`.

    >>> halofeed.convert("photos", "data", height=16, width=24)
    <photos 1.0.0: classification, train: 8 records, in data/photos/1.0.0>
    """
    if isinstance(beam_options, str):
        raise UsageError(
            f"beam_options: expected a list with a text for each option, got one text; write {beam_options.split()}"
        )
    # A dry run commits nothing that could be opened.
    if options.get("dry_run"):
        raise UsageError(
            "dry_run: halofeed.convert opens what it wrote; call halofeed.dry_run with the same parameters"
        )
    given = conversion_parameters(source, out, layout=layout, recipe=recipe, name=name, **options)
    done, changes = run_conversion(given, beam_options)
    return ConvertedDataset(done.folder, done.summary, changes)


def conversion_parameters(
    source: StrPath,
    out: StrPath,
    *,
    layout: str = "",
    recipe: StrPath | Mapping[str, Any] | None = None,
    name: str = "",
    **options: Any,
) -> dict[str, Any]:
    """Return the parameters of `convert` as `run_conversion` takes them."""
    places = _places(source, out, name, options.get("from_"))
    return {"layout": layout or None, "recipe": recipe, **places, **options}


def run_conversion(
    given: Mapping[str, Any],
    beam_options: Sequence[str] = (),
    *,
    caller: str = "halofeed.convert",
    again: str = "convert again with --overwrite",
) -> tuple[Conversion, VersionDifference | None]:
    """Convert, and print warnings about rejected inputs and copies, because nobody sees the summary of the command.

    Args:
        given: parameters of `convert`.
        beam_options: as for `convert`.
        caller: function that the user called, for messages.
        again: how corrected inputs are converted, for the warning.

    Returns:
        What was done, and with `from_` what differs from the earlier version.
    """
    from halofeed.keywords import name_parameters
    from halofeed.pipelines.summary import rejected_warning

    parsed, _ = _run("convert", {}, given, beam_options)
    done: Conversion = parsed.conversion
    warning = rejected_warning(done, getattr(parsed, "max_rejected", None), again)
    for text in [] if parsed.quiet else filter(None, [warning, *parsed.copies]):
        print_status(f"{caller}: {name_parameters(text)}")
    return done, parsed.changes


@explains_calls
def dry_run(source: StrPath, out: StrPath, *, name: str = "", **options: Any) -> str:
    """Describe the conversion that `convert` would make with the same parameters, and write no data set.

    The text has inputs by split, classes, record sizes, rejects and a converted sample; for volumes a shape, a spacing
    and a window. `preview="sample.png"` draws the sample.

    Args:
        source: as for `convert`.
        out: folder below which `convert` would make NAME/VERSION.
        name: name of the data set.
        options: options of `halofeed convert`.

    >>> print(halofeed.dry_run("photos", "data", height=16, width=24).splitlines()[1].strip())
    train        8 inputs
    """
    return _run(
        "convert", {}, {**_places(source, out, name, options.get("from_")), "dry_run": True, **options}
    )[1].rstrip("\n")


def _places(source: StrPath, out: StrPath, name: str, from_: object = None) -> dict[str, str]:
    """Return the source, the output and the name; its default is the source's in the letters that names have."""
    fix = (
        "save pictures as PNG files in a folder for each class, or a table as CSV, and name the folder above"
    )
    # Other loaders take a list of files.
    if isinstance(source, list | tuple) and all(isinstance(one, str) for one in source):
        fix = "name the folder that holds them; limit=N takes a part"
    given = {
        "source": path_text("source", source, fix),
        "out": path_text("out", out, "name a folder below which data sets lie, such as 'data'"),
    }
    if not name and from_:  # the name of the earlier version, which the command reads
        return given
    stem = re.sub(r"[^a-z0-9_]+", "_", Path(given["source"].rstrip("/")).stem.lower()).strip("_")
    stem = stem if re.match("[a-z]", stem) else f"data_{stem}".rstrip("_")
    return {**given, "name": name or stem}


@explains_calls
def verify(path: StrPath) -> VerifyReport:
    """Check every byte of a data set; see `halofeed.inspection.verify.verify`.

    >>> halofeed.verify("data/photos").ok
    True
    """
    from halofeed.inspection import verify as module

    with _naming_parameters():
        return module.verify(open(path).path)


@explains_calls
def review(path: StrPath, *, run: StrPath | Sequence[StrPath] | None = None, **options: Any) -> Review:
    """Search a data set for what may hurt training; see `halofeed.inspection.review.review.review_dataset`.

    Args:
        path: folder or address of the data set's version.
        run: folder that `train` returned, or several: likely label faults are listed by what they predict.
        options: options of `halofeed review`.

    >>> halofeed.review("data/photos").suspects
    ()
    """
    runs = [run] if isinstance(run, str | os.PathLike) else run
    joined = None if runs is None else ",".join(path_text("run", one) for one in runs)
    parsed, _ = _run("review", {"path": open(path).path}, {**options, "run": joined})
    found: Review = parsed.review
    return found


@explains_calls
def diff(earlier: StrPath, later: StrPath, **options: Any) -> VersionDifference:
    """Compare two versions of a data set, and return everything in which they differ.

    Args:
        earlier: folder or address of the earlier version.
        later: folder or address of the later version.
        options: options of `halofeed diff`.

    >>> halofeed.diff("data/photos", "data/photos").is_empty
    True
    """
    parsed, _ = _run("diff", {"path": earlier, "other": later}, options)
    found: VersionDifference = parsed.difference
    return found


@explains_calls
def inspect(path: StrPath, *, record: str | None = None, parser: bool = False) -> str:
    """Describe a data set, or one record of it ("train:17"), or return a TensorFlow parser of its records.

    >>> print(halofeed.inspect("data/photos").splitlines()[0])
    photos 1.0.0: classification, 8 records, 12.9 kB
    """
    return _run("inspect", {"path": path}, {"record": record, "parser": parser})[1].rstrip("\n")


@explains_calls
def report(path: StrPath, **options: Any) -> Path:
    """Write the HTML report of a data set or a training run, and return its path.

    Args:
        path: folder or address of the data set's version, or folder of the run.
        options: options of `halofeed report`.

    >>> print(halofeed.report("data/photos", output="photos.html"))
    photos.html
    """
    if options.get("serve"):
        raise UsageError(
            f"serve: a server runs until Ctrl-C; run `halofeed report {path} --serve` in a terminal"
        )
    return Path(_run("report", {"path": path}, options)[1].strip())


@explains_calls
def show(path: StrPath, **options: Any) -> Path:
    """Write a picture of a batch, and return its path.

    Args:
        path: folder or address of the data set's version.
        options: options of `halofeed show`.

    >>> print(halofeed.show("data/photos", batch_size=4, output="batch.png"))
    batch.png
    """
    return Path(_run("show", {"path": path}, options)[1].strip())


@explains_calls
def subset(path: StrPath, *, where: str, out: StrPath, **options: Any) -> Dataset:
    """Write the records that meet a condition as a new version, which lists its parent, and open it.

    Args:
        path: folder or address of the data set's version.
        where: condition on the records, such as "class=hat and width>=24"; `halofeed subset --help` has the language.
        out: folder below which NAME/VERSION is made.
        options: options of `halofeed subset`.

    >>> halofeed.subset("data/photos", where="class=hat", out="data", name="hats").splits
    {'train': 4}
    """
    parsed, _ = _run("subset", {"path": path}, {"where": where, "out": out, **options})
    return Dataset(parsed.subset.folder)


@explains_calls
def plan(data: StrPath | None = None, **options: Any) -> dict[str, Any]:
    """Find the splits of a model that fit on a machine, and return the plan's document.

    Args:
        data: folder of the data set's version; None plans for the config's own size.
        options: options of `halofeed plan`.

    >>> found = halofeed.plan("data/photos", topology="cpu:1", set={"batch_size": 8, "model.features": [8]})
    >>> [split["fits"] for split in found["splits"]]
    [True]
    """
    found: dict[str, Any] = json.loads(_run("plan", {"data": data}, {**options, "json": "-"})[1])
    return found


@explains_calls
def train(data: StrPath, **options: Any) -> Path:
    """Train a model and return the run's folder; `set` changes settings of the recipe. The same call resumes.

    Args:
        data: folder of the data set's version.
        options: options of `halofeed train`.

    >>> run = halofeed.train("data/photos", out="run", steps=1, batch_size=8, set={"model.features": [8]})
    >>> (run / "report.html").exists()
    True
    """
    return Path(_run("train", {"path": data}, options)[0].out)


@explains_calls
def evaluate(run: StrPath, data: StrPath | None = None, **options: Any) -> dict[str, Any]:
    """Measure a trained model on a split, and return the metrics.

    Args:
        run: folder that `train` returned.
        data: folder of the data set's version; None is the run's own.
        options: options of `halofeed evaluate`.

    >>> halofeed.evaluate("run")["examples"]
    8
    """
    from halofeed.storage.scratch import scratch_folder

    with scratch_folder() as folder:
        file = Path(folder) / "metrics.json"
        _run("evaluate", {"run": run, "data": data}, {**options, "json": file})
        metrics: dict[str, Any] = json.loads(load_bytes(file))["metrics"]
    return metrics


@explains_calls
def predict(run: StrPath, data: StrPath | None = None, *, out: StrPath, **options: Any) -> Path:
    """Write predictions in the coordinates of the source files, and return the folder.

    Args:
        run: folder that `train` returned.
        data: folder of the data set's version; None is the run's own.
        out: output folder.
        options: options of `halofeed predict`.

    >>> found = halofeed.predict("run", source="photos", out="found")
    >>> len((found / "classes.csv").read_text().splitlines())  # a line for each picture, and the header
    9
    """
    _run("predict", {"run": run, "data": data}, {**options, "out": out})
    return Path(out)


@explains_calls
def export(path: StrPath, *, out: StrPath, **options: Any) -> Path:
    """Export a trained model or the pictures and labels of a data set, and return the folder.

    Args:
        path: folder of the run; with `to` the folder or address of a data set's version.
        out: output folder.
        options: options of `halofeed export`.

    >>> len(list(halofeed.export("data/photos", to="folders", out="pictures").glob("train/*/*.png")))
    8
    >>> sorted(path.name for path in halofeed.export("run", out="exported").glob("[a-zA-Z]*"))
    ['README.md', 'model.stablehlo', 'signature.json']
    """
    _run("export", {"path": path}, {**options, "out": out})
    return Path(out)


def _run(
    command: str,
    paths: Mapping[str, StrPath | None],
    options: Mapping[str, Any],
    beam_options: Sequence[str] = (),
) -> tuple[argparse.Namespace, str]:
    """Run a command in this process; return its values, and what it printed.

    Args:
        command: name of the command.
        paths: arguments without an option, by the names of the parsed command line.
        options: value of each option by keyword.
        beam_options: Beam's own options.
    """
    from halofeed.cli import run_command
    from halofeed.keywords import check_keywords

    values = check_keywords(command, options)
    # Without `data` a command uses the run's own data, or none.
    given = {name: path for name, path in paths.items() if (name, path) != ("data", None)}
    values |= {name: path_text("path", path) for name, path in given.items()}
    printed = io.StringIO()
    with _naming_parameters(), contextlib.redirect_stdout(printed):
        parsed = run_command(command, values, beam_options)
    return parsed, printed.getvalue()


@contextlib.contextmanager
def _naming_parameters() -> Iterator[None]:
    """Let messages name parameters in place of the command line's options."""
    from halofeed.keywords import name_parameters

    try:
        yield
    except HalofeedError as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):
            parts = error.args[0].split("`")  # commands are in backticks and stay
            parts[::2] = map(name_parameters, parts[::2])
            error.args = ("`".join(parts),)
        raise
