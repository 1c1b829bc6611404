"""Advice in messages: every option that a message names exists, and what it suggests works when it is typed."""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from halofeed.cli import _parser, main
from tests.mistakes import test_command_mistakes as commands
from tests.mistakes import test_picture_mistakes as pictures
from tests.mistakes import test_table_mistakes as tables
from tests.support.mistakes import Mistake

ROOT = Path(__file__).parents[2]
FOLDERS = ("prep", "pipelines", "loader", "inspection", "trainer", "schemas", "halofeed")
OF_OTHER_TOOLS = {
    # Beam's and its workers'
    *("--runner", "--setup_file", "--extra_package", "--id", "--provision_endpoint", "--direct_num_workers"),
    *("--direct_running_mode", "--template_location", "--dry_run", "--job_endpoint"),
    # XLA's; and the name of a variable of CSS
    *("--xla_force_host_platform_device_count", "--on"),
}
ONLY_OF = {"inspection/batch.py": "show", "inspection/bench.py": "bench"}
"""Modules that serve one command."""


def options_of_commands() -> dict[str, set[str]]:
    commands_action = next(
        action for action in _parser(None)._actions if isinstance(action, argparse._SubParsersAction)
    )
    return {name: set(parser._option_string_actions) for name, parser in commands_action.choices.items()}


def advised(file: Path) -> Iterator[tuple[int, str]]:
    """The line and name of each option in a string of a module, documentation left out."""
    tree = ast.parse(file.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            for found in re.finditer(r"(?<![\w-])--[a-z][a-z_-]*[a-z]", node.value):
                yield node.lineno, found[0]


def test_every_option_that_a_message_names_is_one_of_its_command() -> None:
    by_command = options_of_commands()
    anywhere = set().union(*by_command.values()) | OF_OTHER_TOOLS
    wrong = []
    for folder in FOLDERS:
        for file in sorted(
            (ROOT / folder).glob("**/*.py") if folder != "halofeed" else (ROOT / folder).glob("*.py")
        ):
            name = str(file.relative_to(ROOT))
            known = by_command[ONLY_OF[name]] if name in ONLY_OF else anywhere
            wrong += [f"{name}:{line}: {option}" for line, option in advised(file) if option not in known]
    assert not wrong, "\n".join(wrong)


CURES: dict[str, tuple[Mistake, str]] = {
    name: (module.MISTAKES[name], pattern)
    for module, patterns in {
        pictures: {
            "VOC as class folders": "take (--layout voc)",
            "COCO as class folders": "take (--layout coco)",
            "VOC as COCO": "take (--layout voc)",
            "COCO as VOC": "take (--layout coco)",
            "class folders as VOC": "take (--layout folders)",
            "class folders as COCO": "take (--layout folders)",
            "the folder above class folders": "say (--folders-are-classes)",
            "splits beside classes": "say with (--split-folders) yes or (no)",
            "masks of VOC": "(--masks).*leave it out",
            "masks asked for of boxes": "leave (--masks) out",
            "an option of another layout": "(--image-sets) has no effect.*leave it out",
            "image sets where there are none": "leave (--image-sets) out",
            "keeping keypoints of annotations without": "(--keep) keypoints.*leave it out",
        },
        tables: {
            "two classes in one cell": r"say (--class-separator) '(\|)'",
            "boxes of 0 and 1 alone": "(--box-units pixels)",
            "corners under COCO's bbox": "(--box-form corners)",
            "turned boxes in COCO": "(--ignore-columns rotation)",
            "VOC that counts from 0": "(--box-origin 0)",
            "an option of tables for VOC": "(--box-form) has no effect.*leave it out",
        },
        commands: {"--depth on pictures": "(--depth).*leave"},
    }.items()
    for name, pattern in patterns.items()
}
"""Of a mistake the words of its message that are to be typed; an option alone, with "leave", is taken away."""


def cured(words: list[str], found: re.Match[str]) -> list[str]:
    """The command with what the message suggests."""
    option, *value = " ".join(filter(None, found.groups())).split(" ")
    kept = list(words)
    if option in kept:
        at = kept.index(option)
        kept[at : at + (2 if at + 1 < len(kept) and not kept[at + 1].startswith("--") else 1)] = []
    return (
        kept if "leave" in found.string[max(0, found.start() - 6) : found.end()] else [*kept, option, *value]
    )


def run(words: list[str]) -> tuple[int, str]:
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        return main(words), errors.getvalue()


@pytest.mark.parametrize("name", CURES)
def test_what_a_message_suggests_works_when_it_is_typed(tmp_path: Path, name: str) -> None:
    mistake, pattern = CURES[name]
    (tmp_path / "source").mkdir()
    given = [*map(str, mistake.prepare(tmp_path / "source")), "--out", str(tmp_path / "out"), "--name", "set"]
    code, message = run(["convert", *given])
    found = re.search(pattern, message)
    assert code == mistake.exit_code and found, message
    code, message = run(["convert", *cured(given, found)])
    assert code == 0, message
