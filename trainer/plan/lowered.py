"""Which program does a request make, traced and lowered for its machine?"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from halofeed.schemas.kinds import EARLY_KINDS, KINDS
from halofeed.schemas.tasks import ImageFormat, task_named
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.models import model_named
from halofeed.trainer.plan.request import Arrays, Request
from halofeed.trainer.program import Program, Spec, build_program
from halofeed.trainer.shared.facts import DataFacts

USUAL_CLASSES = {"classification": 1000, "detection": 90, "segmentation": 3}
"""Where no data set says it: ImageNet's, COCO's largest id, and an organ with its tumor beside the background."""
USUAL_BOXES = 100
"""Of a batch of detection, an image."""
_DTYPES = {"picture": "uint8", "volume": "int16", "clip": "uint8"}


def build(request: Request, devices: Sequence[jax.Device]) -> tuple[Program, Spec]:
    """The program of a request, and what its step is given.

    Raises:
        UsageError: what `build_program` refuses.
    """
    config, known = request.config, request.facts
    facts = usual_facts(config, request.classes) if known is None else DataFacts.from_json(known)
    program = build_program(config, facts, devices)
    arrays = usual_arrays(config, facts) if request.arrays is None else request.arrays
    return program, {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in arrays.items()}


def trace(program: Program, spec: Spec) -> jax.stages.Traced:
    """The training step on the machine's mesh, as `halofeed train` compiles it."""
    return program.step().trace(program.abstract_state(), program.abstract_batch(spec))


def usual_facts(config: TrainConfig, classes: int = 0) -> DataFacts:
    """The facts of a data set that a config would be trained on.

    Args:
        config: of a named size.
        classes: how many there are; 0 takes `USUAL_CLASSES`.
    """
    task, shape = model_named(config.model).task, config.image_shape
    assert shape is not None
    first = task_named(task).first_label_id
    count = classes or USUAL_CLASSES[task]
    return DataFacts(
        task=task,
        kind=EARLY_KINDS[len(shape)],
        labels={label: f"class {label}" for label in range(first, first + count)},
        image_shape=shape,
        mean=(0.0,) * shape[-1],
        std=(1.0,) * shape[-1],
        foreground=(0.0, 1.0, 0.5, 1.0),
    )


def usual_arrays(config: TrainConfig, facts: DataFacts) -> Arrays:
    """What the loader gives a step of a data set with these facts."""
    kind = KINDS[facts.kind]
    image = ImageFormat(
        kind=kind,
        shape=facts.image_shape[:-1],
        channels=facts.image_shape[-1],
        dtype=_DTYPES[kind.name],
        encoding="raw",
    )
    fields = task_named(facts.task).fields(image, max_boxes=USUAL_BOXES, masks=False)
    arrays = {
        field.name: ((config.batch_size, *field.shape), field.dtype)
        for field in fields
        if not field.optional and field.dtype != "str"
    }
    return {
        **arrays,
        **({"num_boxes": ((config.batch_size,), "int32")} if task_named(facts.task).has_boxes else {}),
        **({"epoch": ((config.batch_size,), "int32")} if config.device_augment else {}),
        "valid": ((config.batch_size,), "bool"),
    }
