"""A pipeline.config of the TF Object Detection API becomes the recipe that follows it, or is refused by its fields."""

import pytest

from halofeed.errors import UsageError
from halofeed.loader.augment import build_augmentations
from halofeed.prep.options.recipe_file import read_recipe
from halofeed.trainer.config import load_config
from tests.support.dataset_writer import draw_examples, write_dataset
from tests.support.training import command, logged

SAMPLE = """
model { ssd { # the model
  num_classes: 90 inplace_batchnorm_update: true freeze_batchnorm: false encode_background_as_zeros: true
  box_coder { faster_rcnn_box_coder { y_scale: 10.0 x_scale: 10.0 height_scale: 5.0 width_scale: 5.0 } }
  matcher { argmax_matcher { matched_threshold: 0.5 unmatched_threshold: 0.5 ignore_thresholds: false
    negatives_lower_than_unmatched: true force_match_for_each_row: true use_matmul_gather: true } }
  similarity_calculator { iou_similarity { } }
  anchor_generator { $anchors }
  image_resizer { fixed_shape_resizer { height: $side width: $side } }
  box_predictor { $predictor class_prediction_bias_init: -4.6
    conv_hyperparams { $hyper initializer { random_normal_initializer { stddev: 0.01 mean: 0.0 } } } } }
  feature_extractor { type: '$kind' min_depth: 16 depth_multiplier: 1.0
    conv_hyperparams { $hyper initializer { $init_initializer { stddev: $deviation } } }
    override_base_feature_extractor_hyperparams: true }
  loss { classification_loss { weighted_sigmoid_focal { alpha: $alpha gamma: 2.0 } }
    localization_loss { weighted_smooth_l1 { } } classification_weight: 1.0 localization_weight: $weight }
  normalize_loss_by_num_matches: true normalize_loc_loss_by_codesize: true
  post_processing { batch_non_max_suppression { score_threshold: 1e-8 iou_threshold: 0.6
    max_detections_per_class: 100 max_total_detections: 100 } score_converter: SIGMOID }
} }
train_config: {
  fine_tune_checkpoint: "PATH/model.ckpt" batch_size: $batch sync_replicas: true num_steps: $steps
  data_augmentation_options { random_horizontal_flip { } } data_augmentation_options { $crop }
  optimizer { momentum_optimizer: { learning_rate: { cosine_decay_learning_rate { total_steps: $steps
    learning_rate_base: $rate warmup_learning_rate: $first warmup_steps: $rising } }
    momentum_optimizer_value: 0.9 } use_moving_average: false }
  max_number_of_boxes: 100
}
train_input_reader: { label_map_path: "PATH/mscoco_label_map.pbtxt" }
"""
MACROS = {
    "$hyper": "activation: RELU_6, regularizer { l2_regularizer { weight: $decay } } batch_norm "
    "{ train: true, scale: true, center: true, decay: $norm, epsilon: 0.001, }",
    "$ssd": "ssd_anchor_generator { max_scale: 0.95 aspect_ratios: [1.0, 2.0, 0.5, 3.0] aspect_ratios: 0.3333",
    "$levels": "multiscale_anchor_generator { min_level: 3 max_level: 7 aspect_ratios: [1.0, 2.0, 0.5]",
    "$tower": "weight_shared_convolutional_box_predictor { num_layers_before_predictor",
    "$single": "convolutional_box_predictor { use_dropout",
    "$least": "random_crop_image { min_object_covered: 0.0 min_area: 0.75 max_aspect_ratio: 3.0 overlap_thresh: 0.0 }",
}
VALUES = """
kind      | ssd_resnet50_v1_fpn       | ssd_mobilenet_v1_fpn      | ssd_mobilenet_v1   | ssd_mobilenet_v1_ppn
init      | truncated_normal          | random_normal             | truncated_normal   | random_normal
deviation | 0.03                      | 0.01                      | 0.03               | 0.01
decay     | 0.0004                    | 0.00004                   | 0.00004            | 0.00004
norm      | 0.997                     | 0.997                     | 0.97               | 0.97
side      | 640                       | 640                       | 300                | 300
anchors   | $levels }                 | $levels }                 | $ssd min_scale: .2 } | $ssd min_scale: .15 $whole }
whole     |                           |                           |         | reduce_boxes_in_lowest_layer: false
predictor | $tower: 4 depth: 256      | $tower: 4 depth: 256      | $single: false     | $tower: 1 depth: 512 $shared
shared    |                           |                           |   | kernel_size: 1 share_prediction_tower: true
alpha     | 0.25                      | 0.25                      | 0.75               | 0.75
weight    | 1.0                       | 1.0                       | 1.0                | 1.5
batch     | 64                        | 64                        | 1024               | 512
crop      | $least                    | $least                    | ssd_random_crop { } | ssd_random_crop { }
steps     | 25000                     | 25000                     | 20000              | 50000
rate      | .04                       | .04                       | 0.9                | 0.7
first     | .013333                   | .013333                   | 0.3                | 0.1333
rising    | 2000                      | 2000                      | 1000               | 2000
"""
NAMES = (
    "retinanet_resnet50_fpn_640",
    "retinanet_mobilenet_v1_fpn_640",
    "ssd_mobilenet_v1_300",
    "ssd_mobilenet_v1_ppn_300",
)
SSD, COMPARED = NAMES[2], {"evaluate_every", "checkpoint_every", "model_options", "task_options", "augment"}


@pytest.fixture
def load(tmp_path):
    def load(recipe, *changes):
        text, column = SAMPLE, 1 + NAMES.index(recipe)
        own = {f"${row[0]}": row[column] for row in rows_of(VALUES)}
        for name, value in [*own.items(), *MACROS.items(), *own.items()]:
            text = text.replace(name, value)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "pipeline.config").write_text(text)
        return load_config(str(tmp_path / "pipeline.config"))

    return load


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_configuration_becomes_its_recipe(name, load):
    found, recipe = load(name).to_json(), load_config(name).to_json()
    for key in recipe.keys() - COMPARED:
        assert found[key] == recipe[key], key
    for key in ("model_options", "task_options"):
        assert {option: found[key][option] for option in recipe[key]} == recipe[key]
    assert build_augmentations(found["augment"]) == build_augmentations(recipe["augment"])


REFUSED = r"""
iou_threshold: 0.6   | iou_threshold: many          | iou_threshold: expected a float, got many
converter: SIGMOID   | converter: SOFTMAX           | score_converter: expected SIGMOID, the only one
ssd_random_crop      | random_adjust_hue            | options: expected one of random_horizontal_flip, .* got random_
smooth_l1 { }        | smooth_l1 { } weighted_iou { } | localization_loss\.weighted_iou: has no counterpart
total_steps: 20000   | total_steps: 9               | total_steps: expected 20000
'ssd_mobilenet_v1'   | 'ssd_inception_v2'           | type: expected one of ssd_mobilenet_v1, .* got ssd_incep
{ ssd {              | { faster_rcnn {              | model: expected one of ssd, got faster_rcnn
train_config: {      | train_config: { {            | text proto:
fixed_shape_resizer  | keep_aspect_ratio_resizer    | expected pad_to_max_dimension, so that all images have one shape
"""
STORED = """
fixed_shape_resizer { height: 640 } | resize=fixed-shape height=640 width=300 interpolation=tf1-bilinear
fixed_shape_resizer { resize_method: AREA convert_to_grayscale: true } | interpolation=tf1-area channels=1
keep_aspect_ratio_resizer { } | resize=keep-aspect min_dimension=600 max_dimension=1024 pad=False max_boxes=100
keep_aspect_ratio_resizer { pad_to_max_dimension: true per_channel_pad_value: [9, 8, 7] } | pad=True pad_value=[9,8,7]
identity_resizer { } | image_resizer: expected one of fixed_shape_resizer, .*, got identity_resizer
fixed_shape_resizer { resize_method: CUBIC } | resize_method: expected one of BILINEAR, .*, got CUBIC
fixed_shape_resizer { depth: 3 } | fixed_shape_resizer.depth: has no counterpart
"""


def rows_of(table):
    return [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]


@pytest.mark.parametrize(("old", "new", "message"), rows_of(REFUSED))
def test_what_cannot_be_translated_is_refused_by_its_name(old, new, message, load):
    with pytest.raises(UsageError, match=rf"--config .*pipeline\.config: .*{message}"):
        load(SSD, (old, new))


@pytest.mark.parametrize(("resizer", "expected"), rows_of(STORED))
def test_the_resizer_becomes_options_of_a_conversion_or_is_refused(resizer, expected, tmp_path):
    file = tmp_path / "pipeline.config"
    file.write_text(f"model {{ faster_rcnn {{ image_resizer {{ {resizer} }} }} }}")
    if "expected" in expected or "counterpart" in expected:
        with pytest.raises(UsageError, match=rf"--recipe .*pipeline\.config: .*{expected}"):
            read_recipe(file)
    else:
        found = {name: str(value).replace(" ", "") for name, value in read_recipe(file).document.items()}
        assert dict(one.split("=") for one in expected.split()).items() <= found.items()
        read_recipe(file).changed({"encoding": "png"})


@pytest.mark.long
def test_a_sample_configuration_trains_with_one_command(load, tmp_path):
    load(SSD)
    examples = draw_examples("detection", {"train": 8}, shape=(300, 300, 3))
    data = write_dataset(tmp_path / "data", examples, task="detection")
    options = ("--out", tmp_path / "run", "--set", "model.width=8", "--steps", 10, "--batch-size", 8)
    printed = command("train", data, "--config", tmp_path / "pipeline.config", *options)
    assert "argmax_matcher.force_match_for_each_row -> task.force_match_for_each_row = True" in printed
    assert "warmup_steps = 2, a fifth of this run's 10 updates, in place of 1000" in printed
    assert logged(tmp_path / "run")[-1]["step"] == 10
