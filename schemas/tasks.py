"""Which fields the records of each task hold. A new task is one function and one line in `TASKS`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from halofeed.errors import UsageError
from halofeed.schemas import keys, kinds
from halofeed.schemas.fields import Field
from halofeed.schemas.kinds import Kind, kind_of


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """How the task's image is stored.

    Args:
        kind: of image.
        shape: the static size along the kind's axes, or the largest of the data set.
        channels, dtype, encoding: as of a `Field`.
        pad_value: what padding holds.
        label_dtype: of the class indices of segmentation.
        classes: segmentation: where a voxel may be in several, how many there are, each a channel of the label; else 0.
        ignore_label: segmentation: the value of a label where nothing is known, which pads it as well; None: none.
        scaled: volumes: whether each record says the scale of its values.
    """

    kind: Kind
    shape: tuple[int, ...]
    channels: int
    dtype: str
    encoding: str
    pad_value: tuple[float, ...] = (0,)
    label_dtype: str = "uint8"
    classes: int = 0
    ignore_label: int | None = None
    scaled: bool = False


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a data set is for: the first label's id and the fields beyond image, id and origin.

    `has_label_image`: each record has a class at every pixel or voxel; `has_boxes`: it has objects with boxes.
    """

    name: str
    first_label_id: int
    has_label_image: bool = False
    has_boxes: bool = False
    own_fields: Callable[[ImageFormat, int, bool], tuple[Field, ...]]

    def fields(
        self,
        image: ImageFormat,
        *,
        max_boxes: int,
        masks: bool,
        keep: Collection[str] = (),
        several_classes: int | None = None,
    ) -> tuple[Field, ...]:
        """All fields of a record, in the order in which people read them.

        Args:
            keep: detection: of `KEPT`, what else of each object the records have.
            several_classes: classification: how many classes there are, where a picture may have several of them.
        """
        pixels = Field(
            name="image",
            keys=(keys.ENCODED,),
            dtype=image.dtype,
            axes=(*image.kind.axes, "channel"),
            shape=(*image.shape, image.channels),
            encoding=image.encoding,
            fill=tuple(image.pad_value),
        )
        origin = image.kind.origin(image.shape)
        if image.scaled:
            for name, key in (("scale", keys.INTENSITY_SCALE), ("offset", keys.INTENSITY_OFFSET)):
                origin += (kinds.value(f"intensity_{name}", key, "float32", (image.channels,)),)
        kept = [
            _per_box(field, KEPT[name], dtype, max_boxes, optional=True)
            for name, (field, dtype) in _KEPT_FIELDS.items()
            if name in keep
        ]
        own = self.own_fields(image, max_boxes, masks)
        if several_classes is not None:
            label = ("labels", keys.CLASS_LABEL, "uint8", (several_classes,), ("class",))
            own = (kinds.value(*label, encoding="classes", optional=False),)
        return (pixels, *own, *kept, *origin)


def _classification(image: ImageFormat, max_boxes: int, masks: bool) -> tuple[Field, ...]:
    return (kinds.value("label", keys.CLASS_LABEL, "int32", optional=False),)


def _per_box(name: str, key: str, dtype: str, max_boxes: int, *, optional: bool = False) -> Field:
    return kinds.value(name, key, dtype, (max_boxes,), ("box",), encoding="list", optional=optional)


def _detection(image: ImageFormat, max_boxes: int, masks: bool) -> tuple[Field, ...]:
    fields = (
        Field(
            name="boxes",
            keys=keys.BOX_CORNERS,
            dtype="float32",
            axes=("box", "coordinate"),
            shape=(max_boxes, 4),
            encoding="list",
        ),
        _per_box("classes", keys.OBJECT_CLASS_LABEL, "int32", max_boxes),
        _per_box("is_crowd", keys.OBJECT_IS_CROWD, "bool", max_boxes),
        _per_box("area", keys.OBJECT_AREA, "float32", max_boxes),
        _per_box("difficult", keys.OBJECT_DIFFICULT, "bool", max_boxes, optional=True),
        _per_box("truncated", keys.OBJECT_TRUNCATED, "bool", max_boxes, optional=True),
    )
    if not masks:
        return fields
    # A mask is as large as its own picture, so that the field names no shape: the loader gives uint8 [box, height,
    # width], 0 and 1, where `box` and its size are those of `boxes`, `height` and `width` those of `image`.
    mask = Field(name="masks", keys=(keys.OBJECT_MASK,), dtype="uint8", encoding="png_list", optional=True)
    return (*fields, mask)


def _segmentation(image: ImageFormat, max_boxes: int, masks: bool) -> tuple[Field, ...]:
    label = Field(
        name="label",
        keys=(keys.LABEL,),
        dtype="uint8" if image.classes else image.label_dtype,
        axes=(*image.kind.axes, "class") if image.classes else image.kind.axes,
        shape=(*image.shape, image.classes) if image.classes else image.shape,
        encoding="sets" if image.classes else "raw" if image.encoding == "raw" else "png",
        fill=(image.ignore_label or 0,),
    )
    return (label, kinds.value("labelled", keys.LABELLED, "bool", optional=False))


KEPT = {
    "category_id": keys.OBJECT_CLASS_SOURCE_LABEL,
    "group_of": keys.OBJECT_GROUP_OF,
    "keypoints": keys.OBJECT_KEYPOINT,
    "occluded": keys.OBJECT_OCCLUDED,
    "view": keys.OBJECT_VIEW,
}
"""What records of detection can hold of each object beside what they always do, and the key of each. The view is a
text, and of keypoints (whose keys begin so) there are several an object: TensorFlow's readers give both, and no field
of the loader does."""
_KEPT_FIELDS = {
    "category_id": ("source_classes", "int32"),
    "group_of": ("group_of", "bool"),
    "occluded": ("occluded", "bool"),
}


TASKS = {
    "classification": Task(name="classification", first_label_id=0, own_fields=_classification),
    "detection": Task(name="detection", first_label_id=1, has_boxes=True, own_fields=_detection),
    "segmentation": Task(
        name="segmentation", first_label_id=0, has_label_image=True, own_fields=_segmentation
    ),
}
"""Known tasks. Detection's labels begin at 1: 0 is background and padding. Segmentation's label is the index of a
class at every pixel or voxel, 0 the background, or of each class whether the voxel is in it; it is 0 throughout where
the source has none (`labelled` is False)."""


def task_named(name: str) -> Task:
    """The task of that name; UsageError that lists the known ones."""
    if name not in TASKS:
        raise UsageError(f"unknown task {name!r}; known: {', '.join(TASKS)}")
    return TASKS[name]


_COMPARED = ("keys", "dtype", "axes", "shape", "encoding")


def field_problems(task: str, fields: Sequence[Field], labels: Collection[int]) -> Iterator[tuple[str, str]]:
    """Every (path in a manifest, what is wrong) in which fields are not those of a task's records.

    Args:
        task: a key of `TASKS`.
        fields: each sound by itself, see `Field.problems`.
        labels: the ids of the classes.
    """
    named = {field.name: field for field in fields}
    image = named.get("image")
    if image is None:
        yield "fields.image", "it is missing"
        return
    kind = kind_of(image.axes)
    if kind is None:
        known = "expected the axes height, width and channel, perhaps depth or frame before them"
        yield "fields.image", f"{known}, got {image.axes!s:.200}"
        return
    if problem := kind.image_problem(image):
        yield "fields.image", problem
        return
    label, boxes = named.get("label"), named.get("boxes")
    in_sets = task == "segmentation" and label is not None and label.holds_sets
    expected = task_named(task).fields(
        ImageFormat(
            kind=kind,
            shape=image.shape[:-1],
            channels=image.shape[-1],
            dtype=image.dtype,
            encoding=image.encoding,
            pad_value=image.fill,
            label_dtype="uint16" if label is not None and label.dtype == "uint16" else "uint8",
            classes=sum(identity > 0 for identity in labels) if in_sets else 0,
            scaled="intensity_scale" in named or "intensity_offset" in named,
        ),
        max_boxes=boxes.shape[0] if boxes is not None and boxes.shape else 1,
        masks="masks" in named,
        keep=tuple(_KEPT_FIELDS),
        several_classes=len(labels) if task == "classification" and "labels" in named else None,
    )
    for field in fields:
        pattern = next((other for other in expected if other.name == field.name), None)
        if pattern is None:
            yield f"fields.{field.name}", f"records of {task} have no such field"
            continue
        for attribute in _COMPARED:
            ours, theirs = getattr(field, attribute), getattr(pattern, attribute)
            if ours != theirs:
                yield f"fields.{field.name}.{attribute}", f"expected {theirs!r} of {task}, got {ours!r:.200}"
    for pattern in expected:
        if pattern.name not in named and not pattern.optional:
            yield f"fields.{pattern.name}", f"it is missing, and all records of {task} have it"
