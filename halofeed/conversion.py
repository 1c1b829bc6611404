"""Command `convert`, which turns images and annotations into a data set."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halofeed.option_rows import convert_rows, layout_summaries, saved_layout_summaries, saved_rows
from halofeed.options import Option, add_options, from_options, given_options, option_group
from halofeed.parser import HELP_COLUMNS, Command, CommandParser
from halofeed.system import signals
from halofeed.system.addresses import is_remote
from halofeed.system.console import print_status
from halofeed.system.errors import UsageError, require_extra
from halofeed.system.resource_errors import describe_error
from halofeed.system.wording import plural
from halofeed.training import unlogged

if TYPE_CHECKING:
    from halofeed.inspection.version_difference import VersionDifference
    from halofeed.pipelines.convert import Conversion
    from halofeed.pipelines.job import JobOptions
    from halofeed.prep.annotations.contract import LayoutOptions
    from halofeed.prep.options.recipe import Recipe
    from halofeed.prep.options.recipe_file import GivenRecipe

_EXAMPLES = """\
examples: a folder per class; boxes, padded to 640 x 640; volumes with masks
  halofeed convert --source photos --out data --name photos --height 224 --width 224
  halofeed convert --source cards --out data --name cards --resize keep-aspect \\
      --min-dimension 640 --max-dimension 640 --pad --shards 4
  halofeed convert --source Dataset009_Spleen --out data --name spleen \\
      --depth 64 --height 128 --width 128 --window abdomen
"""
_MORE_EXAMPLES = """
example: clips of 16 frames
  halofeed convert --source videos --out data --name videos --frames 16 --height 112 --width 112

example: on a cluster, where Beam's options follow --
  halofeed convert --layout coco --source gs://bucket/coco --out gs://bucket/data --name coco \\
      --max-rejected 100 -- --runner=DataflowRunner --project=PROJECT --region=europe-west4 \\
      --temp_location=gs://bucket/temporary --extra_package=halofeed-0.1.0-py3-none-any.whl
"""
_END = """
Killed or failed? Run the same command again: finished shards are kept, and the result is the same.
OUT/NAME/VERSION/rejected.jsonl lists every rejected input with its reason.
"""


_RECIPE_HELP = "manifest.json of a data set, options in JSON or YAML, or a pipeline.config; options here win"
RECIPE = Option(
    name="recipe",
    help=_RECIPE_HELP,
    more={
        "brief": "options from manifest.json, YAML or pipeline.config",
        "group": "source",
        "metavar": "FILE",
    },
)


def _add_convert(parser: CommandParser) -> None:
    _add_convert_options(parser, convert_rows(), layout_summaries())


def _add_saved_convert(parser: CommandParser) -> None:
    _add_convert_options(parser, saved_rows("convert"), saved_layout_summaries())


def _add_convert_options(parser: CommandParser, rows: Iterable[Option], layouts: Mapping[str, str]) -> None:
    from halofeed.prep.options.option import HELP_GROUPS

    # A name that is broken at its hyphen could not be copied.
    lines = textwrap.wrap(", ".join(layouts), HELP_COLUMNS - 2, break_on_hyphens=False)
    names = textwrap.indent("\n".join(lines), "  ")
    summaries = "\n".join(f"  {name:<12} {summary}" for name, summary in layouts.items())
    parser.epilog = f"layouts, which --help-all describes:\n{names}\n{_END}"
    parser.full_epilog = f"layouts:\n{summaries}\n{_MORE_EXAMPLES}{_END}"
    parser.usage = "halofeed convert --source SOURCE --out OUT --name NAME [options] [-- BEAM OPTIONS]"
    parser.description = f"{parser.description}\n\n{_EXAMPLES}"
    for title in HELP_GROUPS:
        option_group(parser, title)
    add_options(parser, [RECIPE, *rows])


@dataclass(frozen=True, kw_only=True)
class _Request:
    """Options of a conversion as its caller gave them.

    Args:
        options: options of the run.
        given: options of the recipe by name, without their defaults.
        repeated: recipe that --recipe names; `given` overrides it.
    """

    options: JobOptions
    given: Mapping[str, Any]
    repeated: GivenRecipe | None

    @classmethod
    def of(cls, parsed: argparse.Namespace) -> _Request:
        """Return the request of a command line; read the recipe that it names, and print what was translated."""
        from halofeed.pipelines.job import JobOptions
        from halofeed.prep.options.recipe import Recipe
        from halofeed.prep.options.recipe_file import read_recipe

        file = getattr(parsed, "recipe", None)  # absent where it was not given
        repeated = read_recipe(file) if file else None
        if earlier := getattr(parsed, "from_", ""):
            repeated = _recipe_of_earlier(parsed, earlier, repeated)
        options = from_options(JobOptions, parsed)
        if repeated and repeated.mapped:
            options = dataclasses.replace(options, label_map=options.label_map or repeated.label_map)
            print_status("\n".join(repeated.mapped))
        return cls(options=options, given=given_options(Recipe, parsed), repeated=repeated)

    def stated(self) -> Mapping[str, Any]:
        """Return every option of the recipe that the caller or --recipe states."""
        return {**self.repeated.document, **self.given} if self.repeated else self.given

    def recipe(self, **more: Any) -> Recipe:
        """Return the recipe, with further options."""
        from halofeed.prep.options.recipe import Recipe

        given = {**self.given, **more}
        return self.repeated.changed(given) if self.repeated else Recipe(**given)

    def with_layout(self, beam_arguments: list[str]) -> _Request:
        """Return this request with a layout: its own, or the one that the files of the source show."""
        # Stores of addresses need Beam's options before the layout's detection lists the source.
        addresses = (self.options.source, self.options.images or "", self.options.out)
        if beam_arguments or any(map(is_remote, addresses)):
            with require_extra("convert", "apache_beam"), unlogged():
                from halofeed.pipelines.convert import prepare_stores

                prepare_stores(self.options, beam_arguments)  # imports the rest of Beam
        if self.stated().get("layout", "auto") != "auto":
            return self
        layout = _detect_layout(self.options, lambda name: self.recipe(layout=name))
        return dataclasses.replace(self, given={**self.given, "layout": layout})

    def checked_recipe(self) -> Recipe:
        """Return the recipe; refuse options without an effect and volumes without a size."""
        recipe = self.recipe()
        if self.repeated:
            self.repeated.check_used(recipe, self.given)
        else:
            recipe.check_used()
        # Height and width have defaults, which are those of pictures.
        if self.stated().get("depth") is not None and not {"height", "width"} <= self.stated().keys():
            raise UsageError(
                "--depth: volumes have no default size; give --height and --width too. --dry-run without the three "
                "proposes them"
            )
        return recipe


def _recipe_of_earlier(parsed: argparse.Namespace, earlier: str, repeated: GivenRecipe | None) -> GivenRecipe:
    """Return the recipe of the version that --from names; its place is the default of --out and --name."""
    from halofeed.pipelines.earlier_version import read_earlier
    from halofeed.prep.options.recipe_file import GivenRecipe

    if repeated is not None:
        raise UsageError("--from and --recipe both give the recipe; leave --recipe out")
    manifest, _ = read_earlier(earlier)
    parsed.out = getattr(parsed, "out", "") or _folder_above(earlier, f"{manifest.name}/{manifest.version}")
    parsed.name = getattr(parsed, "name", "") or manifest.name
    # The recipe of a version whose task the annotations show has none; its name says the same.
    if getattr(parsed, "task", None) == manifest.task and manifest.recipe.get("task") is None:
        del parsed.task
    if not getattr(parsed, "version", ""):
        raise UsageError(
            f"--from {earlier}: give the new version its number, such as --version {_next(manifest.version)}"
        )
    return GivenRecipe(
        document=manifest.recipe,
        where=earlier,
        below="recipe.",
        labels=manifest.labels,
        option="--from",
    )


def _folder_above(folder: str, below: str) -> str:
    """Return the folder that has another one at a path below it; "" where it is elsewhere.

    >>> _folder_above("data/cards/1.0.0/", "cards/1.0.0"), _folder_above("old", "cards/1.0.0")
    ('data', '')
    """
    places = (
        [folder.rstrip("/")] if is_remote(folder) else [os.path.normpath(folder), os.path.realpath(folder)]
    )
    for place in places:
        if place == below:
            return "."
        if place.endswith(f"/{below}"):
            return place.removesuffix(f"/{below}") or "/"
    return ""


def _next(version: str) -> str:
    """Return the next minor version.

    >>> _next("1.0.0")
    '1.1.0'
    """
    major, minor, _ = version.split(".")
    return f"{major}.{int(minor) + 1}.0"


def run_convert(parsed: argparse.Namespace, beam_arguments: list[str]) -> int:
    """Run `halofeed convert`."""
    began = time.monotonic()
    request = _Request.of(parsed).with_layout(beam_arguments)
    recipe, options = request.checked_recipe(), request.options
    from halofeed.system.memory import heavy_imports, keep_freed_memory

    with require_extra("convert", "apache_beam"), unlogged(), heavy_imports():
        from halofeed.pipelines.convert import convert
        from halofeed.pipelines.workers import fork_workers
        from halofeed.storage.scratch import temporary_files_in_scratch
    from halofeed.pipelines.summary import summary

    if options.dry_run:
        return _dry_run(request)
    with contextlib.ExitStack() as stack:
        if parsed.alone:
            # Only a process without other threads may fork, and only its own temporary files may be moved.
            stack.enter_context(fork_workers(options, recipe, beam_arguments))
            stack.enter_context(temporary_files_in_scratch())
        keep_freed_memory()
        signals.set_stop_message(outlook="the same command resumes where this one ended")
        done = convert(options, recipe, beam_arguments, began=began)
    parsed.conversion = done  # for halofeed.convert
    print(
        summary(done, warn_cut=options.warn_cut, on_loss=options.on_loss, max_rejected=options.max_rejected)
    )
    parsed.changes = _print_changes(options, done) if options.from_ else None
    # Indexes that another machine wrote may be in a store, and reading them takes long.
    parsed.copies = [] if beam_arguments else _print_copies(done)
    repeated = request.repeated
    # A manifest has the classes but not the file of their names, which the caller may have forgotten.
    if repeated and repeated.labels not in (None, done.manifest.labels):
        print_status(
            f"halofeed convert: the classes differ from those of {repeated.where}; if a file of class "
            "names was given then, give it again"
        )
    return 0


def _print_copies(done: Conversion) -> list[str]:
    """Print warnings of copies in several splits and of copies with other labels, and return them."""
    from halofeed.inspection.review.leak_warning import copy_warnings

    try:
        found = copy_warnings(done.folder)
    except Exception as error:
        # The data set is committed, and no error of a search may make its conversion fail.
        found = [
            f"copies were not searched ({describe_error(error)}); `halofeed review {done.folder}` searches them"
        ]
    for text in found:
        print(f"  warning: {text}")
    return found


def _print_changes(options: JobOptions, done: Conversion) -> VersionDifference:
    """Print what differs from the earlier version."""
    from halofeed.inspection.compare_versions import compare_versions
    from halofeed.inspection.version_difference import changed_lines

    found = compare_versions(options.from_, done.folder)
    print("\n".join(changed_lines(found)))
    moved = len(found.of_kind("split"))
    if moved and not options.keep_splits:
        print_status(
            f"halofeed convert: {plural(moved, 'example is', 'examples are')} in another split than in "
            f"{found.earlier.version}, so a model of that version may be tested with pictures of its training; "
            "--keep-splits keeps every example where it was"
        )
    return found


def _dry_run(request: _Request) -> int:
    from halofeed.pipelines.dry_run import dry_run
    from halofeed.storage.scratch import scratch_folder

    options = request.options
    with scratch_folder() as folder:
        found = dry_run(options, request.recipe, folder)
        print(found.text)
        if options.preview is not None and found.sample is not None:
            from halofeed.inspection.batch_png import write_batch
            from halofeed.inspection.training_batches import TrainingBatches

            # The split with most records has a batch; a small sample may leave another one empty.
            splits = found.sample.manifest.splits
            split = max(splits, key=lambda name: splits[name].records)
            count = min(10, splits[split].records)
            batches = TrainingBatches(split=split, batch_size=count)
            print(write_batch(found.sample.folder, options.preview, batches))
    return 0 if found.sample is not None else 1


def _detect_layout(options: JobOptions, recipe_of: Callable[[str], Recipe]) -> str:
    """Return the name of the layout that the source's files show, and print the reason.

    Args:
        options: options of the run, which name the source.
        recipe_of: function that returns the recipe with a layout.
    """
    from halofeed.prep.layouts.detect import detect_layout

    with require_extra("convert", "apache_beam"), unlogged():
        from halofeed.pipelines.opened_sources import open_sources
    sources = open_sources(options)

    def options_of(layout: str) -> LayoutOptions:
        recipe = recipe_of(layout)
        # DICOM pictures may have names without an extension, so that only their bytes show them.
        is_plain = recipe.rules.kind.name == "picture" and recipe.fit != "tiles"
        selection = recipe.rules.select_files(recipe, sources.images) if is_plain else None
        return recipe.layout_options(options.salt, selection=selection)

    found = detect_layout(sources.annotations, sources.images, sources.annotation_file, options_of)
    print_status(f"layout {found.name}, because {found.reason}")
    return found.name


CONVERT = Command(
    summary="turn images and annotations into sharded TFRecords",
    example=_END,
    add=_add_convert,
    add_saved=_add_saved_convert,
    run=run_convert,
)
