"""Each piece of training beyond a model's layers is that of one device, on 2, 4, 8 and 16 cores.

A piece has a case of pictures, one of volumes, or both. The long level compares one split for each number of cores
(except for slow pieces), the exhaustive level all splits, also those with fewer rows than cores at coarse sizes.
"""

import dataclasses
from typing import Any

import pytest

from tests.support.level_rows import levels
from tests.support.parity import PICTURE_SPLITS, VOLUME_SPLITS, Case, Split, splits, wrong

CORES = [2, 4, 8, 16]
FEW = {"width": 4, "features": 4, "tower_depth": 1, "blocks": [1, 1, 1, 1]}
MASKS = {**FEW, "mask_head": True, "mask_depth": 1, "first_level": 2, "mask_stride": 2, "last_level": 5}
MASKED = Case(model="retinanet", image_shape=(64, 64, 3), model_options=MASKS)

PLAIN = {"depth": 3, "width": 4, "convolutions": 1}
PICTURES = Case(model="unet", image_shape=(32, 16, 2), model_options=PLAIN)
VOLUMES = Case(model="unet", image_shape=(16, 16, 8, 1), model_options=PLAIN)
WEIGHTS = {"class_weights": [0.5, 1.0, 4.0], "overlap_over_batch": True}
REGIONS = {"regions": {"whole": ["class 1", "class 2"], "core": ["class 2"]}}
# What `train --config auto` writes for thin slices, with sizes that are padded: 48 rows to 64, 28 columns to 32.
PLANNED = {"depth": 6, "width": 4, "max_width": 8, "convolutions": 1, "norm": "batch", "pad": True}
PLANNED_PICTURES = Case(
    model="unet",
    image_shape=(48, 28, 2),
    model_options={**PLANNED, "strides": [[2, 1], *[[2, 2]] * 4], "kernels": [[3, 1], *[[3, 3]] * 5]},
)
# Slices are not halved at first, and 14 columns become 16.
PLANNED_VOLUMES = dataclasses.replace(
    VOLUMES,
    image_shape=(16, 16, 14, 1),
    model_options={
        **PLANNED,
        "depth": 3,
        "strides": [[1, 2, 2], [2, 2, 2]],
        "kernels": [[1, 3, 3], [3, 3, 3], [3, 3, 3]],
    },
)

CLASSES = Case(
    model="classifier", image_shape=(32, 16, 3), model_options={"features": [4, 8, 8]}, batch_size=8
)
CLASSES_OF_VOLUMES = dataclasses.replace(CLASSES, image_shape=(16, 16, 8, 1))
MIX = [{"name": "BatchMix", "mixup_alpha": 0.4, "cutmix_alpha": 1.0}]
# Without mixup on volumes: its weighted mean is float32, of which programs contract the product and the sum or do not,
# and the last digit of float32 is 7e-9 in a gradient. A box has no arithmetic.
CUT = [{"name": "BatchMix", "mixup_alpha": 0.0, "cutmix_alpha": 1.0}]
SMOOTH = {"label_smoothing": 0.1}


def both(*cases: Case, **changes: Any) -> list[Case]:
    """The cases with the same changes; options of the model are added to a case's own."""
    more = changes.pop("model_options", {})
    return [
        dataclasses.replace(case, model_options={**case.model_options, **more}, **changes) for case in cases
    ]


PIECES: dict[str, list[Case]] = {
    "class weights, deep supervision": both(
        PICTURES, VOLUMES, task_options=WEIGHTS, model_options={"deep_supervision": True}
    ),
    "regions, deep supervision": both(
        PICTURES, VOLUMES, task_options=REGIONS, model_options={"deep_supervision": True}
    ),
    "several classes": both(CLASSES, CLASSES_OF_VOLUMES, multi_label=True, task_options=SMOOTH),
    "mixed images": [
        *both(CLASSES, device_augment=MIX),
        *both(CLASSES_OF_VOLUMES, device_augment=CUT),
    ],
    "mixed images of several classes": both(
        CLASSES, device_augment=MIX, multi_label=True, task_options=SMOOTH
    ),
    "planned strides and kernels, padded": [PLANNED_PICTURES, PLANNED_VOLUMES],
    "mask head": [MASKED],
}
"""Cases of one training step by the piece that they have."""

MIRROR = {"mirror_at_test": ["height", "width"], "with_probabilities": True}
MIRROR_VOLUMES = {**MIRROR, "mirror_at_test": ["depth", "height", "width"]}


def mirrored(**options: Any) -> list[Case]:
    return [
        dataclasses.replace(case, task_options={**mirror, **options})
        for case, mirror in ((PICTURES, MIRROR), (VOLUMES, MIRROR_VOLUMES))
    ]


PREDICTED: dict[str, list[Case]] = {
    "mirrored": mirrored(),
    "mirrored regions": mirrored(**REGIONS),
    "planned strides and kernels, padded": [PLANNED_PICTURES, PLANNED_VOLUMES],
    "mask head": [MASKED],
}
"""Cases of predictions by the piece that they have."""

ONE_EACH = {
    3: splits((1, 2, 1, 1), (1, 2, 2, 1), (1, 8, 1, 1), (1, 16, 1, 1)),
    4: splits((1, 1, 2, 1, 1), (1, 2, 2, 1, 1), (1, 4, 2, 1, 1), (1, 4, 4, 1, 1)),
}
ALL = {3: [*PICTURE_SPLITS, *splits((1, 4, 4, 1))], 4: VOLUME_SPLITS}
"""Splits by the number of an image's axes."""


SLOW = {"mask head", "planned strides and kernels, padded"}
"""Pieces whose cases take over 20 s on one split of each number of cores."""


def rows(pieces: dict[str, list[Case]]) -> list[Any]:
    """Each piece and case on one split of each number of cores, and on all others; slow ones on all at once."""
    long, exhaustive = [], []
    for name, cases in pieces.items():
        for case in cases:
            axes = len(case.image_shape)
            few = [] if name in SLOW else ONE_EACH[axes]
            if few:
                long.append((name, case, few))
            exhaustive.append((name, case, [split for split in ALL[axes] if split not in few]))
    return levels(long=long, exhaustive=exhaustive)


def name_of(part: Any) -> str:
    if isinstance(part, list):
        return f"{len(part)} splits"
    return "x".join(map(str, part.image_shape)) if isinstance(part, Case) else part


@pytest.mark.parametrize(("piece", "case", "splits"), rows(PIECES), ids=name_of)
def test_a_step_with_each_piece_is_that_of_one_device(piece: str, case: Case, splits: list[Split]) -> None:
    assert wrong(case, splits) == {}


@pytest.mark.parametrize(("piece", "case", "splits"), rows(PREDICTED), ids=name_of)
def test_predictions_with_each_piece_are_those_of_one_device(
    piece: str, case: Case, splits: list[Split]
) -> None:
    assert wrong(case, splits, predictions=True) == {}


def test_the_splits_have_2_4_8_and_16_cores() -> None:
    for chosen in (ONE_EACH, ALL):
        assert all({cores for cores, _ in rows} == set(CORES) for rows in chosen.values())
