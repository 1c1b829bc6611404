"""Reader of `pipeline.config` files of the TensorFlow Object Detection API: an SSD model and its training.

Every field is translated, known to have no effect here, or refused by its name. Fields that are missing have the
defaults of the API's .proto files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from halofeed.prep.options.pipeline_data import read_resizer
from halofeed.schemas.text_proto import Message
from halofeed.system.errors import UsageError

FIRST_WIDTH = 32
"""Channels of MobileNet's first convolution at the depth multiplier 1."""
LEAST_MULTIPLIER = 0.25
"""Depth multiplier below which the API's min_depth of 16 widens single layers."""
EXTRACTORS: dict[str, dict[str, Any]] = {
    "ssd_mobilenet_v1": {"model": "ssd_mobilenet_v1"},
    "ssd_mobilenet_v1_ppn": {"model": "ssd_mobilenet_v1_ppn"},
    "ssd_mobilenet_v1_fpn": {"model": "retinanet", "backbone": "mobilenet_v1", "variant": "slim"},
    "ssd_resnet50_v1_fpn": {"model": "retinanet", "backbone": "resnet50", "variant": "slim"},
}
"""Types of feature extractors, with the model and its options."""
_DATA = ("train_input_reader", "eval_config", "eval_input_reader", "graph_rewriter")
_OF_OTHER_SYSTEMS = (
    *("sync_replicas", "startup_delay_steps", "replicas_to_aggregate", "unpad_groundtruth_tensors"),
    *("batch_queue_capacity", "num_batch_queue_threads", "prefetch_queue_capacity"),
    *("keep_checkpoint_every_n_hours", "from_detection_checkpoint", "load_all_detection_checkpoint_vars"),
    *(
        "fine_tune_checkpoint_type",
        "fine_tune_checkpoint_version",
        "max_number_of_boxes",
        "fine_tune_checkpoint",
    ),
)


def read_pipeline(text: str) -> tuple[dict[str, Any], list[str]]:
    """Translate a pipeline.config.

    Args:
        text: content of the file.

    Returns:
        The settings of a `TrainConfig`, and a line for each translated field.

    Raises:
        UsageError: the text cannot be read, or fields cannot be translated; the message names all of them.
    """
    root = Message.parse(text)
    _, ssd = root.message("model").only("ssd")
    settings = _model(ssd)
    settings |= _training(root.message("train_config"))
    root.mapped.append(
        "boxes, classes and files: those of the data set, of `halofeed convert --recipe pipeline.config`"
    )
    root.ignore(*_DATA)
    root.refuse_others()
    if root.problems:
        raise UsageError("; ".join(root.problems))
    return settings, root.mapped


def _model(ssd: Message) -> dict[str, Any]:
    settings = _extractor(ssd)
    options, task = settings["model_options"], settings["task_options"]
    settings["image_shape"] = _image_shape(ssd.message("image_resizer"))
    _, coder = ssd.message("box_coder").only("faster_rcnn_box_coder")
    scales = (("y_scale", 10.0), ("x_scale", 10.0), ("height_scale", 5.0), ("width_scale", 5.0))
    task["box_code_scales"] = [coder.value(name, default, "task.box_code_scales") for name, default in scales]
    _, matcher = ssd.message("matcher").only("argmax_matcher")
    for name, default in (("matched_threshold", 0.5), ("unmatched_threshold", 0.5)):
        task[name] = matcher.value(name, default, f"task.{name}")
    for name in ("ignore_thresholds", "force_match_for_each_row", "use_matmul_gather"):
        task[name] = matcher.value(name, False, f"task.{name}")
    name = "negatives_lower_than_unmatched"
    task[name] = matcher.value(name, True, f"task.{name}")
    ssd.message("similarity_calculator").only("iou_similarity")
    options.update(_anchors(ssd.message("anchor_generator"), settings["model"], options))
    task.update(_loss(ssd.message("loss")))
    name = "normalize_loc_loss_by_codesize"
    task[name] = ssd.value(name, False, f"task.{name}")
    task.update(_post_processing(ssd.message("post_processing")))
    for name, expected, default in (
        ("normalize_loss_by_num_matches", True, True),
        ("encode_background_as_zeros", True, False),
        ("negative_class_weight", 1.0, 1.0),
        ("freeze_batchnorm", False, False),
    ):
        ssd.expect(name, expected, default)
    ssd.ignore("num_classes", "inplace_batchnorm_update")
    return settings


def _image_shape(resizer: Message) -> list[int]:
    stored = read_resizer(resizer)
    # The program of a step has one shape.
    if not stored.get("pad", True):
        resizer.problems.append(
            f"{resizer.path}: expected pad_to_max_dimension, so that all images have one shape"
        )
    if "channels" in stored:
        resizer.problems.append(
            f"{resizer.path}: convert_to_grayscale: expected false, as the model has 3 channels"
        )
    side = stored.get("max_dimension", 0)
    shape: list[int] = [stored.get("height", side), stored.get("width", side), 3]
    resizer.mapped.append(f"{resizer.path} -> image_shape = {shape}")
    return shape


def _extractor(ssd: Message) -> dict[str, Any]:
    """Translate the feature extractor and the box predictor, which share their hyperparameters."""
    extractor = ssd.message("feature_extractor")
    options = dict(EXTRACTORS[extractor.choice("type", EXTRACTORS, "")])
    extractor.mapped.append(f"{extractor.path}.type -> model = {options['model']}")
    settings = {"model": options.pop("model"), "model_options": options, "task_options": {}}
    is_retinanet = settings["model"] == "retinanet"
    # The extractors' `preprocess`: ResNet-50 subtracts ImageNet's means, MobileNet scales to -1 to 1.
    settings["normalization"] = "caffe" if options.get("backbone") == "resnet50" else "tf"
    multiplier = extractor.value("depth_multiplier", 1.0)
    width = FIRST_WIDTH * multiplier
    if options.get("backbone") == "resnet50":
        extractor.expect("depth_multiplier", 1.0, 1.0)
    # Other multipliers give layers whose widths are no multiples of the first one's.
    elif width != int(width) or multiplier < LEAST_MULTIPLIER:
        extractor.problems.append(
            f"{extractor.path}.depth_multiplier: expected a multiple of 1/{FIRST_WIDTH}, at least {LEAST_MULTIPLIER}, "
            f"got {multiplier}"
        )
    else:
        options["width"] = int(extractor.value("depth_multiplier", 1.0, "model.width = 32 *") * FIRST_WIDTH)
    for name, expected, default in (
        ("min_depth", 16, 16),
        ("pad_to_multiple", 1, 1),
        ("use_explicit_padding", False, False),
        ("use_depthwise", False, False),
        ("override_base_feature_extractor_hyperparams", True, False),
    ):
        extractor.expect(name, expected, default)
    features = 256
    if is_retinanet:
        pyramid = extractor.message("fpn")
        pyramid.expect("min_level", 3, 3)
        options["last_level"] = pyramid.value("max_level", 7, "model.last_level")
        features = math.floor(pyramid.value("additional_layer_depth", 256, "model.features") * multiplier)
        options["features"] = features
    settings |= _hyperparameters(extractor.message("conv_hyperparams"), options, settings["model"])
    _predictor(ssd.message("box_predictor"), settings, features)
    return settings


def _hyperparameters(given: Message, options: dict[str, Any], model: str) -> dict[str, Any]:
    settings = _common_hyperparameters(given)
    name, initializer = given.message("initializer").only(
        "truncated_normal_initializer", "random_normal_initializer"
    )
    initializer.expect("mean", 0.0, 0.0)
    deviation = initializer.value("stddev", 1.0)
    if model != "ssd_mobilenet_v1_ppn":  # It has no layers besides the backbone and the predictor.
        options["kernel_init"] = "truncated_normal" if name.startswith("truncated") else "normal"
        options["kernel_deviation"] = initializer.value("stddev", deviation, "model.kernel_deviation")
    return settings


def _common_hyperparameters(given: Message) -> dict[str, Any]:
    given.expect("op", "CONV", "CONV")
    given.expect("activation", "RELU_6", "RELU")
    given.ignore("regularize_depthwise")
    _, regularizer = given.message("regularizer").only("l2_regularizer")
    norm = given.message("batch_norm")
    for name in ("center", "scale", "train"):
        norm.expect(name, True, name != "scale")
    return {
        "weight_decay": regularizer.value("weight", 1.0, "weight_decay"),
        "norm_decay": norm.value("decay", 0.999, "norm_decay"),
        "norm_epsilon": norm.value("epsilon", 0.001, "norm_epsilon"),
    }


def _predictor(predictor: Message, settings: Mapping[str, Any], features: int) -> None:
    options, model = settings["model_options"], settings["model"]
    if model == "ssd_mobilenet_v1":
        _, given = predictor.only("convolutional_box_predictor")
        for name in ("min_depth", "max_depth", "num_layers_before_predictor"):
            given.expect(name, 0, 0)
        given.expect("use_dropout", False, True)
        given.expect("apply_sigmoid_to_scores", False, False)
        given.expect("kernel_size", 1, 1)
    else:
        is_retinanet = model == "retinanet"
        _, given = predictor.only("weight_shared_convolutional_box_predictor")
        options["tower_depth"] = given.value("num_layers_before_predictor", 0, "model.tower_depth")
        given.expect("kernel_size", 3 if is_retinanet else 1, 3)
        given.expect("share_prediction_tower", not is_retinanet, False)
        given.expect("use_dropout", False, False)
        if is_retinanet:
            given.expect("depth", features, 0)
        else:
            options["tower_features"] = given.value("depth", 0, "model.tower_features")
    given.ignore("dropout_keep_probability")
    given.expect("box_code_size", 4, 4)
    given.expect("class_prediction_bias_init", -4.6, 0.0)
    given.expect("use_depthwise", False, False)
    own = given.message("conv_hyperparams")
    _, initializer = own.message("initializer").only("random_normal_initializer")
    initializer.expect("mean", 0.0, 0.0)
    initializer.expect("stddev", 0.01, 1.0)
    for name, value in _common_hyperparameters(own).items():
        # The optimizer and the norms of a run have one value for the complete model.
        if value != settings[name]:
            expected = f"expected {settings[name]} as in the feature extractor"
            own.problems.append(f"{own.path}: {name.replace('_', ' ')}: {expected}, got {value}")


def _anchors(generator: Message, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if model == "retinanet":
        _, given = generator.only("multiscale_anchor_generator")
        given.expect("min_level", 3, 3)
        given.expect("max_level", options["last_level"], 7)
        given.expect("normalize_coordinates", True, True)
        return {
            "anchor_scale": given.value("anchor_scale", 4.0, "model.anchor_scale"),
            "aspect_ratios": given.values("aspect_ratios", [1.0, 2.0, 0.5]),
            "scales_per_octave": given.value("scales_per_octave", 2, "model.scales_per_octave"),
        }
    _, given = generator.only("ssd_anchor_generator")
    given.expect("num_layers", 6, 6)
    given.expect("reduce_boxes_in_lowest_layer", model == "ssd_mobilenet_v1", True)
    return {
        "min_scale": given.value("min_scale", 0.2, "model.min_scale"),
        "max_scale": given.value("max_scale", 0.95, "model.max_scale"),
        "aspect_ratios": given.values("aspect_ratios", [1.0, 2.0, 0.5, 3.0, 1 / 3]),
    }


def _loss(loss: Message) -> dict[str, Any]:
    name, of_classes = loss.message("classification_loss").only("weighted_sigmoid_focal", "weighted_sigmoid")
    of_classes.ignore("anchorwise_output")
    alpha, gamma = None, 0.0
    if name == "weighted_sigmoid_focal":
        gamma = of_classes.value("gamma", 2.0, "task.gamma")
        # losses.proto has no default: without alpha, positives and negatives weigh the same.
        if "alpha" in of_classes.fields:
            alpha = of_classes.value("alpha", 0.25, "task.alpha")
    _, of_boxes = loss.message("localization_loss").only("weighted_smooth_l1")
    of_boxes.ignore("anchorwise_output")
    return {
        "alpha": alpha,
        "gamma": gamma,
        "box_loss": "weighted_smooth_l1",
        "delta": of_boxes.value("delta", 1.0, "task.delta"),
        "class_loss_weight": loss.value("classification_weight", 1.0, "task.class_loss_weight"),
        "box_loss_weight": loss.value("localization_weight", 1.0, "task.box_loss_weight"),
    }


def _post_processing(given: Message) -> dict[str, Any]:
    given.expect("score_converter", "SIGMOID", "IDENTITY")
    given.expect("logit_scale", 1.0, 1.0)
    selection = given.message("batch_non_max_suppression")
    selection.ignore("use_static_shapes", "max_detections_per_class")
    selection.expect("use_class_agnostic_nms", False, False)
    selection.expect("soft_nms_sigma", 0.0, 0.0)
    return {
        "score_threshold": selection.value("score_threshold", 0.0, "task.score_threshold"),
        "nms_iou": selection.value("iou_threshold", 0.6, "task.nms_iou"),
        "max_detections": selection.value("max_total_detections", 100, "task.max_detections"),
    }


def _training(given: Message) -> dict[str, Any]:
    batch_size = given.value("batch_size", 32, "batch_size")
    steps = given.value("num_steps", 0, "steps")
    # The API trains forever at 0, its default.
    if steps < 1:
        given.problems.append(f"{given.path}.num_steps: expected 1 or more, got {steps}")
    settings: dict[str, Any] = {"batch_size": batch_size, "base_batch_size": batch_size, "steps": steps}
    settings["augment"] = [_augmentation(step) for step in given.messages("data_augmentation_options")]
    settings["clip_norm"] = given.value("gradient_clipping_by_norm", 0.0, "clip_norm")
    given.expect("bias_grad_multiplier", 0.0, 0.0)
    given.expect("merge_multiple_label_boxes", False, False)
    given.expect("add_regularization_loss", True, True)
    # Without the field, the default of `TrainConfig` applies.
    if "use_bfloat16" in given.fields:
        use_bfloat16 = given.value("use_bfloat16", False, "compute_dtype = bfloat16:")
        settings["compute_dtype"] = "bfloat16" if use_bfloat16 else "float32"
    given.ignore(*_OF_OTHER_SYSTEMS)
    return settings | _optimizer(given.message("optimizer"), steps)


def _augmentation(step: Message) -> dict[str, Any]:
    known = ("random_horizontal_flip", "random_vertical_flip", "random_crop_image", "ssd_random_crop")
    name, given = step.only(*known)
    if name == "random_crop_image":
        ranges = {"aspect_ratio": ("aspect_ratio_range", 0.75, 1.33), "area": ("area_range", 0.1, 1.0)}
        crop: dict[str, Any] = {"name": "RandomCropImage"}
        for source, (target, low, high) in ranges.items():
            lowest = given.value(f"min_{source}", low, f"RandomCropImage.{target}")
            crop[target] = [lowest, given.value(f"max_{source}", high, f"RandomCropImage.{target}")]
        for part, default in (("min_object_covered", 1.0), ("overlap_thresh", 0.3), ("random_coef", 0.0)):
            crop[part] = given.value(part, default, f"RandomCropImage.{part}")
        given.expect("clip_boxes", True, True)
        return crop
    names = {"random_horizontal_flip": "FlipLeftRight", "random_vertical_flip": "FlipUpDown"}
    ours = names.get(name, "SsdRandomCrop")
    given.mapped.append(f"{given.path} -> augment {ours}")
    return {"name": ours}


def _optimizer(optimizer: Message, steps: int) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    # optimizer.proto: true by default.
    if optimizer.value("use_moving_average", True):
        settings["average_decay"] = optimizer.value("moving_average_decay", 0.9999, "average_decay")
    optimizer.ignore("moving_average_decay")
    name, given = optimizer.only("momentum_optimizer", "adam_optimizer")
    settings["optimizer"] = "adam" if name == "adam_optimizer" else "sgd"
    if name == "momentum_optimizer":
        settings["momentum"] = given.value("momentum_optimizer_value", 0.9, "momentum")
    kinds = ("cosine_decay_learning_rate", "manual_step_learning_rate", "constant_learning_rate")
    kind, rate = given.message("learning_rate").only(*kinds)
    if kind == "cosine_decay_learning_rate":
        rate.expect("total_steps", steps, 4_000_000)
        settings |= {
            "schedule": "cosine",
            "learning_rate": rate.value("learning_rate_base", 0.002, "learning_rate"),
            "warmup_learning_rate": rate.value("warmup_learning_rate", 0.0002, "warmup_learning_rate"),
            "warmup_steps": rate.value("warmup_steps", 10_000, "warmup_steps"),
            "hold_steps": rate.value("hold_base_rate_steps", 0, "hold_steps"),
        }
    elif kind == "manual_step_learning_rate":
        parts = rate.messages("schedule")
        settings["schedule"] = "manual_step"
        settings["rates"] = [rate.value("initial_learning_rate", 0.002, "rates")]
        settings["rates"] += [part.value("learning_rate", 0.002, "rates") for part in parts]
        settings["boundaries"] = [part.value("step", 0, "boundaries") for part in parts]
        # `manual_stepping` warms up to the rate that follows its first boundary.
        if rate.value("warmup", False) and parts:
            settings["warmup_steps"] = settings["boundaries"][0]
    elif kind:
        settings |= {
            "schedule": "constant",
            "learning_rate": rate.value("learning_rate", 0.002, "learning_rate"),
        }
    return settings
