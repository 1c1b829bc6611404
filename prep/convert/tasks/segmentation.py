"""The classes of a picture's pixels."""

from __future__ import annotations

import numpy as np

from halofeed.prep.convert.tasks.annotated import AnnotatedPicture, BadObjects
from halofeed.prep.convert.tasks.annotated_grid import label_orientation
from halofeed.prep.convert.tasks.label_image import label_on_grid
from halofeed.prep.statistics.pictures import Facts, count_labels
from halofeed.prep.voxels.encode import ENCODERS
from halofeed.schemas import keys
from halofeed.schemas.tfexample import Value


def add_label_image(picture: AnnotatedPicture, features: dict[str, Value], facts: Facts) -> BadObjects:
    """Add the class of every stored pixel; of a picture without a label they are 0."""
    label, plan, dtype = picture.label, picture.plan, picture.labels.dtype
    if label is None:
        indices = np.zeros(plan.output_size, dtype)
    else:
        size = (label.shape[0], label.shape[1])
        orientation, warning = label_orientation(size, picture.image, picture.grid)
        facts.warnings += (warning,) if warning else ()
        ignored = picture.labels.stored_ignore
        turned = label_on_grid(label.astype(dtype), orientation, picture.image, plan, ignored or 0)
        indices = turned.astype(dtype)
        facts.label_voxels = {
            value: count for value, count in count_labels(indices).items() if value != ignored
        }
        facts.labels.extend(facts.label_voxels)
    facts.labelled = label is not None
    stored = ENCODERS["raw" if picture.recipe.encoding == "raw" else "png"](indices[..., None], 0)
    features[keys.LABEL] = stored
    features[keys.LABELLED] = np.array([int(label is not None)])
    return ()
