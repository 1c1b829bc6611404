"""What the record of a picture holds for each task. A new task is one file beside this one and one line in `ADDERS`."""

from __future__ import annotations

from halofeed.prep.convert.tasks.annotated import Add
from halofeed.prep.convert.tasks.classification import add_classes
from halofeed.prep.convert.tasks.detection import add_boxes
from halofeed.prep.convert.tasks.segmentation import add_label_image

ADDERS: dict[str, Add] = {
    "classification": add_classes,
    "detection": add_boxes,
    "segmentation": add_label_image,
}
"""By the names of `halofeed.schemas.tasks.TASKS`."""
