"""Difference between two versions of a data set, and its text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from halofeed.inspection.words import escape_unprintable, table, titled_lines
from halofeed.system.wording import plural

ADDED, REMOVED = "added", "removed"
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


@dataclass(frozen=True, kw_only=True)
class ComparedVersion:
    """Name, version, folder and number of records of one of the two versions."""

    name: str
    version: str
    folder: str
    records: int


@dataclass(frozen=True, kw_only=True)
class ValueChange:
    """Value that differs between two versions: its name, and the values before and now; None for one that lacks it."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, kw_only=True)
class ExampleChange:
    """Example that is not the same in both versions.

    Args:
        id: id of the record.
        source: file of the source.
        before, after: split in the earlier and in the later version; None where it is not in that version.
        changes: (kind, what changed) of each change of its record.
    """

    id: int
    source: str
    before: str | None
    after: str | None
    changes: tuple[tuple[str, str], ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of its changes, each once: added, removed, split, pixels, label, boxes, mask and others."""
        if self.before is None or self.after is None:
            return (ADDED if self.before is None else REMOVED,)
        moved = ("split",) if self.before != self.after else ()
        return tuple(dict.fromkeys([*moved, *(kind for kind, _ in self.changes)]))


@dataclass(frozen=True, kw_only=True)
class VersionDifference:
    """Everything in which two versions of a data set differ.

    Args:
        earlier, later: the two versions.
        shards: number of shards of the later version, and how many of them the earlier one has, too.
        facts: other facts of the manifests: the name, the task, fields, and the halofeed that wrote them.
        options: options of the recipe.
        classes: names of classes by number.
        statistics: figures of the statistics, by split and name.
        rejected: number of rejected inputs by reason.
        examples: examples that were added, removed, moved to another split or changed, by id.
    """

    earlier: ComparedVersion
    later: ComparedVersion
    shards: tuple[int, int]
    facts: tuple[ValueChange, ...]
    options: tuple[ValueChange, ...]
    classes: tuple[ValueChange, ...]
    statistics: tuple[ValueChange, ...]
    rejected: tuple[ValueChange, ...]
    examples: tuple[ExampleChange, ...]

    @property
    def is_empty(self) -> bool:
        """Return whether the two versions hold the same."""
        parts = (self.facts, self.options, self.classes, self.statistics, self.rejected, self.examples)
        return not any(parts)

    def of_kind(self, kind: str) -> list[ExampleChange]:
        """Return the examples with a change of one kind, see `ExampleChange.kinds`."""
        return [one for one in self.examples if kind in one.kinds]

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of examples by kind of change."""
        return dict(Counter(kind for one in self.examples for kind in one.kinds))

    def to_json(self) -> dict[str, Any]:
        """Return the difference as plain JSON values."""
        lists = ("facts", "options", "classes", "statistics", "rejected")
        return {
            "earlier": vars(self.earlier),
            "later": vars(self.later),
            "shards": {"count": self.shards[0], "shared": self.shards[1]},
            **{name: [vars(one) for one in getattr(self, name)] for name in lists},
            "counts": self.counts,
            "examples": [
                {
                    **vars(one),
                    "kinds": list(one.kinds),
                    "changes": [{"kind": kind, "text": text} for kind, text in one.changes],
                }
                for one in self.examples
            ],
        }

    def __str__(self) -> str:
        return describe_difference(self)


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


def version_names(found: VersionDifference) -> tuple[str, str]:
    """Return the shortest names that differ: versions, else names and versions, else folders."""
    pair = found.earlier, found.later
    for named in (
        [one.version for one in pair],
        [f"{one.name} {one.version}" for one in pair],
        [one.folder for one in pair],
    ):
        # A version number alone says little of two data sets.
        if named[0] != named[1] and (pair[0].name == pair[1].name or " " in named[0]):
            return named[0], named[1]
    return named[0], named[1]


def head_line(found: VersionDifference) -> str:
    """Return the names and the numbers of records of both versions."""
    earlier, later = version_names(found)
    is_of_one = found.earlier.name == found.later.name and found.earlier.version != found.later.version
    name = f"{found.earlier.name} " if is_of_one else ""
    counts = f"{found.earlier.records:,} and {plural(found.later.records, 'record')}"
    return f"{name}{earlier} and {later}: {counts}"


def shards_line(found: VersionDifference) -> str:
    """Return how many shards both versions have."""
    count, shared = found.shards
    earlier, later = version_names(found)
    return f"{shared:,} of {plural(count, 'shard')} of {later} are those of {earlier}"


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
