"""Table of the tasks that can be trained; a new task is one file and one line in `TASKS`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from halofeed.system.errors import UsageError
from halofeed.system.wording import did_you_mean
from halofeed.trainer.config import import_named, is_untrained, no_detector_of_volumes
from halofeed.trainer.task import DataFacts, TrainingTask
from halofeed.trainer.tasks.classification import Classification
from halofeed.trainer.tasks.detection import Detection
from halofeed.trainer.tasks.multi_label import MultiLabel
from halofeed.trainer.tasks.segmentation import Segmentation

TASKS: dict[str, Callable[..., TrainingTask]] = {
    "classification": lambda facts, **options: (MultiLabel if facts.multi_label else Classification)(
        labels=facts.names, **options
    ),
    "detection": lambda facts, **options: Detection(labels=facts.names, **options),
    "segmentation": lambda facts, **options: Segmentation(
        labels=facts.names,
        kind=facts.kind,
        ignore_label=facts.ignore_label,
        label_voxels=facts.label_voxels,
        **options,
    ),
}
"""Functions that build a task from the facts of the data set and the config's `task_options`."""

_DATA_FIELDS = {"labels", "kind", "ignore_label", "label_voxels"}
"""Fields of tasks that the data set determines."""

_FORMER_NAMES = {"force_match": "force_match_for_each_row"}
"""Options by the names that they have in stored configs of version 0.1 and earlier."""


def build_task(facts: DataFacts, options: Mapping[str, Any], name: str = "") -> TrainingTask:
    """Build the task of a data set.

    Args:
        facts: facts of the data set.
        options: options of the task by name.
        name: `package:Class` of the user, which is called with the facts and the options; "" takes that of `TASKS`.

    Raises:
        UsageError: the task or an option is unknown, or boxes are in volumes.
    """
    if name:
        build = import_named("task", name)
        known = [*inspect.signature(build).parameters][1:]
    elif is_untrained(facts.task, facts.kind):
        raise no_detector_of_volumes("the data set")
    elif facts.task in TASKS:
        build, default = TASKS[facts.task], TASKS[facts.task](facts)
        fields = dataclasses.fields(default)  # type: ignore[arg-type]
        # Runs of version 0.1 must open and resume.
        options = {_FORMER_NAMES.get(key, key): value for key, value in options.items()}
        known = [field.name for field in fields if field.name not in _DATA_FIELDS]
    else:
        raise UsageError(f"task {facts.task!r}: cannot be trained; known: {', '.join(TASKS)}")
    if unknown := sorted(set(options) - set(known)):
        raise UsageError(
            f"task_options of {name or facts.task}: {unknown[0]} is unknown; {did_you_mean(unknown[0], known)}known: "
            f"{', '.join(known)}. Leave it out, or name a --config for {facts.task} (`halofeed configs` lists them)"
        )
    try:
        task: TrainingTask = build(facts, **options)
    except TypeError as error:
        raise UsageError(f"task_options of {name or facts.task}: {error}") from error
    return task
