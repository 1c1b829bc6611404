"""Reader of what a pipeline.config of the TensorFlow Object Detection API says about data: resizer, boxes, classes.

Fields that are missing have the defaults of the API's .proto files.
"""

from __future__ import annotations

from typing import Any

from halofeed.schemas.text_proto import Message
from halofeed.system.errors import UsageError

KERNELS = {
    "BILINEAR": "tf1-bilinear",
    "NEAREST_NEIGHBOR": "tf1-nearest",
    "BICUBIC": "tf1-bicubic",
    "AREA": "tf1-area",
}
"""Values of --interpolation by the API's resize methods, which are those of TensorFlow 1 in all its versions."""
_META_ARCHITECTURES = ("ssd", "faster_rcnn", "center_net")
_OF_READING = (
    *("tf_record_input_reader", "name", "shuffle", "shuffle_buffer_size", "filenames_shuffle_buffer_size"),
    *("num_epochs", "num_readers", "num_parallel_batches", "num_parallel_map_calls", "num_prefetch_batches"),
    *("queue_capacity", "min_after_dequeue", "prefetch_size", "read_block_length", "drop_remainder"),
    *("mask_type", "input_type", "use_display_name"),
)
"""Fields of an input reader that change no record."""


def read_pipeline_data(text: str) -> tuple[dict[str, Any], str, list[str]]:
    """Translate a pipeline.config into a recipe of a conversion.

    Args:
        text: content of the file.

    Returns:
        Options of the recipe by name, the path of the label map or "", and a line for each translated field.

    Raises:
        UsageError: the text cannot be read, or fields about data cannot be translated; the message names all of them.
    """
    root = Message.parse(text)
    _, model = root.message("model").only(*_META_ARCHITECTURES)
    resizer = model.message("image_resizer")
    options = read_resizer(resizer)
    training, reader = root.message("train_config"), root.message("train_input_reader")
    options["max_boxes"] = training.value("max_number_of_boxes", 100, "--max-boxes")
    if reader.value("load_instance_masks", False):
        options["masks"] = reader.value("load_instance_masks", False, "--masks")
    label_map = reader.value("label_map_path", "")
    reader.ignore(*_OF_READING)
    for message in (resizer, reader):
        message.refuse_others()
    if root.problems:
        raise UsageError("; ".join(root.problems))
    return options, label_map, root.mapped


def read_resizer(resizer: Message) -> dict[str, Any]:
    """Return the options of a recipe, by name, that resize as an image_resizer does.

    >>> found = Message.parse("fixed_shape_resizer { height: 640 width: 480 }")
    >>> read_resizer(found)
    {'resize': 'fixed-shape', 'height': 640, 'width': 480, 'interpolation': 'tf1-bilinear'}
    >>> found.mapped[0]
    'fixed_shape_resizer.height -> --height = 640'
    """
    options: dict[str, Any]
    name, given = resizer.only("fixed_shape_resizer", "keep_aspect_ratio_resizer")
    # image_resizer.proto of the TF Object Detection API: 300, 600 and 1024 are its defaults.
    if name == "fixed_shape_resizer":
        options = {"resize": "fixed-shape"}
        for side in ("height", "width"):
            options[side] = given.value(side, 300, f"--{side}")
    else:
        options = {"resize": "keep-aspect"}
        for field, option, default in (
            ("min_dimension", "min_dimension", 600),
            ("max_dimension", "max_dimension", 1024),
            ("pad_to_max_dimension", "pad", False),
        ):
            options[option] = given.value(field, default, f"--{option.replace('_', '-')}")
        # 0 is the default padding of the API and of halofeed, so it needs no option.
        if any(padding := given.values("per_channel_pad_value", [0.0])):
            options["pad_value"] = [int(value) if value == int(value) else value for value in padding]
            given.mapped.append(f"{given.path}.per_channel_pad_value -> --pad-value = {options['pad_value']}")
    options["interpolation"] = KERNELS[given.choice("resize_method", KERNELS, "BILINEAR")]
    given.mapped.append(f"{given.path}.resize_method -> --interpolation = {options['interpolation']}")
    # Only the second read records the translation, so a default is not listed.
    if given.value("convert_to_grayscale", False):
        options["channels"] = given.value("convert_to_grayscale", False, "--channels 1:") and 1
    return options
