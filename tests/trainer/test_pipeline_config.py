"""A pipeline.config of the TF Object Detection API becomes the recipe that follows it, or is refused by its fields."""

import re

import pytest

from halofeed.errors import UsageError
from halofeed.trainer.config import load_config
from tests.support.dataset_writer import draw_examples, write_dataset
from tests.support.training import command, logged

HYPER = """activation: RELU_6, regularizer {{ l2_regularizer {{ weight: {decay} }} }}
    initializer {{ {initializer} {{ stddev: {deviation} mean: 0.0 }} }}
    batch_norm {{ train: true, scale: true, center: true, decay: {norm}, epsilon: 0.001, }}"""
SSD_ANCHORS = "ssd_anchor_generator { num_layers: 6 min_scale: LOW max_scale: 0.95 aspect_ratios: [1.0, 2.0, 0.5]"
SSD_ANCHORS += " aspect_ratios: 3.0 aspect_ratios: 0.3333 }"
PREDICTOR = "weight_shared_convolutional_box_predictor { class_prediction_bias_init: -4.6 "
CROP = "random_crop_image { min_object_covered: 0.0 min_aspect_ratio: 0.75 max_aspect_ratio: 3.0 min_area: 0.75"
CROP += " max_area: 1.0 overlap_thresh: 0.0 }"
PYRAMID = {
    "side": 640, "anchors": "multiscale_anchor_generator { min_level: 3 max_level: 7 anchor_scale: 4.0 "
    "aspect_ratios: [1.0, 2.0, 0.5] scales_per_octave: 2 }", "alpha": 0.25, "weight": 1.0, "norm": 0.997,
    "predictor": PREDICTOR + "depth: 256 num_layers_before_predictor: 4 kernel_size: 3", "crop": CROP, "batch": 64,
    "steps": 25000, "rates": (0.04, 0.013333, 2000),
}  # fmt: skip
RESNET = {"kind": "ssd_resnet50_v1_fpn", "decay": 4e-4, "init": ("truncated_normal_initializer", 0.03), **PYRAMID}
MOBILENET = {"kind": "ssd_mobilenet_v1_fpn", "decay": 4e-5, "init": ("random_normal_initializer", 0.01), **PYRAMID}
SSD = {
    "kind": "ssd_mobilenet_v1", "side": 300, "decay": 4e-5, "init": ("truncated_normal_initializer", 0.03),
    "anchors": SSD_ANCHORS.replace("LOW", "0.2"), "alpha": 0.75, "weight": 1.0, "norm": 0.97,
    "predictor": "convolutional_box_predictor { use_dropout: false kernel_size: 1 class_prediction_bias_init: -4.6",
    "crop": "ssd_random_crop { }", "batch": 1024, "steps": 20000, "rates": (0.9, 0.3, 1000),
}  # fmt: skip
PPN = {
    **SSD, "kind": "ssd_mobilenet_v1_ppn", "init": ("random_normal_initializer", 0.01), "weight": 1.5,
    "anchors": SSD_ANCHORS.replace("LOW", "0.15 reduce_boxes_in_lowest_layer: false"), "batch": 512, "steps": 50000,
    "predictor": PREDICTOR + "depth: 512 num_layers_before_predictor: 1 kernel_size: 1 share_prediction_tower: true",
    "rates": (0.7, 0.1333, 2000),
}  # fmt: skip
RECIPES = {
    "retinanet_resnet50_fpn_640": RESNET,
    "retinanet_mobilenet_v1_fpn_640": MOBILENET,
    "ssd_mobilenet_v1_300": SSD,
    "ssd_mobilenet_v1_ppn_300": PPN,
}


def pipeline(given):
    """The text of a sample configuration, from what differs between the four."""
    hyper = {"decay": given["decay"], "norm": given["norm"]}
    extractor = HYPER.format(initializer=given["init"][0], deviation=given["init"][1], **hyper)
    predictor = HYPER.format(initializer="random_normal_initializer", deviation=0.01, **hyper)
    rate, warmup_rate, warmup_steps = given["rates"]
    return f"""
model {{ ssd {{ # the model
  num_classes: 90 inplace_batchnorm_update: true freeze_batchnorm: false encode_background_as_zeros: true
  box_coder {{ faster_rcnn_box_coder {{ y_scale: 10.0 x_scale: 10.0 height_scale: 5.0 width_scale: 5.0 }} }}
  matcher {{ argmax_matcher {{ matched_threshold: 0.5 unmatched_threshold: 0.5 ignore_thresholds: false
    negatives_lower_than_unmatched: true force_match_for_each_row: true use_matmul_gather: true }} }}
  similarity_calculator {{ iou_similarity {{ }} }}
  anchor_generator {{ {given["anchors"]} }}
  image_resizer {{ fixed_shape_resizer {{ height: {given["side"]} width: {given["side"]} }} }}
  box_predictor {{ {given["predictor"]} conv_hyperparams {{ {predictor} }} }} }}
  feature_extractor {{ type: '{given["kind"]}' min_depth: 16 depth_multiplier: 1.0
    conv_hyperparams {{ {extractor} }} override_base_feature_extractor_hyperparams: true }}
  loss {{ classification_loss {{ weighted_sigmoid_focal {{ alpha: {given["alpha"]} gamma: 2.0 }} }}
    localization_loss {{ weighted_smooth_l1 {{ }} }}
    classification_weight: 1.0 localization_weight: {given["weight"]} }}
  normalize_loss_by_num_matches: true normalize_loc_loss_by_codesize: true
  post_processing {{ batch_non_max_suppression {{ score_threshold: 1e-8 iou_threshold: 0.6
    max_detections_per_class: 100 max_total_detections: 100 }} score_converter: SIGMOID }}
}} }}
train_config: {{
  fine_tune_checkpoint: "PATH/model.ckpt" batch_size: {given["batch"]} sync_replicas: true num_steps: {given["steps"]}
  data_augmentation_options {{ random_horizontal_flip {{ }} }}
  data_augmentation_options {{ {given["crop"]} }}
  optimizer {{ momentum_optimizer: {{ learning_rate: {{ cosine_decay_learning_rate {{ learning_rate_base: {rate}
    total_steps: {given["steps"]} warmup_learning_rate: {warmup_rate} warmup_steps: {warmup_steps} }} }}
    momentum_optimizer_value: 0.9 }} use_moving_average: false }}
  max_number_of_boxes: 100
}}
train_input_reader: {{ label_map_path: "PATH/mscoco_label_map.pbtxt" }}
"""


@pytest.mark.parametrize("name", RECIPES)
def test_a_sample_configuration_becomes_its_recipe(name, tmp_path):
    file = tmp_path / "pipeline.config"
    file.write_text(pipeline(RECIPES[name]))
    found, recipe = load_config(str(file)).to_json(), load_config(name).to_json()
    only_ours = ("evaluate_every", "checkpoint_every")
    assert {**found, **dict.fromkeys(only_ours)}.keys() == recipe.keys()
    for key in recipe.keys() - {*only_ours, "model_options", "task_options", "augment"}:
        assert found[key] == recipe[key], key
    for key in ("model_options", "task_options"):
        assert {option: found[key][option] for option in recipe[key]} == recipe[key]
    assert [one["name"] for one in found["augment"]] == [one["name"] for one in recipe["augment"]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("iou_threshold: 0.6", "iou_threshold: many", "iou_threshold: expected a float, got many"),
        ("score_converter: SIGMOID", "score_converter: SOFTMAX", "score_converter: expected SIGMOID, the only one"),
        ("ssd_random_crop { }", "random_adjust_hue { }", r"options: expected one of random_horizontal_flip, .* got random_"),
        ("weighted_smooth_l1 { }", "weighted_smooth_l1 { } weighted_iou { }", r"localization_loss\.weighted_iou: has no"),
        ("total_steps: 20000", "total_steps: 9", "total_steps: expected 20000"),
        ("type: 'ssd_mobilenet_v1'", "type: 'ssd_inception_v2'", "type: expected one of ssd_mobilenet_v1, .* got ssd_inc"),
        ("decay: 0.97, epsilon: 0.001, }}\n", "}", "not a text proto|expected the norm decay of the feature extractor"),
        ("model { ssd", "model { faster_rcnn", "model: expected one of ssd, got faster_rcnn"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_refused_by_its_name(old, new, message, tmp_path):
    file, text = tmp_path / "pipeline.config", pipeline(SSD)
    file.write_text(re.sub(re.escape(old), lambda _: new, text) if old in text else text.replace("}", "", 1))
    with pytest.raises(UsageError, match=rf"--config .*pipeline\.config: .*({message})"):
        load_config(str(file))


def test_a_sample_configuration_trains_with_one_command(tmp_path):
    data = write_dataset(tmp_path / "data", draw_examples("detection", {"train": 8}, shape=(300, 300, 3)), task="detection")
    text = pipeline(SSD).replace("batch_size: 1024", "batch_size: 4").replace("steps: 20000", "steps: 10")
    (tmp_path / "pipeline.config").write_text(text.replace("warmup_steps: 1000", "warmup_steps: 2"))
    options = ("--virtual-devices", 1, "--set", "model.width=8")
    printed = command("train", data, "--config", tmp_path / "pipeline.config", "--out", tmp_path / "run", *options)
    assert "model.ssd.matcher.argmax_matcher.force_match_for_each_row -> task.force_match_for_each_row = True" in printed
    assert len(logged(tmp_path / "run")) >= 1
