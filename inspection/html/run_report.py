"""How one HTML file comes to say how a training run went and what its model predicts: `write_run_report`."""

from __future__ import annotations

import shlex
from pathlib import Path

from halofeed.inspection.html.page import check_output, rendered, write_page
from halofeed.inspection.html.run_sections import VALUES
from halofeed.inspection.run.facts import read_run_facts

REPORT = "report.html"


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
    check_output(file, REPORT)
    facts = read_run_facts(run_folder)
    parts = [
        rendered(f"run/{name}.html", facts=facts, **values)
        for name, section in VALUES.items()
        if (values := section(facts)) is not None
    ]
    model, path = facts.config.get("model", "run"), shlex.quote(facts.path)
    styles = ("report.css", "run_report.css")
    return write_page(file, "run.html", *styles, model=model, data=facts.data, sections=parts, path=path)
