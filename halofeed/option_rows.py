"""Rows of the options that dataclasses define, and their saved copy in help.json.

`halofeed convert --help` imports 200 modules for two dataclasses, which takes 0.25 s; the copy takes 2 ms. Only help
texts are made from it: a command that runs uses the dataclasses. `python -m halofeed.stubs` writes it.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from halofeed.options import Option, options_of_class
from halofeed.storage.paths import load_text

HELP_FILE = Path(__file__).with_name("help.json")


def convert_rows() -> list[Option]:
    """Return the options of a conversion: those of its run, then those of its recipe."""
    from halofeed.pipelines.job import JobOptions
    from halofeed.prep.options.recipe import Recipe

    return [*options_of_class(JobOptions), *options_of_class(Recipe)]


def train_rows() -> list[Option]:
    """Return the options of a training; their defaults are None, because its recipe sets them."""
    from halofeed.trainer.config import TrainConfig

    rows = options_of_class(TrainConfig, show_defaults=False)
    return [dataclasses.replace(row, default=None) for row in rows]


def layout_summaries() -> dict[str, str]:
    """Return the summary of each layout by its name."""
    from halofeed.prep.layouts import LAYOUTS

    return {layout.name: layout.summary for layout in LAYOUTS.values()}


def saved_rows(command: str) -> list[Option]:
    """Return the saved options of `convert` or `train`."""
    return [Option.from_json(row) for row in _saved()[command]]


def saved_layout_summaries() -> dict[str, str]:
    """Return the saved summary of each layout."""
    return dict(_saved()["layouts"])


def help_text() -> str:
    """Return the text of help.json that the dataclasses and the layouts give now."""
    document = {
        "convert": [row.to_json() for row in convert_rows()],
        "train": [row.to_json() for row in train_rows()],
        "layouts": layout_summaries(),
    }
    return json.dumps(document, indent=1) + "\n"


def _saved() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(load_text(HELP_FILE, "utf-8"))
    return document
