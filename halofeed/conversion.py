"""Command `convert`, which turns images and annotations into a data set."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import textwrap
from typing import TYPE_CHECKING, Any

from halofeed.errors import UsageError, require_extra
from halofeed.options import add_options, from_options, given_options, option_group
from halofeed.parser import HELP_COLUMNS, AddCommand
from halofeed.system import signals
from halofeed.system.addresses import is_remote
from halofeed.system.console import print_status
from halofeed.training import unlogged

if TYPE_CHECKING:
    from halofeed.pipelines.job import JobOptions
    from halofeed.prep.annotations.contract import LayoutOptions
    from halofeed.prep.options.recipe import Recipe

_EXAMPLES = """\
examples:
  a folder per class:
    halofeed convert --layout folders --source photos --out data --name photos \\
        --height 224 --width 224
  boxes, padded to 640 x 640:
    halofeed convert --layout voc --source cards --out data --name cards --resize keep-aspect \\
        --min-dimension 640 --max-dimension 640 --pad --shards 4
  volumes with masks:
    halofeed convert --layout nnunet --source Dataset009_Spleen --out data --name spleen \\
        --depth 64 --height 128 --width 128 --window abdomen
  clips of 16 frames:
    halofeed convert --layout folders --source videos --out data --name videos --frames 16 \\
        --height 112 --width 112
"""
_END = """
example: on a cluster, where Beam's options follow --
  halofeed convert --layout coco --source gs://bucket/coco --out gs://bucket/data --name coco \\
      --max-rejected 100 -- --runner=DataflowRunner --project=PROJECT --region=europe-west4 \\
      --temp_location=gs://bucket/temporary --extra_package=halofeed-0.1.0-py3-none-any.whl

Killed or failed? Run the same command again: finished shards are kept, and the result is the same.
OUT/NAME/VERSION/rejected.jsonl lists every rejected input with its reason.
"""


def add_convert_command(command: AddCommand, only: str | None = None) -> str | None:
    """Add `convert` to the command line's parser, and return the end of its complete help.

    Args:
        command: function that adds a command by name, summary and example.
        only: command that will run; the options of `convert` take a second to import and are left out for others.
    """
    parser = command("convert", "turn images and annotations into sharded TFRecords", _END)
    if only not in (None, "convert"):
        return None
    from halofeed.pipelines.job import JobOptions
    from halofeed.prep.layouts import LAYOUTS
    from halofeed.prep.options.option import HELP_GROUPS
    from halofeed.prep.options.recipe import Recipe

    names = textwrap.fill(", ".join(LAYOUTS), HELP_COLUMNS - 2, initial_indent="  ", subsequent_indent="  ")
    summaries = "\n".join(f"  {layout.name:<12} {layout.summary}" for layout in LAYOUTS.values())
    parser.epilog = f"layouts, which the complete help describes:\n{names}\n{_END}"
    parser.usage = (
        "halofeed convert --source SOURCE --out OUT --name NAME [--layout LAYOUT] [options]\n"
        f"{'[-- BEAM OPTIONS]':>40}"
    )
    parser.description = f"{parser.description}\n\n{_EXAMPLES}"
    for title in HELP_GROUPS:
        option_group(parser, title)
    option_group(parser, HELP_GROUPS[0]).add_argument(
        "--recipe",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="manifest.json of a data set, options in JSON or YAML, or a pipeline.config; options here win",
    )
    add_options(parser, JobOptions)
    add_options(parser, Recipe)
    return f"layouts:\n{summaries}\n{_END}"


def run_convert(parsed: argparse.Namespace, beam_arguments: list[str]) -> int:
    from halofeed.pipelines.job import JobOptions
    from halofeed.prep.options.recipe import Recipe
    from halofeed.prep.options.recipe_file import read_recipe

    options = from_options(JobOptions, parsed)
    file = getattr(parsed, "recipe", None)
    parsed.repeated = repeated = read_recipe(file) if file else None
    if repeated and repeated.mapped:
        options = dataclasses.replace(options, label_map=options.label_map or repeated.label_map)
        print_status("\n".join(repeated.mapped))
    given = given_options(Recipe, parsed)
    if beam_arguments or any(is_remote(path) for path in (options.source, options.images or "", options.out)):
        with require_extra("convert", "apache_beam"), unlogged():
            from halofeed.pipelines.convert import prepare_stores
        prepare_stores(options, beam_arguments)
    stated = {**repeated.document, **given} if repeated else given
    if stated.get("layout", "auto") == "auto":
        parsed.layout = _detect_layout(options, parsed)
    recipe = _recipe_of(parsed)
    if repeated:
        repeated.check_used(recipe, given)
    else:
        recipe.check_used()
    if stated.get("depth") is not None and not {"height", "width"} <= stated.keys():
        raise UsageError(
            "--depth: volumes have no default size; give --height and --width too. --dry-run without the three "
            "proposes them"
        )
    from halofeed.system.memory import heavy_imports, keep_freed_memory

    with require_extra("convert", "apache_beam"), unlogged(), heavy_imports():
        from halofeed.pipelines.convert import convert
        from halofeed.pipelines.workers import fork_workers
        from halofeed.system.scratch import temporary_files_in_scratch
    from halofeed.pipelines.summary import summary

    if options.dry_run:
        return _dry_run(options, parsed)
    with contextlib.ExitStack() as stack:
        if parsed.alone:
            stack.enter_context(fork_workers(options, recipe, beam_arguments))
            stack.enter_context(temporary_files_in_scratch())
        keep_freed_memory()
        signals.set_stop_message(outlook="the same command resumes where this one ended")
        done = convert(options, recipe, beam_arguments)
    print(summary(done, warn_cut=options.warn_cut, on_loss=options.on_loss))
    if repeated and repeated.labels not in (None, done.manifest.labels):
        print_status(
            f"halofeed convert: the classes differ from those of {repeated.where}; if a file of class "
            "names was given then, give it again"
        )
    return 0


def _recipe_of(parsed: argparse.Namespace, **more: Any) -> Recipe:
    """Return the recipe of a command line with further options."""
    from halofeed.prep.options.recipe import Recipe

    given = {**given_options(Recipe, parsed), **more}
    return parsed.repeated.changed(given) if parsed.repeated else Recipe(**given)


def _dry_run(options: JobOptions, parsed: argparse.Namespace) -> int:
    from halofeed.pipelines.dry_run import dry_run
    from halofeed.system.scratch import scratch_folder

    with scratch_folder() as folder:
        found = dry_run(options, functools.partial(_recipe_of, parsed), folder)
        print(found.text)
        if options.preview is not None and found.sample is not None:
            from halofeed.inspection.batch import write_batch

            splits = found.sample.manifest.splits
            split = max(splits, key=lambda name: splits[name].records)
            count = min(10, splits[split].records)
            print(write_batch(found.sample.folder, options.preview, split=split, batch_size=count))
    return 0 if found.sample is not None else 1


def _detect_layout(options: JobOptions, parsed: argparse.Namespace) -> str:
    """Return the name of the layout that the source's files show, and print the reason."""
    from halofeed.prep.layouts.detect import detect_layout

    with require_extra("convert", "apache_beam"), unlogged():
        from halofeed.pipelines.opened_sources import open_sources
    sources = open_sources(options)

    def options_of(layout: str) -> LayoutOptions:
        return _recipe_of(parsed, layout=layout).layout_options(options.salt)

    found = detect_layout(sources.annotations, sources.images, sources.annotation_file, options_of)
    print_status(f"halofeed convert: --layout {found.name}: {found.reason}")
    return found.name
