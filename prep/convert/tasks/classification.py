"""The classes of an image."""

from __future__ import annotations

import numpy as np

from halofeed.prep.convert.tasks.annotated import AnnotatedPicture, BadObjects
from halofeed.prep.sources.reference import Reference
from halofeed.prep.statistics.pictures import Facts
from halofeed.prep.tasks.labels import LabelMap
from halofeed.schemas import keys
from halofeed.schemas.errors import SourceError
from halofeed.schemas.tfexample import Value


def add_classes(picture: AnnotatedPicture, features: dict[str, Value], facts: Facts) -> BadObjects:
    """Add the numbers and names of its classes."""
    added, facts.labels = class_features(picture.reference, picture.labels)
    features |= added
    return ()


def class_features(reference: Reference, labels: LabelMap) -> tuple[dict[str, Value], list[int]]:
    """The features of an image's classes, and their ids; SourceError where there is none."""
    if reference.label is None and reference.labels is None:
        raise SourceError("annotation", "no class", "a classification example needs one")
    ids = sorted({labels.id_of(label) for label in reference.classes})
    names = [labels.names[label].encode() for label in ids]
    return {keys.CLASS_LABEL: np.array(ids, np.int64), keys.CLASS_TEXT: names}, ids
