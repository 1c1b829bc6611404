"""How tests write a small data set of pictures with classes or boxes: drawn examples in, a finished folder out."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.convert.tallies import PictureFacts, PictureTally, sum_pixels
from halofeed.schemas.identity import example_id
from tests.support.set_writer import (
    Record,
    counted,
    deal,
    encode_pixels,
    image_format,
    picture_features,
    stored_features,
    write_set,
)

SOURCE_SCALE = 8
"""The sources of the examples are said to have been larger by this factor."""

LABELS = {
    "classification": {0: "cat", 1: "Hund (Köter)", 2: "bird"},
    "detection": {1: "cat", 2: "Hund (Köter)", 5: "bird"},
}


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One example: pixels [height, width, channel] and their label, or boxes [box, (ymin, xmin, ymax, xmax)]."""

    key: str
    split: str
    pixels: NDArray[Any]
    unpadded: tuple[int, int]
    label: int | None = None
    boxes: NDArray[np.float32] | None = None
    classes: Sequence[int] = ()


def draw_examples(
    task: str,
    counts: Mapping[str, int],
    *,
    shape=(8, 12, 3),
    dtype="uint8",
    varied=False,
    max_boxes=4,
    seed=0,
) -> list[Drawn]:
    """Random examples per split, each with a padded bottom row; sizes differ where `varied`."""
    generator = np.random.default_rng(seed)
    labels = sorted(LABELS[task])
    drawn = []
    for split, examples in counts.items():
        for number in range(examples):
            height, width, channels = shape
            if varied:
                height, width = int(generator.integers(2, height + 1)), int(generator.integers(2, width + 1))
            pixels = generator.integers(0, np.iinfo(dtype).max + 1, (height, width, channels)).astype(dtype)
            unpadded = (height, width)
            if not varied:
                pixels[-1], unpadded = 0, (height - 1, width)
            if task == "detection":
                count = int(generator.integers(0, max_boxes + 1))
                corners = np.sort(generator.random((count, 2, 2)), axis=1).reshape(-1, 4)
                classes = generator.choice(labels, count).tolist()
                shown = {"boxes": corners.astype(np.float32), "classes": classes}
            else:
                shown = {"label": int(generator.choice(labels))}
            key = f"{split}/picture {number}.jpg" if number % 3 else str(1000 * len(split) + number)
            drawn.append(Drawn(key=key, split=split, pixels=pixels, unpadded=unpadded, **shown))
    return drawn


def encode_mask(shape: tuple[int, int], box: NDArray[np.float32]) -> bytes:
    """A PNG of 0 and 1, image-sized, in which the box is set."""
    mask = np.zeros(shape, np.uint8)
    top, left, bottom, right = np.round(box * np.array([*shape, *shape])).astype(int)
    mask[top:bottom, left:right] = 1
    return encode_pixels(mask[:, :, None], "png")


def record_features(example: Drawn, task: str, encoding: str, masks: bool = False) -> dict[str, Any]:
    encoded = encode_pixels(example.pixels, encoding)
    height, width, _ = example.pixels.shape
    features = stored_features(example.key, example_id(example.key), encoded, encoding, (height, width))
    source = [SOURCE_SCALE * side for side in example.unpadded]
    features |= picture_features(example.unpadded, source, (SOURCE_SCALE, 0, 0, 0, SOURCE_SCALE, 0))
    if task == "classification":
        features["image/class/label"] = np.array([example.label])
        features["image/class/text"] = LABELS[task][example.label or 0].encode()
        return features
    boxes = example.boxes if example.boxes is not None else np.zeros((0, 4), np.float32)
    for column, corner in enumerate(("ymin", "xmin", "ymax", "xmax")):
        features[f"image/object/bbox/{corner}"] = boxes[:, column]
    sides = (boxes[:, 2:] - boxes[:, :2]) * np.array([height, width], np.float32)
    features["image/object/area"] = sides.prod(axis=1)
    features["image/object/class/label"] = np.array(example.classes, np.int64)
    features["image/object/class/text"] = [LABELS[task][item].encode() for item in example.classes]
    for name, every in (("is_crowd", 2), ("difficult", 3), ("truncated", 1)):
        features[f"image/object/{name}"] = (np.arange(len(boxes)) % every == 1).astype(np.int64)
    if masks:
        features["image/object/mask"] = [encode_mask((height, width), box) for box in boxes]
    return features


def write_dataset(
    folder: Path,
    examples: Sequence[Drawn],
    *,
    task: str,
    encoding: str = "raw",
    shards: int = 2,
    max_boxes: int = 3,
    masks: bool = False,
    alter: Callable[[Drawn, dict[str, Any]], dict[str, Any]] = lambda example, features: features,
    **more: Any,
) -> Path:
    """Write the data set into `folder`, which is made; returns the folder.

    Args:
        alter: may change a record's features, so that all checksums are right and the content is not.
        more: arguments of `write_set`.
    """

    def record(example: Drawn) -> Record:
        features = alter(example, record_features(example, task, encoding, masks))
        inputs = {example.key: hashlib.sha256(example.key.encode()).hexdigest()}
        return Record(id=example_id(example.key), features=features, inputs=inputs, facts=_facts(example))

    largest = np.max([example.pixels.shape for example in examples], axis=0).tolist()
    given = {"labels": LABELS[task], "recipe": {"resize": "fixed-shape", "pad_value": [0]}, "masks": masks}
    given["image"] = image_format(largest, str(examples[0].pixels.dtype), encoding)
    given["statistics"] = lambda facts: counted(PictureTally(max_boxes=max_boxes), facts)
    return write_set(folder, deal(examples, shards, record), task=task, max_boxes=max_boxes, **given | more)


def _facts(example: Drawn) -> PictureFacts:
    height, width, _ = example.pixels.shape
    unpadded = np.ascontiguousarray(example.pixels[: example.unpadded[0], : example.unpadded[1]])
    return PictureFacts(
        pixel_sums=sum_pixels(unpadded),
        stored_size=(height, width),
        picture_size=example.unpadded,
        source_size=(SOURCE_SCALE * example.unpadded[0], SOURCE_SCALE * example.unpadded[1]),
        labels=list(example.classes) if example.boxes is not None else [example.label or 0],
        boxes=None if example.boxes is None else len(example.boxes),
    )
