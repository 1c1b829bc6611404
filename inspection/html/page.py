"""HTML pages from jinja2 templates that escape all text, each one file with its styles inside."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup

from halofeed.inspection.html import charts
from halofeed.inspection.words import escape_unprintable, percent, times
from halofeed.loader.contact_sheet import color_of
from halofeed.storage.atomic_files import atomic_write
from halofeed.system.console import human_bytes
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural


class _LineBreaks(Extension):
    """jinja2 extension that removes line breaks of a template next to tags, and turns those in text into spaces."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        joined = re.sub(r"(?<=[>}])\s*\n\s*|\s*\n\s*(?=[<{])", "", source.strip())
        return re.sub(r"\s*\n\s*", " ", joined)


@functools.cache
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("halofeed.inspection.html"),
        autoescape=True,
        undefined=StrictUndefined,
        extensions=["jinja2.ext.do", _LineBreaks],
    )
    found.globals.update(charts=charts, quoted=repr)
    found.filters.update(
        plural=plural, percent=percent, size=human_bytes, color=color_of, commas="{:,}".format, times=times
    )
    return found


def setting_text(value: Any) -> str:
    """Format the value of an option or a setting."""
    if value is None or value == "":
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        value = [f"{key} {setting_text(entry)}" for key, entry in value.items()]
    if isinstance(value, list | tuple):
        return ", ".join(map(setting_text, value)) or "none"
    return str(value)


def swatched(words: str, rank: int) -> Markup:
    """Return text after a swatch in the color of a class."""
    return Markup('<span><i class="swatch" style="{}"></i>{}</span>').format(color_of(rank), words)


def rendered(template: str, **values: Any) -> Markup:
    """Render a template."""
    return Markup(_templates().get_template(template).render(**values))  # noqa: S704 (it escaped them)


def check_output(file: Path, usual: str) -> None:
    """Raise UsageError if `file` is a folder, in which the message suggests `usual`, or has another format."""
    # A report under such a name would not open.
    if file.suffix.lower() in (".pdf", ".png", ".jpg", ".json", ".csv", ".txt", ".md", ".docx"):
        raise UsageError(f"--output {file}: it is written as HTML; name it {file.with_suffix('.html')}")
    if file.is_dir():
        raise UsageError(f"--output {file}: is a folder; name a file, such as {file / usual}")


def included(*names: str) -> Markup:
    """Return the text of our own CSS files or scripts, to be part of a page."""
    folder = files("halofeed.inspection.html")
    return Markup("".join((folder / name).read_text("utf-8") for name in names))  # noqa: S704 (our own files)


def script_hash(script: str) -> str:
    """Return the source expression of a content security policy that allows one script (CSP level 3, section 2.3.1)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def write_page(file: Path, template: str, *styles: str, script: str = "", **values: Any) -> Path:
    """Render a template to a file; equal values give equal bytes.

    Args:
        styles: names of CSS files to include.
        script: name of a script to include; "" for none. The page's policy lets no other script run.

    Characters that cannot be printed or encoded become escapes such as \\x1b.

    Raises:
        UsageError: the file cannot be written.
    """
    if script:
        text = included(script)
        policy = (
            f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {script_hash(text)}"
        )
        values |= {"script": text, "policy": policy}
    page = escape_unprintable(rendered(template, style=included(*styles), **values))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, f"{page}\n".encode())
    except OSError as error:
        raise UsageError(f"--output {file}: cannot be written: {error.strerror or error}") from error
    return file
