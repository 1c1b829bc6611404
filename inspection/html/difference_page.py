"""HTML page of the difference between two versions, one file that loads nothing."""

from __future__ import annotations

import os
from pathlib import Path

from halofeed.inspection.html.page import check_output, write_page
from halofeed.inspection.version_difference import (
    SECTIONS,
    VersionDifference,
    example_cells,
    groups_of,
    head_line,
    shards_line,
    value_text,
    version_names,
)
from halofeed.system.wording import plural

_SHOWN = 500
"""Rows of a table. A page of 10,000 takes a browser seconds."""


def write_difference_page(found: VersionDifference, output: str | os.PathLike[str]) -> Path:
    """Write the difference between two versions as one self-contained HTML file.

    Raises:
        UsageError: the file cannot be written.
    """
    file = Path(output)
    check_output(file, "difference.html")
    one, other = found.earlier, found.later
    name = one.name if one.name == other.name else f"{one.name} and {other.name}"
    names = version_names(found)
    examples = [
        (
            _anchor(title),
            title,
            _lead(len(rows), "example"),
            [example_cells(row) for row in rows[:_SHOWN]],
        )
        for title, rows in groups_of(found)
    ]
    values = [
        (
            name_of_list,
            title,
            _lead(len(rows), "value"),
            [(row.name, value_text(row.before), value_text(row.after)) for row in rows[:_SHOWN]],
        )
        for name_of_list, title in SECTIONS
        if (rows := getattr(found, name_of_list))
    ]
    return write_page(
        file,
        "difference.html",
        "report.css",
        found=found,
        name=name,
        title=f"{name}: {names[0]} and {names[1]}",
        names=names,
        head=head_line(found),
        shards=shards_line(found),
        figures=[(f"{count:,}", kind) for kind, count in found.counts.items()],
        examples=examples,
        values=values,
    )


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _lead(count: int, noun: str) -> str:
    """Return how many rows a table has, and how many of them are shown."""
    every = f"{plural(count, noun)}."
    return f"The first {_SHOWN:,} of {every} --json lists all." if count > _SHOWN else every
