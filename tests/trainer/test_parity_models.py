"""A step of every model, on every split that is offered, is that of one device.

The models have all their levels and every kind of layer, and few channels, on images whose last levels have fewer rows
than there are cores. What repeats on one grid stands there twice where that is the case's own subject, and once in its
variants. One case is ResNet-50 whole, on four devices: in float64 on eight it would take 17 GB. What is trained and
predicted beyond a model's layers is in test_parity_pieces.py.
"""

import dataclasses
from typing import Any

import pytest

from halofeed.trainer.models import MODELS
from tests.support.level_rows import others
from tests.support.parity import (
    DEPTH_AND_HEIGHT_SPLITS,
    PICTURE_SPLITS,
    VOLUME_SPLITS,
    Case,
    Split,
    splits,
    wrong,
)

FEW_ROWS = splits((1, 2, 1, 1), (1, 4, 1, 1), (1, 2, 2, 1))
FOUR_ROWS, EIGHT_ROWS, SIXTEEN_ROWS = splits((1, 4, 1, 1), (1, 8, 1, 1), (1, 16, 1, 1))
TWO_BY_TWO, ROWS_AND_COLUMNS = splits((1, 2, 2, 1), (1, 4, 2, 1))
FOUR_DEEP, EIGHT_HIGH, TWO_DEEP_AND_HIGH = splits((1, 4, 1, 1, 1), (1, 1, 8, 1, 1), (1, 2, 2, 1, 1))
DEPTH_AND_HEIGHT, SIXTEEN_DEEP_AND_HIGH = splits((1, 4, 2, 1, 1), (1, 4, 4, 1, 1))

CLASSIFIER = Case(model="classifier", image_shape=(64, 32, 3))
VOLUMES = Case(model="classifier", image_shape=(32, 32, 16, 1), model_options={"features": [4, 8, 8, 8, 8]})
RESNET = Case(model="resnet50", image_shape=(64, 64, 3), model_options={"width": 4, "blocks": [2, 2, 2, 2]})
SHORT_RESNET = dataclasses.replace(RESNET, model_options={"width": 4, "blocks": [1, 1, 1, 1]})
FULL_RESNET = Case(model="resnet50", image_shape=(64, 64, 3), devices=4)  # a copy a device: 6 GB
RESNET101 = Case(
    model="resnet101", image_shape=(64, 64, 3), model_options={"width": 4, "blocks": [1, 1, 2, 1]}
)
RESNET20 = Case(model="resnet20", image_shape=(32, 32, 3), model_options={"width": 4, "blocks": 2})
MOBILENET = Case(model="mobilenet_v1", image_shape=(64, 64, 3), model_options={"width": 4})
FEW = {"width": 4, "features": 8, "tower_depth": 1}
DETECTOR = {**FEW, "blocks": [1, 2, 1, 1], "tower_depth": 2}
RETINANET = Case(model="retinanet", image_shape=(128, 64, 3), model_options=DETECTOR)
SHORT_RETINANET = dataclasses.replace(RETINANET, model_options={**FEW, "features": 4, "blocks": [1, 1, 1, 1]})
RETINANET_ON_MOBILENET = dataclasses.replace(RETINANET, model_options={**FEW, "backbone": "mobilenet_v1"})
SSD = Case(model="ssd_mobilenet_v1", image_shape=(96, 96, 3), model_options={"width": 4})
PPN = Case(model="ssd_mobilenet_v1_ppn", image_shape=(96, 96, 3), model_options={"width": 4})
DEEP = {"depth": 4, "width": 4, "deep_supervision": True}
UNET = Case(model="unet", image_shape=(32, 32, 16, 1), model_options=DEEP)
PLANE_UNET = Case(model="unet", image_shape=(64, 32, 3), model_options={"depth": 5, "width": 4})
THREE_LEVELS = {"depth": 3, "width": 4, "convolutions": 1, "deep_supervision": True}
SMALL_UNET = Case(model="unet", image_shape=(8, 16, 8, 1), model_options=THREE_LEVELS)
SMALL_PLANE_UNET = Case(model="unet", image_shape=(32, 16, 2), model_options=THREE_LEVELS)
PUBLISHED = {"norm": "batch", "double_in_block": True, "upsampling": "transposed", "images_at_once": 1}
DIRECT_UNET = dataclasses.replace(UNET, layer_options={"volume_convolution": "direct"})
SLIM = dataclasses.replace(
    SHORT_RETINANET, model_options={**SHORT_RETINANET.model_options, "variant": "slim"}
)
TPU = dataclasses.replace(
    SLIM, model_options={**SLIM.model_options, "variant": "tpu", "scales_per_octave": 3}
)


def with_options(case: Case, **options: Any) -> Case:
    return dataclasses.replace(case, model_options={**case.model_options, **options})


MASKED = with_options(SHORT_RETINANET, mask_head=True, mask_depth=1)
FINE_MASKS = with_options(MASKED, first_level=2, mask_stride=2, last_level=5)


TABLE: list[tuple[Case, list[Split]]] = [
    (CLASSIFIER, PICTURE_SPLITS),
    (VOLUMES, VOLUME_SPLITS),
    (RESNET, PICTURE_SPLITS),
    (FULL_RESNET, [TWO_BY_TWO]),
    (RESNET101, FEW_ROWS),  # the blocks of ResNet-50
    (RESNET20, PICTURE_SPLITS),
    (MOBILENET, PICTURE_SPLITS),
    (RETINANET, PICTURE_SPLITS),
    (RETINANET_ON_MOBILENET, [*FEW_ROWS, ROWS_AND_COLUMNS]),  # its parts are above, on every split
    # Sizes that stop dividing: 76 -> 38 -> 19 -> 10 -> 5 -> 3 -> 2 -> 1, as 300 does.
    (dataclasses.replace(RETINANET_ON_MOBILENET, image_shape=(76, 60, 3)), FEW_ROWS),
    (with_options(RETINANET, variant="slim"), PICTURE_SPLITS),
    (with_options(RETINANET, variant="tpu"), PICTURE_SPLITS),
    # Norms of each replica, and of each core.
    (dataclasses.replace(TPU, norm_parts=(2, 1, 1, 1)), PICTURE_SPLITS),
    *(
        (dataclasses.replace(SLIM, norm_parts=(2, *dims[1:])), [(cores, dims)])
        for cores, dims in PICTURE_SPLITS
    ),
    (MASKED, PICTURE_SPLITS),
    (FINE_MASKS, PICTURE_SPLITS),
    (dataclasses.replace(FINE_MASKS, image_shape=(76, 60, 3)), FEW_ROWS),
    (SSD, PICTURE_SPLITS),
    (dataclasses.replace(SSD, image_shape=(76, 76, 3)), FEW_ROWS),
    (PPN, PICTURE_SPLITS),
    (dataclasses.replace(PPN, image_shape=(76, 76, 3)), FEW_ROWS),
    (UNET, VOLUME_SPLITS),
    (with_options(UNET, norm="batch", anisotropic=True, convolutions=1), VOLUME_SPLITS),
    (with_options(DIRECT_UNET, **PUBLISHED, deep_supervision=False), VOLUME_SPLITS),
    (with_options(UNET, norm="group", upsampling="repeat", convolutions=1), DEPTH_AND_HEIGHT_SPLITS),
    # As TPUs and GPUs compute convolutions over volumes; XLA's own are slow on CPUs.
    (with_options(DIRECT_UNET, convolutions=1), [FOUR_DEEP, TWO_DEEP_AND_HIGH, DEPTH_AND_HEIGHT, EIGHT_HIGH]),
    (PLANE_UNET, PICTURE_SPLITS),
    (with_options(PLANE_UNET, norm="batch", deep_supervision=True, convolutions=1), PICTURE_SPLITS),
    (with_options(SMALL_PLANE_UNET, norm="group"), [ROWS_AND_COLUMNS]),
]

QUICK = [
    (VOLUMES, DEPTH_AND_HEIGHT),
    (SMALL_UNET, TWO_DEEP_AND_HIGH),
    (with_options(SMALL_PLANE_UNET, norm="batch"), FOUR_ROWS),
]
SLICE = [
    *QUICK,
    (SHORT_RESNET, EIGHT_ROWS),
    (dataclasses.replace(RESNET101, model_options={"width": 4, "blocks": [1, 1, 1, 1]}), TWO_BY_TWO),
    (RESNET20, EIGHT_ROWS),
    (MOBILENET, FOUR_ROWS),
    (SHORT_RETINANET, TWO_BY_TWO),
    (TPU, TWO_BY_TWO),
    (dataclasses.replace(SLIM, norm_parts=(2, 8, 1, 1)), EIGHT_ROWS),
    (dataclasses.replace(TPU, norm_parts=(2, 16, 1, 1)), SIXTEEN_ROWS),
    (FINE_MASKS, ROWS_AND_COLUMNS),
    (SSD, ROWS_AND_COLUMNS),
    (PPN, FOUR_ROWS),
    (with_options(UNET, **PUBLISHED, depth=3), FOUR_DEEP),
    (PLANE_UNET, EIGHT_ROWS),
    (with_options(UNET, depth=3, convolutions=1), SIXTEEN_DEEP_AND_HIGH),
]
"""Eight cores are one replica here, four are two."""


@pytest.mark.parametrize(("case", "split"), others(SLICE, QUICK), ids=str)
def test_a_step_is_that_of_one_device(case: Case, split: Split) -> None:
    assert wrong(case, [split]) == {}


def name_of(part: Any) -> str:
    return str(part) if isinstance(part, Case) else ""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("case", "splits"), TABLE, ids=name_of)
def test_a_step_is_that_of_one_device_on_every_split(case: Case, splits: list[Split]) -> None:
    assert wrong(case, splits) == {}


def test_every_model_is_in_both_tables() -> None:
    assert {case.model for case, _ in TABLE} == {case.model for case, _ in SLICE} == set(MODELS)


PREDICTED = [
    (SHORT_RETINANET, EIGHT_ROWS),
    (FINE_MASKS, TWO_BY_TWO),
    (SSD, ROWS_AND_COLUMNS),
    (PPN, EIGHT_ROWS),
]
PREDICTED += [(MOBILENET, EIGHT_ROWS), (UNET, DEPTH_AND_HEIGHT), (UNET, EIGHT_HIGH)]
PREDICTED_QUICK = [(SHORT_RETINANET, ROWS_AND_COLUMNS), (SMALL_UNET, TWO_DEEP_AND_HIGH)]


@pytest.mark.parametrize(
    ("case", "split"), others(PREDICTED_QUICK, []) + others(PREDICTED, [], pytest.mark.exhaustive), ids=str
)
def test_predictions_are_those_of_one_device(case: Case, split: Split) -> None:
    assert wrong(case, [split], predictions=True) == {}
