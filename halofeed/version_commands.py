"""Commands `diff` and `subset`, which compare versions of a data set and make one of a part of its records."""

from __future__ import annotations

import argparse
import json

from halofeed.parser import Command, CommandParser
from halofeed.storage.atomic_files import atomic_write
from halofeed.system.console import print_status
from halofeed.training import check_file

_DIFF_EXAMPLE = """\
examples:
  halofeed diff data/cards/1.0.0 data/cards/1.1.0
  halofeed diff data/cards/1.0.0 data/cards/1.1.0 --html difference.html --json difference.json
"""


def _add_diff(parser: CommandParser) -> None:
    parser.add_argument("path", metavar="EARLIER", help="folder or address of the earlier version")
    parser.add_argument("other", metavar="LATER", help="folder or address of the later version")
    parser.add_argument(
        "--json", metavar="FILE", help="write all differences into this file; - prints only them"
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write a page into this file, which loads nothing else"
    )


def _diff(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.inspection.compare_versions import compare_versions

    check_file("--json", parsed.json)  # before minutes of work
    check_file("--html", parsed.html)
    found = parsed.difference = compare_versions(parsed.path, parsed.other)  # for halofeed.diff
    text = json.dumps(found.to_json(), indent=1)
    # A program reads it from standard output, where nothing else may be then.
    print(text if parsed.json == "-" else found)
    if parsed.json not in (None, "-"):
        atomic_write(parsed.json, f"{text}\n".encode())
    if parsed.html is not None:
        from halofeed.inspection.html.difference_page import write_difference_page

        page = write_difference_page(found, parsed.html)
        print_status(f"halofeed diff: {page}")
    return 0


COMMANDS = {
    "diff": Command(
        summary="compare two versions of a data set: records, labels, boxes, masks, options and statistics",
        example=_DIFF_EXAMPLE,
        add=_add_diff,
        run=_diff,
    ),
}
