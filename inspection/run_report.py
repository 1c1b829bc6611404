"""How one HTML file comes to say how a training run went and what its model predicts: `write_run_report`."""

from __future__ import annotations

import contextlib
import os
import shlex
from importlib.resources import files
from pathlib import Path

from halofeed.inspection import run_commands, run_gallery, run_metrics, run_sections
from halofeed.inspection.markup import Markup, element, join
from halofeed.inspection.run_facts import RunFacts, read_run_facts
from halofeed.schemas.errors import UsageError

REPORT = "report.html"
_STYLES = ("report.css", "run_report.css")


def write_run_report(run_folder: str | Path, output: str | Path | None = None) -> Path:
    """Write one self-contained HTML file about a training run; equal runs give equal bytes.

    A run that is not finished has a page too, which says what is missing.

    Args:
        run_folder: what `halofeed train --out` made.
        output: the file to write; default: report.html in that folder.

    Returns:
        the file.

    Raises:
        UsageError: the folder holds no run, or the file cannot be written.
        CorruptFileError: a file of the run is not what training writes.
    """
    file = Path(run_folder) / REPORT if output is None else Path(output)
    if file.is_dir():
        raise UsageError(f"--output {file}: is a folder; name a file, such as {file / REPORT}")
    page = _page(read_run_facts(run_folder))
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(page.encode())
        temporary.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UsageError(f"--output {file}: cannot be written: {error.strerror or error}") from error
    return file


def _page(facts: RunFacts) -> str:
    folder = files("halofeed.inspection")
    style = Markup("".join((folder / name).read_text("utf-8") for name in _STYLES))
    data = f"{facts.document.get('data_name') or ''} {facts.document.get('data_version') or ''}".strip()
    title = f"{facts.config.get('model', 'run')} on {data or 'data'} – halofeed run"
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", None, title),
        element("style", None, style),
    )
    parts = [
        run_sections.header(facts),
        run_sections.curves(facts),
        run_metrics.metrics(facts),
        run_metrics.confusion(facts),
        run_gallery.examples(facts),
        run_sections.waiting(facts),
        run_commands.settings(facts),
        run_commands.commands(facts),
    ]
    command = f"halofeed report {shlex.quote(facts.path)}"
    made = element("footer", None, "Written by ", element("code", None, command))
    body = element("body", None, element("main", None, parts, made))
    return join([Markup("<!doctype html>\n"), element("html", {"lang": "en"}, head, body), "\n"])
