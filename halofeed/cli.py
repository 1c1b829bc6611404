"""Command line: `halofeed COMMAND ...`. Each command imports its package when it runs."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import textwrap
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from halofeed import __version__, conversion, planning, training, version_commands
from halofeed.completion import COMPLETION_EXAMPLE, SHELLS, completion_script
from halofeed.options import add_help, option_group
from halofeed.parser import Command, CommandParser, HelpFormatter, join_values
from halofeed.standard_streams import output_error, output_status
from halofeed.system import signals
from halofeed.system.addresses import Address, address_of, is_remote, meant_address
from halofeed.system.console import NORMAL, QUIET, VERBOSE, print_error, status_level
from halofeed.system.errors import HalofeedError, UsageError
from halofeed.system.resource_errors import check_least_memory, describe_error

if TYPE_CHECKING:
    from halofeed.inspection.training_batches import TrainingBatches
    from halofeed.trainer.config import TrainConfig


def main(arguments: Sequence[str] | None = None, *, alone: bool = False) -> int:
    """Run one command and return its exit status: 0 success, 1 the data or the job failed, 2 wrong usage.

    Args:
        arguments: words of the command line; default: those of this process.
        alone: True if this process does nothing else and may fork workers.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parsed = argparse.Namespace(alone=alone, command="", debug=False)
    _register_secrets(given)
    try:
        code = _run(given, parsed)
        if alone and code == 0 and (failed := output_error()) is not None:
            return _output_failed(parsed.command, failed)
        return code
    except Exception as error:
        # A signal may have closed what the error is about; the process then ends with the signal's own status.
        signals.wait_if_ending()
        # A command does not fail because standard output is a closed pipe or a full disk.
        if isinstance(error, OSError) and (failed := output_error()) is not None:
            return _output_failed(parsed.command, failed)
        return _command_failed(parsed, error)
    except KeyboardInterrupt:  # in a program that calls `main` without halofeed's signal handlers
        print_error(f"{_who(parsed.command)}: stopped")
        return 130


def _register_secrets(given: Sequence[str]) -> None:
    """Register the secrets of addresses, which all messages hide, before the first message."""
    for word in given:
        for text in (word, word.partition("=")[2]):
            address_of(text)


def run_and_exit() -> NoReturn:
    """Run the command line and exit, even if a library left a thread running."""
    _take_arguments_as_utf8()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a stream of another class
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # Whoever sets -W or PYTHONWARNINGS wants to see warnings.
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of libraries; ours are status lines
    logging.disable(logging.WARNING)
    os._exit(main(alone=True))


def _take_arguments_as_utf8() -> None:
    """Restart this process in Python's UTF-8 mode if the locale has another encoding.

    Records contain text from the command line (names of classes, patterns), which must not depend on the locale.
    """
    # The mode of PEP 540 is chosen when the interpreter starts. PYTHONUTF8=1 ends the second start here.
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get("PYTHONUTF8") == "1" or not sys.executable:
        return
    os.environ["PYTHONUTF8"] = "1"
    with (
        contextlib.suppress(OSError),
        signals.block_signals(),
    ):  # until the new process calls `install_handlers`
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - no shell is needed


def _run(given: list[str], parsed: argparse.Namespace) -> int:
    """Parse the command line into the namespace and run its command."""
    beam_arguments: list[str] = []
    # argparse would take the words after -- for positional arguments; they are Beam's.
    if "--" in given:
        cut = given.index("--")
        given, beam_arguments = given[:cut], given[cut + 1 :]
    parsed.command = next((word for word in given[:1] if word in _COMMANDS), "")
    # NumPy, OpenCV, Arrow and XLA crash without address space, so the limit is checked before they are imported.
    check_least_memory(parsed.command)
    named = next((word for word in given if word in _COMMANDS), "")
    shows_help = not {"-h", "--help", "--help-all"}.isdisjoint(given)
    try:
        only = None if given[:1] == ["--help-all"] else named
        _parser(only, saved=shows_help).parse_args(join_values(given), parsed)
    except SystemExit as stop:  # argparse ends --help, --version and errors by it
        return int(stop.code or 0)
    signals.set_stop_message(_who(parsed.command))
    if beam_arguments and parsed.command != "convert":
        raise UsageError("only convert takes options after --")
    return _dispatch(parsed, beam_arguments)


def _dispatch(parsed: argparse.Namespace, beam_arguments: Sequence[str]) -> int:
    _refuse_addresses(parsed)
    # The address carries the hosts to which its server may redirect; by default that is only itself.
    if hasattr(parsed, "redirects") and is_remote(parsed.path):
        hosts = tuple(filter(None, map(str.strip, parsed.redirects.split(","))))
        parsed.path = Address(parsed.path, hosts)
    for name in ("path", "data", "other"):
        path = getattr(parsed, name, None)
        # data/cards means data/cards/1.0.0 if that is its only version.
        if isinstance(path, str) and os.path.isdir(path) and not os.path.exists(f"{path}/manifest.json"):
            from halofeed.schemas.manifest import only_version

            setattr(parsed, name, only_version(path))
    # C++ libraries (TensorFlow, XLA) print banners, and XLA a warning about slow compilations; their errors are raised.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    level = QUIET if parsed.quiet else VERBOSE if parsed.verbose else NORMAL
    with status_level(level):
        return _COMMANDS[parsed.command].run(parsed, list(beam_arguments))


def options_of(command: str) -> dict[str, argparse.Action]:
    """Return the actions of a command by option, such as --layout."""
    return command_parser(command)._option_string_actions


def run_command(
    command: str, values: Mapping[str, Any], beam_arguments: Sequence[str] = ()
) -> argparse.Namespace:
    """Run a command for a program with values that were checked, and return what it made of them.

    Args:
        command: name of the command.
        values: value of each argument by the name that a parsed command line has for it.
        beam_arguments: Beam's own options.

    Raises:
        UsageError: a value is wrong; and what the command raises.
    """
    parsed = argparse.Namespace(alone=False, command=command, **values)
    _dispatch(parsed, beam_arguments)
    return parsed


_LOCAL_PATHS = (
    *("run", "out", "output", "source", "sources", "json", "html", "folder", "config"),
    *("backbone_weights", "init", "compile_cache", "findings"),
)
"""Arguments that must be local paths in all commands except convert."""


def _refuse_addresses(parsed: argparse.Namespace) -> None:
    """Refuse addresses for local paths, and with one slash, where a folder `s3:` would be made otherwise."""
    for name, value in vars(parsed).items():
        if isinstance(value, str) and (meant := meant_address(value)) is not None:
            flag = "" if name in ("path", "data", "other", "run") else f"--{name.replace('_', '-')} "
            raise UsageError(
                f"{flag}{value}: an address has two slashes; write {meant}, or ./{value} for a path"
            )
    for name in _LOCAL_PATHS if parsed.command != "convert" else ():
        value = getattr(parsed, name, None)
        # Only `convert` writes to stores; the others open these files on local disks.
        if isinstance(value, str) and (address := address_of(value)) is not None:
            flag = name if name == "run" else f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{flag} {address}: expected a path on local disk, got an address; copy it there, and name the copy"
            )


def _command_failed(parsed: argparse.Namespace, error: Exception) -> int:
    """Print an error that is being handled, with --debug its traceback too; return the exit status."""
    if parsed.debug:
        print_error(traceback.format_exc().rstrip())
    if not isinstance(error, HalofeedError):
        text = describe_error(error)
        # An error without a message tells a user nothing, so print the traceback.
        raw = text.startswith(f"{type(error).__name__}: ")
        error = HalofeedError(f"{text} (--debug shows where)" if raw else text)
    return _fail(parsed.command, error)


def _fail(command: str, error: HalofeedError) -> int:
    lines = str(error).splitlines() or [type(error).__name__]
    print_error("\n".join([f"{_who(command)}: {lines[0]}", *(f"  {line}" for line in lines[1:])]))
    return error.exit_code


def _output_failed(command: str, error: OSError) -> int:
    status, text = output_status(error)
    if text is not None:
        print_error(f"{_who(command)}: {text}")
    return status


def _who(command: str) -> str:
    return f"halofeed {command}".strip()


def _parser(only: str | None = None, *, saved: bool = False) -> argparse.ArgumentParser:
    """Return the parser of all commands.

    Args:
        only: command that will run; the parser has only its options. "" means no command, and None means all.
        saved: for a help text, use the saved rows of options, which takes a third of the time.
    """
    parser = CommandParser(
        prog="halofeed",
        description="From camera and scanner files to spatially partitioned training steps.",
        epilog="`halofeed COMMAND --help` shows an example of each. `halofeed demo` runs all steps.",
        formatter_class=HelpFormatter,
        add_help=False,
    )
    parser.add_argument("--version", action="version", version=f"halofeed {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in _COMMANDS.items():
        added = commands.add_parser(name, help=command.summary, **_texts(command))
        if only in (None, name):
            _add_arguments(added, name, saved=saved)
    add_help(parser, parser)
    return parser


def command_parser(name: str) -> CommandParser:
    """Return the parser of one command, without those of the others."""
    parser = CommandParser(prog=f"halofeed {name}", **_texts(_COMMANDS[name]))
    _add_arguments(parser, name)
    return parser


def _texts(command: Command) -> dict[str, Any]:
    return {
        "description": command.summary[0].upper() + command.summary[1:] + ".",
        "epilog": textwrap.dedent(command.example),
        "formatter_class": HelpFormatter,
        "allow_abbrev": False,
        "add_help": False,
    }


def _add_arguments(parser: CommandParser, name: str, *, saved: bool = False) -> None:
    """Add all arguments of a command to its parser."""
    command = _COMMANDS[name]
    (command.add_saved if saved and command.add_saved else command.add)(parser)
    add_common(parser, "running" if name == "convert" else "")


def add_common(parser: CommandParser, title: str = "") -> None:
    """Add the options that every command has, to the group of this title if there is one."""
    group: Any = option_group(parser, title) if title else parser
    how = group.add_mutually_exclusive_group()
    how.add_argument("-q", "--quiet", action="store_true", help="print results and errors, and no status")
    how.add_argument("-v", "--verbose", action="store_true", help="print more of what is done, with times")
    group.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    add_help(parser, group, parser.full_epilog)


def _add_verify(parser: CommandParser) -> None:
    parser.add_argument(
        "path", metavar="FOLDER", help="the data set's version folder or address, e.g. data/cards/1.0.0"
    )
    _add_redirects(parser)


def _add_review(parser: CommandParser) -> None:
    parser.add_argument("path", metavar="FOLDER", help="the data set's version folder or address")
    _add_redirects(parser)
    parser.add_argument(
        "--json", metavar="FILE", help="write all that was found as JSON; - for standard output"
    )
    parser.add_argument(
        "--show", type=int, default=5, metavar="N", help="suspects of each kind to list (default: 5)"
    )
    group = parser.add_argument_group("likely label faults, by what trained runs predict")
    group.add_argument(
        "--run",
        metavar="RUN",
        help="the folder that `halofeed train --out` made; several with commas, such as one for each fold: each split "
        "is predicted by the first run that was not trained on it",
    )
    group.add_argument("--split", default="", help="search label faults in this split only (default: all)")
    group.add_argument(
        "--checkpoint", default="best", metavar="WHICH", help="best, last or a step (default: best)"
    )


def _add_inspect(parser: CommandParser) -> None:
    parser.add_argument("path", metavar="FOLDER", help="the data set's version folder or address")
    _add_redirects(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--record", metavar="SPLIT:NUMBER", help="show one record, counted from 0")
    shown.add_argument(
        "--parser",
        action="store_true",
        help="print a Python function that reads the records with TensorFlow alone",
    )


def _add_report(parser: CommandParser) -> None:
    parser.add_argument(
        "path", metavar="FOLDER", help="the data set's version folder or address, or a run's folder"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="default: VERSION-report.html beside the version's folder; report.html in a run's",
    )
    parser.add_argument(
        "--sources",
        "--source",
        metavar="FOLDER",
        help="the folder of the source pictures, to show them beside the stored ones; default: the folder from which "
        "this machine converted them; without one they are not shown",
    )
    _add_redirects(parser)
    parser.add_argument(
        "--samples",
        type=int,
        default=12,
        metavar="N",
        help="samples to show beside their sources; 0 for a report without pictures (default: 12)",
    )
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="show likely label faults first, by what runs of `halofeed train` predict; several with commas, as in "
        "`halofeed review --run`",
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="write no file; serve pages of all records with search and filter to a browser of this machine, until "
        "Ctrl-C",
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="of --serve; default: any free port")


def _add_show(parser: CommandParser) -> None:
    _add_batches(parser, 8, "augmentations, batch size and partition are shown")
    parser.add_argument(
        "--step", type=int, default=0, metavar="N", help="number of the batch, from 0 (default: 0)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="default: the config's, or 0")
    parser.add_argument(
        "--partition", metavar="PARTS", help="parts along each axis of the image, such as image=1,4,1,1"
    )
    parser.add_argument(
        "--side",
        type=int,
        default=320,
        metavar="PIXELS",
        help="the longer side of each image shown (default: 320)",
    )
    parser.add_argument(
        "--output", "-o", default="batch.png", metavar="FILE", help="a .png (default: batch.png)"
    )


def _add_bench(parser: CommandParser) -> None:
    _add_batches(parser, 32, "augmentations and batch size are used")
    parser.add_argument(
        "--seconds",
        type=float,
        default=1.0,
        metavar="S",
        help="duration of each part in each of 3 rounds (default: 1)",
    )
    parser.add_argument(
        "--appetite",
        type=float,
        metavar="N",
        help="images/s that one accelerator consumes, to compute how many accelerators this host feeds",
    )


def _add_demo(parser: CommandParser) -> None:
    parser.add_argument("--folder", default="demo", help="folder of all files (default: demo)")
    parser.add_argument("--images", type=int, default=400, help="number of pictures (default: 400)")


def _add_package(parser: CommandParser) -> None:
    parser.add_argument("--output", default=".", metavar="FOLDER", help="output folder (default: here)")


def _add_completion(parser: CommandParser) -> None:
    parser.add_argument("shell", choices=tuple(SHELLS), help="the shell")


def _add_redirects(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--redirects",
        default="",
        metavar="HOST,HOST",
        help="http addresses: hosts to which the server may redirect, or * for any (default: only itself)",
    )


def _add_batches(parser: argparse.ArgumentParser, batch_size: int, recipe_use: str) -> None:
    """Add the options that select the data and the form of batches, see `_batch_options`."""
    parser.add_argument("path", metavar="FOLDER", help="the data set's version folder or address")
    parser.add_argument("--split", default="train", help="name of the split (default: train)")
    parser.add_argument("--batch-size", type=int, metavar="N", help=f"default: the config's, or {batch_size}")
    parser.add_argument("--config", metavar="NAME", help=f"a training recipe, whose {recipe_use}")
    _add_redirects(parser)


def _verify(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.inspection.verify import verify

    report = verify(parsed.path)
    print(report)
    return 0 if report.ok else 1


def _review(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.inspection.review.review import review_dataset
    from halofeed.storage.atomic_files import atomic_write

    if parsed.show < 0:
        raise UsageError(f"--show {parsed.show}: expected 0 or more")
    with contextlib.ExitStack() as stack:
        predicted = None
        if parsed.run is not None:
            predicted = stack.enter_context(training.reviewed_predictions(parsed))
        elif parsed.split or parsed.checkpoint != "best":
            raise UsageError("--split and --checkpoint: are of the predictions of a run; add --run RUN")
        parsed.review = review_dataset(parsed.path, predicted)
    text = json.dumps(parsed.review.to_json(), indent=1)
    if parsed.json == "-":
        print(text)
        return 0
    if parsed.json is not None:
        training.check_file("--json", parsed.json)
        atomic_write(Path(parsed.json), f"{text}\n".encode())
    print(parsed.review.text(parsed.show))
    return 0


def _inspect(parsed: argparse.Namespace, _: list[str]) -> int:
    if parsed.parser:
        from halofeed.inspection.describe_dataset import parser_code

        print(parser_code(parsed.path), end="")
        return 0
    from halofeed.inspection.describe_dataset import describe_dataset, describe_record

    print(
        describe_dataset(parsed.path)
        if parsed.record is None
        else describe_record(parsed.path, parsed.record)
    )
    return 0


def _report(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.schemas.file_layout import RUN_FILE

    if parsed.serve:
        return _serve_records(parsed)
    if parsed.port:
        raise UsageError(f"--port {parsed.port}: only --serve has a port; add --serve")
    # The folder of a run has this file; that of a data set has a manifest.
    if os.path.isfile(os.path.join(parsed.path, RUN_FILE)):
        if parsed.run is not None:
            raise UsageError(
                f"--run {parsed.run}: {parsed.path} is a run; name the folder of a data set before it"
            )
        from halofeed.inspection.html.run_report import write_run_report

        print(write_run_report(parsed.path, parsed.output))
        return 0
    from halofeed.inspection.html.report import write_report

    with contextlib.ExitStack() as stack:
        predicted = None
        if parsed.run is not None:
            parsed.split, parsed.checkpoint = "", "best"
            predicted = stack.enter_context(training.reviewed_predictions(parsed))
        options = {"output": parsed.output, "sources": parsed.sources, "samples": parsed.samples}
        print(write_report(parsed.path, **options, predicted=predicted, runs=parsed.run or ""))
    return 0


def _serve_records(parsed: argparse.Namespace) -> int:
    """Serve pages of a data set's records until a signal ends the process."""
    from halofeed.inspection.serve.record_server import RecordServer
    from halofeed.inspection.serve.served_set import ServedSet

    if parsed.output is not None:
        raise UsageError(f"--output {parsed.output}: --serve writes no file; leave one of them away")
    if parsed.run is not None:
        raise UsageError(f"--run {parsed.run}: --serve shows no label faults; leave --serve away to see them")
    with RecordServer(ServedSet(parsed.path), parsed.port) as server:
        print(
            f"{parsed.path}: open {server.address} in a browser of this machine; Ctrl-C ends it", flush=True
        )
        server.serve_forever()
    return 0


def _batch_options(parsed: argparse.Namespace, batch_size: int) -> tuple[TrainConfig | None, TrainingBatches]:
    """Return the training recipe of --config, if there is one, and the options of the batches."""
    from halofeed.inspection.training_batches import TrainingBatches
    from halofeed.trainer.platform import configure_platform

    configure_platform(None)  # before an augmentation imports JAX, which reads the variables once
    config = None
    if parsed.config:
        from halofeed.trainer.config import load_config

        config = load_config(parsed.config)
    device_augment = config.device_augment if config else ()
    return config, TrainingBatches(
        split=parsed.split,
        batch_size=_or_default(parsed.batch_size, config.batch_size if config else batch_size),
        augment=config.loader_augment() if config else (),
        device_augment=device_augment,
        values=_value_range(config, parsed) if config and device_augment else None,
    )


def _value_range(config: TrainConfig, parsed: argparse.Namespace) -> tuple[float, float] | None:
    """Return the values of black and white for augmentations on the device; None if the stored type defines them."""
    from halofeed.loader.store.open_store import open_store
    from halofeed.trainer.task import data_facts
    from halofeed.trainer.training_setup import normalization_of

    manifest = open_store(parsed.path).manifest()
    # Stored bytes have black at 0 and white at 255; other types have no such fixed values.
    if manifest.field("image").dtype == "uint8":
        return None
    return normalization_of(config, data_facts(manifest, parsed.split)).values()


def _show(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.inspection.batch_png import write_batch

    if not 16 <= parsed.side <= 4096:
        raise UsageError(f"--side {parsed.side}: expected 16 to 4096 pixels")
    config, batches = _batch_options(parsed, 8)
    file = write_batch(
        parsed.path,
        parsed.output,
        batches,
        step=parsed.step,
        seed=_or_default(parsed.seed, config.seed if config else 0),
        partition=parsed.partition or (config.partition if config else ""),
        side=parsed.side,
    )
    print(file)
    return 0


def _or_default(given: int | None, default: int) -> int:
    return default if given is None else given


def _bench(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.inspection.bench import bench

    if parsed.appetite is not None and parsed.appetite <= 0:
        raise UsageError(f"--appetite {parsed.appetite:g}: expected images per second above 0")
    batches = _batch_options(parsed, 32)[1]
    found = bench(parsed.path, batches, seconds=parsed.seconds)
    print(found, *([] if parsed.appetite is None else [found.feeds(parsed.appetite)]), sep="\n")
    return 0


def _demo(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.demo import run_demo

    return run_demo(parsed.folder, images=parsed.images)


def _package(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.packaging import write_packages

    print(*write_packages(parsed.output), sep="\n")
    return 0


def _completion(parsed: argparse.Namespace, _: list[str]) -> int:
    print(completion_script(parsed.shell, _parser()), end="")
    return 0


_COMMANDS: dict[str, Command] = {
    "convert": conversion.CONVERT,
    "verify": Command(
        summary="check every checksum, record, index entry and promise of a data set",
        example="example:\n  halofeed verify data/cards/1.0.0      # exit 1 and the location, if anything is wrong",
        add=_add_verify,
        run=_verify,
    ),
    "review": Command(
        summary="search a data set for what may hurt training: copies, leaks, outliers, likely label faults",
        example="examples:\n  halofeed review data/cards/1.0.0\n  halofeed review data/cards/1.0.0 --json found.json"
        "\n  halofeed review data/cards/1.0.0 --run runs/cards",
        add=_add_review,
        run=_review,
    ),
    "inspect": Command(
        summary="describe a data set, or one record of it",
        example="examples:\n  halofeed inspect data/cards/1.0.0\n  halofeed inspect data/cards/1.0.0 --record train:17",
        add=_add_inspect,
        run=_inspect,
    ),
    "report": Command(
        summary="write one self-contained HTML file about a data set or a training run",
        example="""\
        examples:
          halofeed report data/cards/1.0.0 --output cards.html
          halofeed report data/cards/1.0.0 --serve      # pages through all records in a browser
          halofeed report runs/cards""",
        add=_add_report,
        run=_report,
    ),
    "show": Command(
        summary="draw a batch as a model gets it: augmented, with boxes, masks, names and the borders between cores",
        example="""\
        examples:
          halofeed show data/cards/1.0.0                                     # the first batch, into batch.png
          halofeed show data/cards/1.0.0 --config retinanet_small --step 12 --output step12.png
          halofeed show data/spleen/1.0.0 --batch-size 2 --partition image=1,4,1,1,1""",
        add=_add_show,
        run=_show,
    ),
    "bench": Command(
        summary="measure how fast this host feeds a trainer from a data set, and find the bottleneck",
        example="""\
        examples:
          halofeed bench data/cards/1.0.0
          halofeed bench data/coco640/1.0.0 --config retinanet_resnet50_fpn_640 --appetite 300""",
        add=_add_bench,
        run=_bench,
    ),
    "diff": version_commands.DIFF,
    "subset": version_commands.SUBSET,
    **training.COMMANDS,
    "plan": planning.PLAN,
    "demo": Command(
        summary="draw pictures and CT scans and run all steps on them: convert, verify, load, train, report",
        example="example:\n  halofeed demo --folder demo",
        add=_add_demo,
        run=_demo,
    ),
    "package": Command(
        summary="write halofeed's wheel and sdist for Beam's --extra_package",
        example="""\
        example:
          halofeed package --output .
          halofeed convert ... -- --runner=DataflowRunner --extra_package=halofeed-0.1.0-py3-none-any.whl""",
        add=_add_package,
        run=_package,
    ),
    "completion": Command(
        summary="print the script that completes halofeed's words in a shell",
        example=COMPLETION_EXAMPLE,
        add=_add_completion,
        run=_completion,
    ),
}
"""Every command by name, in the order of the help."""
