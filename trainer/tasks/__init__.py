"""Table of the tasks that can be trained; a new task is one file and one line in `TASKS`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from halofeed.errors import UsageError
from halofeed.system.wording import did_you_mean
from halofeed.trainer.task import DataFacts, TrainingTask
from halofeed.trainer.tasks.classification import Classification
from halofeed.trainer.tasks.detection import Detection
from halofeed.trainer.tasks.segmentation import Segmentation

TASKS: dict[str, Callable[..., TrainingTask]] = {
    "classification": lambda facts, **options: Classification(labels=facts.names, **options),
    "detection": lambda facts, **options: Detection(labels=facts.names, **options),
    "segmentation": lambda facts, **options: Segmentation(
        labels=facts.names, kind=facts.kind, ignore_label=facts.ignore_label, **options
    ),
}
"""Functions that build a task from the facts of the data set and the config's `task_options`."""

_DATA_FIELDS = {"labels", "kind", "ignore_label"}
"""Fields of tasks that the data set determines."""

_FORMER_NAMES = {"force_match": "force_match_for_each_row"}
"""Options by the names that they have in stored configs of version 0.1 and earlier."""


def build_task(facts: DataFacts, options: Mapping[str, Any]) -> TrainingTask:
    """Build the task of a data set; raise UsageError for an unknown task or option."""
    if facts.task not in TASKS:
        raise UsageError(f"task {facts.task!r}: cannot be trained; known: {', '.join(TASKS)}")
    options = {_FORMER_NAMES.get(name, name): value for name, value in options.items()}
    default: Any = TASKS[facts.task](facts)
    fields = [field.name for field in dataclasses.fields(default) if field.name not in _DATA_FIELDS]
    if unknown := sorted(set(options) - set(fields)):
        raise UsageError(
            f"task_options of {facts.task}: {unknown[0]} is unknown; {did_you_mean(unknown[0], fields)}known: "
            f"{', '.join(fields)}. Leave it out, or name a --config for {facts.task} (`halofeed configs` lists them)"
        )
    try:
        return TASKS[facts.task](facts, **options)
    except TypeError as error:
        raise UsageError(f"task_options of {facts.task}: {error}") from error
