"""Text of the difference between two versions, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halofeed.inspection.compare_versions import ADDED, REMOVED, ExampleChange, ValueChange, VersionDifference
from halofeed.inspection.words import escape_unprintable, table, titled_lines
from halofeed.system.wording import plural

_SHOWN_EXAMPLES = 20
_SHOWN_VALUES = 30
_VALUE_LENGTH = 60
SECTIONS = (
    ("options", "Options"),
    ("classes", "Classes"),
    ("facts", "Other facts"),
    ("rejected", "Rejected inputs"),
    ("statistics", "Statistics"),
)
"""Lists of values of a difference, with their titles."""


def describe_difference(found: VersionDifference) -> str:
    """Return what differs: a line of counts, then each list, with the first of many entries."""
    lines = [head_line(found), f"  {shards_line(found)}"]
    if found.is_empty:
        return escape_unprintable("\n".join([*lines, "  the same records, options, classes and statistics"]))
    if found.examples:
        lines.append(f"  {counts_line(found)}")
    for title, examples in groups_of(found):
        lines += titled_lines(f"{title}: {plural(len(examples), 'example')}", _example_lines(examples))
    for name, title in SECTIONS:
        if values := getattr(found, name):
            lines += titled_lines(title, _value_lines(values))
    return escape_unprintable("\n".join(lines))


def head_line(found: VersionDifference) -> str:
    """Return the names and the numbers of records of both versions."""
    one, other = found.earlier, found.later
    name = one.name if one.name == other.name else f"{one.name} {one.version} and {other.name}"
    versions = f"{one.version} and {other.version}" if one.name == other.name else other.version
    return f"{name} {versions}: {one.records:,} and {plural(other.records, 'record')}"


def shards_line(found: VersionDifference) -> str:
    """Return how many shards both versions have."""
    count, shared = found.shards
    return f"{shared:,} of {plural(count, 'shard')} of {found.later.version} are those of {found.earlier.version}"


def counts_line(found: VersionDifference) -> str:
    """Return the number of examples by kind of change."""
    return ", ".join(f"{count:,} {kind}" for kind, count in found.counts.items())


def groups_of(found: VersionDifference) -> list[tuple[str, list[ExampleChange]]]:
    """Return the examples that were added, removed, moved to another split, and changed; without empty groups."""
    both = [one for one in found.examples if one.before is not None and one.after is not None]
    groups = [
        ("Added", found.of_kind(ADDED)),
        ("Removed", found.of_kind(REMOVED)),
        ("In another split", [one for one in both if one.before != one.after]),
        ("Changed", [one for one in both if one.changes]),
    ]
    return [(title, examples) for title, examples in groups if examples]


def changed_lines(found: VersionDifference, most: int = 8) -> list[str]:
    """Return the counts of added, removed and changed examples, and the first of them, for the end of a conversion."""
    if not found.examples:
        return [f"  from {found.earlier.version}: no example was added, removed or changed"]
    groups = groups_of(found)
    counts = ", ".join(f"{len(examples):,} {title[0].lower()}{title[1:]}" for title, examples in groups)
    lines = [f"  from {found.earlier.version}: {counts}"]
    shown = max(1, most // len(groups))
    rows = [(title.lower(), *example_cells(one)) for title, examples in groups for one in examples[:shown]]
    lines += [f"    {line}" for line in table(("", "id", "source", "split", "change"), rows)[1:]]
    if sum(len(examples) for _, examples in groups) > len(rows):
        lines.append(f"    all: `halofeed diff {found.earlier.folder} {found.later.folder}`")
    return [escape_unprintable(line) for line in lines]


def example_cells(one: ExampleChange) -> tuple[str, str, str, str]:
    """Return the id, the source, the split or both splits, and what changed."""
    splits = one.after or one.before or ""
    if one.before is not None and one.after is not None and one.before != one.after:
        splits = f"{one.before} -> {one.after}"
    return str(one.id), one.source, splits, "; ".join(f"{kind}: {text}" for kind, text in one.changes)


def _example_lines(examples: Sequence[ExampleChange]) -> list[str]:
    rows = [example_cells(one) for one in examples[:_SHOWN_EXAMPLES]]
    more = (
        [f"and {len(examples) - _SHOWN_EXAMPLES:,} more; --json lists all"]
        if len(examples) > len(rows)
        else []
    )
    return [*table(("id", "source", "split", "change"), rows), *more]


def _value_lines(values: Sequence[ValueChange]) -> list[str]:
    rows = [(one.name, value_text(one.before), value_text(one.after)) for one in values[:_SHOWN_VALUES]]
    more = [f"and {len(values) - _SHOWN_VALUES:,} more; --json lists all"] if len(values) > len(rows) else []
    return [*table(("", "before", "now"), rows), *more]


def value_text(value: Any) -> str:
    """Return a value of an option or a statistic as a short text."""
    if value is None:
        return "-"
    text = f"{value:,}" if type(value) is int else str(value)
    return text if len(text) <= _VALUE_LENGTH else f"{text[: _VALUE_LENGTH - 3]}..."
