"""Commands `diff` and `subset`, which compare versions of a data set and make one of a part of its records."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from halofeed.parser import Command, CommandParser
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
    # The files come first, because a pager that reads the text may end before them.
    if parsed.json not in (None, "-"):
        from halofeed.storage.atomic_files import atomic_write

        atomic_write(parsed.json, f"{text}\n".encode())
    if parsed.html is not None:
        from halofeed.inspection.html.difference_page import write_difference_page

        print_status(f"halofeed diff: {write_difference_page(found, parsed.html)}")
    # A program reads it from standard output, where nothing else may be then.
    print(text if parsed.json == "-" else found)
    return 0


_SUBSET_EXAMPLE = """\
examples:
  halofeed subset data/cards/1.0.0 --where 'class=tumor and boxes>2' --out data --name tumors
  halofeed subset data/cards/1.0.0 --where 'split=train and not source=*_copy.jpg' --out data --version 1.0.1
  halofeed subset data/cards/1.0.0 --where "finding!='blurred picture'" --out data --name sharp

Names: class, split, source, id, width, height, depth, size (the longest side), boxes (their number),
finding, the attributes of boxes (is_crowd, difficult, truncated, category_id, group_of, occluded, view),
and features of records with a slash, such as image/format. Signs: = != < <= > >= in (A, B), not in (A, B).
Join with and, or, not, ( ). Quote values with blanks: class='old coat'. A word without quotes may have *
for any characters.
"""


def _add_subset(parser: CommandParser) -> None:
    parser.add_argument("path", metavar="FOLDER", help="the data set's version folder or address")
    parser.add_argument("--where", required=True, metavar="CONDITION", help="condition that the records meet")
    parser.add_argument(
        "--out",
        required=True,
        metavar="FOLDER",
        help="folder for data sets; this one goes to OUT/NAME/VERSION",
    )
    parser.add_argument("--name", default="", help="the subset's name (default: the data set's)")
    parser.add_argument("--version", default="", help="the subset's version (default: the data set's)")
    parser.add_argument(
        "--findings",
        metavar="FILE",
        help="findings that a condition may name: what `halofeed review --json` wrote, or "
        '{"ID OF A RECORD": ["FINDING", ...], ...} (default: the command reviews the data set)',
    )


def _subset(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.inspection.subset_data import SubsetOptions, read_findings, write_subset

    findings = parsed.findings  # a program may give the mapping itself
    options = SubsetOptions(
        where=parsed.where,
        out=parsed.out,
        name=parsed.name,
        version=parsed.version,
        findings=findings if findings is None or isinstance(findings, Mapping) else read_findings(findings),
    )
    done = parsed.subset = write_subset(parsed.path, options)  # for halofeed.subset
    print(done)
    return 0


DIFF = Command(
    summary="compare two versions of a data set: records, labels, boxes, masks, options and statistics",
    example=_DIFF_EXAMPLE,
    add=_add_diff,
    run=_diff,
)
SUBSET = Command(
    summary="write the records that meet a condition as a new version, which lists its parent",
    example=_SUBSET_EXAMPLE,
    add=_add_subset,
    run=_subset,
)
