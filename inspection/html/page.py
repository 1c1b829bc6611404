"""What is a data set's report made of? The facts, the folder, and the records that are shown.

How values become one self-contained page: templates that escape all text, with the styles inside.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup

from halofeed.errors import UsageError
from halofeed.inspection.candidates import Candidate, choose_samples, find_candidates
from halofeed.inspection.dataset_facts import DatasetFacts
from halofeed.inspection.dataset_files import DatasetFiles
from halofeed.inspection.display import Display, display_of
from halofeed.inspection.html import charts
from halofeed.inspection.samples import thumbnail_side
from halofeed.inspection.words import escape_unprintable, percent, plural
from halofeed.loader.picture import color_of
from halofeed.system.atomic_files import atomic_write
from halofeed.system.console import human_bytes

_LARGEST_THUMBNAIL, _SMALLEST_THUMBNAIL = 360, 160


@dataclass(frozen=True, kw_only=True)
class Report:
    """What is reported of: the facts, and which records are shown.

    Args:
        folder: of the data set.
        sources: the folder of the source pictures, where the user names it.
        samples: how many records are shown.
    """

    facts: DatasetFacts
    folder: DatasetFiles
    sources: str | None
    samples: int

    @cached_property
    def chosen(self) -> list[tuple[Candidate, str | None]]:
        """The records that are shown, and what is awkward of each."""
        if not self.samples:
            return []
        found = find_candidates(self.folder, self.facts.manifest)
        return choose_samples(found, self.samples, detection=self.facts.task.has_boxes)

    @property
    def side(self) -> int:
        """The longer side of a sample's picture."""
        return thumbnail_side(len(self.chosen), _LARGEST_THUMBNAIL, _SMALLEST_THUMBNAIL)

    @cached_property
    def display(self) -> Display:
        """How volumes are shown."""
        return display_of(self.facts.manifest, self.facts.total)


class _Layout(Extension):
    """A line break of a template beside a tag is no part of the page, and one within text is a space."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        joined = re.sub(r"(?<=[>}])\s*\n\s*|\s*\n\s*(?=[<{])", "", source.strip())
        return re.sub(r"\s*\n\s*", " ", joined)


@functools.cache
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("halofeed.inspection.html"),
        autoescape=True,
        undefined=StrictUndefined,
        extensions=["jinja2.ext.do", _Layout],
    )
    found.globals.update(charts=charts, quoted=repr)
    found.filters.update(
        plural=plural, percent=percent, size=human_bytes, color=color_of, commas="{:,}".format, times=times
    )
    return found


def times(sides: Any, each: str = "") -> str:
    """Sizes with a sign between them.

    >>> times((2, 3)), times((2.5, 3.0), "g")
    ('2 × 3', '2.5 × 3')
    """
    return " × ".join(format(side, each) for side in sides)


def swatched(words: str, rank: int) -> Markup:
    """Words after the color of a class."""
    return Markup('<span><i class="swatch" style="{}"></i>{}</span>').format(color_of(rank), words)


def rendered(template: str, **values: Any) -> Markup:
    """What a template makes of the values."""
    return Markup(_templates().get_template(template).render(**values))  # noqa: S704 (it escaped them)


def check_output(file: Path, usual: str) -> None:
    """UsageError where a folder stands in the file's place; `usual` is a better name."""
    if file.is_dir():
        raise UsageError(f"--output {file}: is a folder; name a file, such as {file / usual}")


def write_page(file: Path, template: str, *styles: str, **values: Any) -> Path:
    """Write the page that a template makes of the values; equal values give equal bytes.

    What cannot be printed or encoded becomes an escape such as \\x1b.

    Raises:
        UsageError: the file cannot be written.
    """
    folder = files("halofeed.inspection.html")
    style = Markup("".join((folder / name).read_text("utf-8") for name in styles))  # noqa: S704 (our own files)
    page = escape_unprintable(rendered(template, style=style, **values))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, f"{page}\n".encode())
    except OSError as error:
        raise UsageError(f"--output {file}: cannot be written: {error.strerror or error}") from error
    return file
