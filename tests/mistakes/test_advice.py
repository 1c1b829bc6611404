"""Advice in messages: every option that a message names exists, and what each suggests works when it is typed."""

import argparse
import functools
import re
import tempfile
from importlib import import_module
from pathlib import Path

import pytest

from halofeed.cli import _parser
from tests.mistakes import layout_advice
from tests.support.advice import OPTION, modules, refused, run, templates, texts, try_advice

OF_BEAM = {
    *("--runner", "--setup_file", "--extra_package", "--temp_location", "--template_location", "--dry_run"),
    *("--id", "--job_endpoint", "--provision_endpoint", "--direct_num_workers", "--direct_running_mode"),
    *("--project", "--region", "--environment_config"),
}
OF_OTHERS = {
    "--input-file",
    "--input-dose-img",
    "--output-dose-img",
    "--xla_force_host_platform_device_count",
}
OF_OTHERS |= {"--on"}
"""Of tools that convert foreign files, of XLA, and a color of CSS."""
ONLY_OF = {"inspection/batch_png.py": "show", "inspection/bench.py": "bench"}
"""Modules that serve one command."""


def options_of_commands() -> dict[str, set[str]]:
    actions = _parser(None)._actions
    commands = next(action for action in actions if isinstance(action, argparse._SubParsersAction))
    return {name: set(parser._option_string_actions) for name, parser in commands.choices.items()}


def test_every_option_that_a_message_names_is_one_of_its_command() -> None:
    by_command = options_of_commands()
    anywhere = set().union(*by_command.values()) | OF_BEAM | OF_OTHERS
    wrong = [
        f"{name}:{line}: {option}"
        for name, tree in modules()
        for line, text in texts(tree)
        for option in re.findall(OPTION, text)
        if option not in (by_command[ONLY_OF[name]] if name in ONLY_OF else anywhere)
    ]
    assert not wrong, "\n".join(wrong)


MODULES = [
    import_module(f"tests.mistakes.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("*_advice.py"))
    if path != Path(__file__)
]
CASES = {name: advice for module in MODULES for name, advice in module.ADVICE.items()}
assert len(CASES) == sum(len(module.ADVICE) for module in MODULES), "two cases have one name"

FACT = "it says what an option that was given did, or which files a reject is about; its detail says what to type"
OF_LAYOUTS = "only the user knows what the files are; each layout has its own cases"
OF_SHARDS = "fewer files per split change no record"
PROPOSED = "tests/pipelines/test_dry_run.py types all three sides and what else is proposed"
UNKNOWN = "prep/annotations/unknown_annotations.py"
EXCEPTIONS: dict[str, str] = {
    "prep/annotations/pairing.py: channel is left out by --channel-order": FACT,
    "prep/layouts/dicom.py: mask is not chosen by --label-pattern": FACT,
    "prep/annotations/image_index.py: image file lies outside --images": FACT,
    "prep/sources/file_names.py: {} file lies outside --images": FACT,
    "prep/convert/picture_tasks.py: declared size shows another grid than --annotation-grid says": FACT,
    "prep/convert/label_image.py: pixels of several classes are those of the {} one, as --class-overlap": FACT,
    "prep/layouts/dicom.py: a dose is no scan: save it as NIfTI (plastimatch convert": (
        "two of its options are plastimatch's; a case types --layout csv"
    ),
    "prep/layouts/pairs.py: {}: {} cannot be listed, and may hold the masks of a class: all scans": (
        "a superuser lists every folder; a test below types it as an ordinary user"
    ),
    "prep/formats/dicom/series.py: name one as FOLDER#MARK, as --layout dicom lists them": (
        "a conversion names the series of a folder before it opens one; only a program that opens one reads this"
    ),
    "prep/formats/dicom/series.py: , or use --series-split channels": "it ends the message before",
    "loader/forms/ultralytics_form.py: `halofeed export --to coco` writes a file for pycocotools, in which": (
        "it is a status line of a training program; tests/inspection/test_export_data.py types the export"
    ),
    "system/memory.py: has less left; take fewer --workers": (
        "it depends on this machine's memory; tests/prep/sources/test_memory.py limits that"
    ),
    "storage/web.py: the server sends to another host, {}; if that is meant, allow it:": (
        "it needs a server that redirects; tests/loader/store/test_addresses.py types it"
    ),
    "system/resource_errors.py: Run the command with --debug to see where it failed": "it shows more of a failure",
    "halofeed/cli.py: `halofeed COMMAND --help` shows an example of each. `halofeed demo`": "a text of --help",
    "halofeed/cli.py: write halofeed's wheel and sdist for Beam's --extra_package": "a text of --help",
    "prep/annotations/pairing.py: --several-masks merge joins them; for readings of the same structures,": (
        "a case types merge, and tests/pipelines/test_readers_of_masks.py the readers"
    ),
    "inspection/review/review.py: the same conversion with --overwrite adds them": (
        "it is a line of a result; tests/inspection/test_copies.py converts again"
    ),
    **dict.fromkeys(
        (
            "inspection/review/copies.py: Delete all but one of each group in the source, or give them one group",
            "inspection/review/picture_outliers.py: Crop it, or use --resize keep-aspect, which keeps its shape.",
            "inspection/review/scan_outliers.py: Convert it apart, with --offset-hu where HU are stored without their",
            "inspection/review/scan_outliers.py: Check the header; --spacing-mm resamples all scans to one spacing.",
        ),
        "only the user can judge the content of a source",
    ),
    **dict.fromkeys(
        (
            "pipelines/convert.py: --duplicates {}: the sources are compared on this machine before splits",
            "pipelines/duplicates.py: all of them are kept; correct the labels, or leave them out with",
            "pipelines/duplicates.py: --duplicates group: {} of copies {} in several splits of the source,",
        ),
        "they need pictures that show the same; tests/pipelines/test_duplicates.py types what each says",
    ),
    **dict.fromkeys(
        (
            "inspection/review/leak_warning.py: ; the same command with --duplicates group --overwrite keeps copies in",
            "inspection/review/leak_warning.py: ; the same command with --duplicates drop --overwrite converts one of",
            "inspection/review/leak_warning.py: ; the same command with --duplicates drop-conflicts --overwrite",
        ),
        "it ends a warning of a conversion; tests/inspection/test_leak_warning.py types it",
    ),
    "inspection/review/review.py: and {} more; --json FILE lists all": "tests/inspection/test_copies.py types it",
    **dict.fromkeys(
        (
            "inspection/serve/record_server.py: --port {}: cannot be used: {}; leave --port away to take a free one",
            "inspection/serve/record_server.py: Open the address that `halofeed report --serve` printed.",
            "halofeed/api.py: serve: a server runs until Ctrl-C; run `halofeed report {} --serve` in",
            "halofeed/cli.py: --port {}: only --serve has a port; add --serve",
            "halofeed/cli.py: --output {}: --serve writes no file; leave one of them away",
            "halofeed/cli.py: --run {}: --serve shows no label faults; leave --serve away to see them",
        ),
        "a server runs until it is stopped; tests/inspection/test_record_server.py starts one and stops it",
    ),
    "inspection/export_pictures.py: {} pictures have an EXIF orientation, and their boxes are in the pixels": (
        "tests/inspection/test_export_data.py types it"
    ),
    "prep/layouts/detect.py: ; {} too: --layout {} reads that": "another reading of a source that was read",
    "prep/layouts/detect.py: labels for {} of {} inputs; without labels: --layout {}": OF_LAYOUTS,
    "prep/layouts/detect.py: its files show no layout{}; name one of {} with --layout": OF_LAYOUTS,
    **dict.fromkeys(
        (
            f"{UNKNOWN}: write what it says into a table with the columns filename,class for",
            f"{UNKNOWN}: take --layout csv --column {{}}, with label=COLUMN for that of the",
            "prep/annotations/suggest_patterns.py: by name and content, none of its {}, such as {}, is the label of",
            "prep/layouts/coco.py: {} has classes of images, and {} has objects; name one of the two with",
        ),
        "only the user can write the table, the list or the choice of files",
    ),
    "prep/formats/dicom/picture_header.py: it is a whole-slide image: cut it with --fit tiles --height 1024": (
        "tests/prep/formats/test_slide_regions.py cuts slides with these options"
    ),
    "prep/layouts/__init__.py: Cityscapes: leftImg8bit/SPLIT/CITY with gtFine: label images, or": "a text of --help",
    "prep/options/recipe_options.py: --frames, or --layout mot, visdrone-video or cvat": (
        "tests/prep/layouts/test_layout_sequences.py takes every n-th frame of these layouts"
    ),
    "loader/forms/rf_detr_form.py: torch.rf_detr: expected 8-bit colors, got {} with {} channels; convert": (
        "they are the options of another conversion of the same pictures"
    ),
    "prep/annotations/table_files.py: {}: several files of Croissant: {}; name the one to read with --source": (
        "tests/prep/layouts/test_croissant.py types it"
    ),
    "prep/annotations/tfrecord_rows.py: {}: several features are classes: {}; name one of them, such as": (
        "tests/prep/layouts/test_named_columns.py types it"
    ),
    **dict.fromkeys(
        (
            "prep/layouts/coco.py: {}: its annotations have no boxes and no outlines, and give each image",
            "prep/layouts/coco.py: ; --task classification takes the classes of all pictures",
            "prep/layouts/image_table.py: {} with one image per row, or also {} with one box per row; image,label",
        ),
        "tests/prep/layouts/test_foreign_annotations.py, test_layout_picture_classes.py or test_advice_of_cases.py "
        "types it",
    ),
    **dict.fromkeys(
        (
            "prep/convert/loss_findings.py: in place of --sample-bits",
            "prep/convert/loss_findings.py: take --window-percentiles 0,100, or --dtype float32 without them",
            "prep/convert/loss_findings.py: in place of --window",
            "prep/convert/loss_findings.py: take --window-hu {}{}, which holds all values, or --window-percentiles",
            "prep/convert/loss_findings.py: take a finer spacing, such as --spacing-mm {} (that of the sources),",
            "prep/convert/loss_findings.py: take --mask-interpolation nearest",
            "prep/convert/loss_findings.py: take --fit tiles, a larger --depth, --height and --width, or --center",
            "prep/convert/loss_findings.py: --boxes-outside fail",
            "prep/convert/loss_findings.py: --boxes-zero-area fail",
            "prep/convert/loss_findings.py: --boxes-crowd objects takes those flagged as crowds",
            "prep/convert/loss_findings.py: --boxes-difficult objects takes those flagged as difficult",
            "prep/convert/loss_findings.py: if they number objects, --map-classes 1..{}=object makes them one",
            "prep/convert/loss_findings.py: convert the scans to files again, or scale each by itself with",
            "prep/convert/loss_findings.py: --boxes-crowd objects takes them as objects",
            "prep/convert/loss_findings.py: --boxes-difficult objects takes them without the flag",
            "prep/convert/loss_findings.py: and that --classes, --map-classes and --ignore-label leave classes",
            "prep/convert/loss_findings.py: a larger --depth, --height and --width, a --spacing-mm {}",
            "pipelines/commit.py: {}{}; {}. Nothing was committed. --on-loss warn commits the records as",
            "pipelines/declared_sizes.py: {}; {}. The sizes in the annotations show it. Nothing was committed.",
        ),
        "tests/pipelines/test_losses.py, tests/test_cases.py or tests/pipelines/test_boxes.py types it",
    ),
    **dict.fromkeys(
        (
            "prep/layouts/bdd100k.py: classes without boxes, such as lanes and areas, left out: {}; --classes",
            "prep/layouts/cityscapes.py: {}: no file ends in _labelIds.png or _labelTrainIds.png; draw label",
            "prep/layouts/cityscapes.py: {}: no file ends in _polygons.json or _instanceIds.png, which have the",
            "prep/layouts/cityscapes.py: {} of areas left out, whose classes have no single objects in",
            "pipelines/planned_classes.py: halofeed convert: {}: pixels of these values are ignored and are no",
        ),
        "tests/prep/layouts/test_layout_bdd100k.py or test_layout_cityscapes.py types it",
    ),
    **dict.fromkeys(
        (
            "prep/annotations/labels.py: , --ignore-label{}{} ignores their pixels",
            "prep/annotations/labels.py: ; they count up as numbers of objects do, and --map-classes",
            "prep/convert/label_image.py: --label-values shown takes the gray values, as image viewers and most",
            "prep/convert/label_volume.py: --map-classes=",
            "prep/convert/label_volume.py: --ignore-label={} ignores these voxels, {} makes them background",
            "prep/voxels/label_volumes.py: {}; add {}=CLASS to --label-colors, {}=background, or ignore their",
            "pipelines/classes.py: --ignore-label {}: a color, and label images have values; name the",
            "pipelines/label_evidence.py: {} names colors of label images such as {}, and not {}; add them there,",
            "pipelines/label_evidence.py: {} name the colors of {} in different ways; choose one with",
            "pipelines/label_evidence.py: ; --map-classes '{}={}' says that {} is the background",
            "pipelines/list_references.py: halofeed convert: all images are in one split, but {} divide them;",
            "pipelines/planned_classes.py: halofeed convert: label images are in color, such as {}: {} names their",
            "pipelines/planned_classes.py: halofeed convert: label images are files of several forms, as lossless",
            "pipelines/planned_classes.py: halofeed convert: {}: value {} is {}: its pixels are ignored and are no",
            "pipelines/planned_classes.py: halofeed convert: value {} is {}, and is taken as {}; if its pixels",
            "pipelines/planned_classes.py: --class-overlap channels: {} marks pixels without a class, and a set of",
        ),
        "tests/pipelines/test_class_table_sources.py, test_ignore_label.py or tests/test_cases.py types it",
    ),
    **dict.fromkeys(
        (
            "prep/annotations/picture_classes.py: {}: its annotations are objects, and no classes of pictures: take",
            "prep/annotations/picture_classes.py: {}: its annotations have no boxes and no outlines, and give each",
            "prep/annotations/picture_classes.py: without --masks",
            "prep/annotations/picture_classes.py: {}: {}; --several-classes keep takes such pictures",
            "prep/annotations/picture_classes.py: ; if {} means no object: --empty-classes {}",
            "prep/layouts/coco_files.py: {}: segmentation takes a panoptic file, whose annotations have",
            "prep/layouts/image_table.py: {}: no row has a box, and rows have classes: take --task classification",
        ),
        "tests/prep/layouts/test_layout_picture_classes.py or test_layout_documents.py types it",
    ),
    **dict.fromkeys(
        (
            "prep/formats/dicom/real_world_values.py: --real-world-values {} takes the values as they are stored",
            "prep/formats/dicom/real_world_values.py: --real-world-values {} takes the "
            "first; --real-world-values {} takes",
            "prep/formats/dicom/real_world_values.py: {} stored values of {} to {}, mapped "
            "are {} to {}; --real-world-values",
            "prep/formats/dicom/values.py: --real-world-values stored takes the values as they are stored",
            "schemas/findings.py: Convert with --real-world-values stored for the values as they are",
        ),
        "tests/prep/formats/test_dicom_real_world_values.py types it",
    ),
    **dict.fromkeys(
        (
            "prep/annotations/splits.py: --folds and another option both assign splits; give one of them",
            "prep/annotations/splits.py: --group-pattern and --group-column both name groups; give one of them",
            "prep/options/recipe.py: --split-shares and --folds both assign splits; give one of them",
            "prep/options/recipe.py: --group-pattern and --group-column both name groups; give one of them",
            "halofeed/training.py: --fold {} and {} both choose splits; give one of them",
            "halofeed/training.py: --cross-validate and --split {}: each run has its own split; leave one",
            "halofeed/planning.py: --{}: --auto decides this itself; leave one of them out",
        ),
        "of two options that exclude one another the user leaves one out",
    ),
    **dict.fromkeys(
        (
            "prep/annotations/written_boxes.py: {}: it fills {} of its upright box, which "
            "--oriented-boxes upright takes",
            "prep/layouts/folders.py: name the folder of the images and that of the labels with",
            "prep/layouts/folders.py: name the images and labels with --layout pairs, --image-pattern and",
            "prep/layouts/image_table.py: --class-separator={}",
        ),
        "tests/pipelines/test_boxes.py, test_several_classes.py or tests/prep/layouts/test_layout_folders.py types it",
    ),
    **dict.fromkeys(
        (
            "prep/annotations/splits.py: --folds: the images of the source's split {} are in the folds, too; to",
            "prep/options/recipe_options.py: --task classification and another layout than folders",
            "prep/options/recipe_options.py: --split-shares or --folds",
            "trainer/data.py: --set evaluate_split=",
            "schemas/manifest.py: ; choose by fold=0 or --fold 0",
            "schemas/manifest.py: fold {}: {} has no folds, but the splits {}; convert it with --folds 5",
        ),
        "tests of folds, in tests/loader and tests/trainer, give it",
    ),
    **dict.fromkeys(
        (
            "inspection/export_shards.py: {}: the first {} have no boxes, so that Hugging Face's datasets, which",
        ),
        FACT,
    ),
    "prep/formats/picture/image.py: {} x {} pixels (height x width){}, allowed are {} in all; --max-pixels": (
        "it needs a picture of more than 179 million pixels; tests/prep/formats/test_pictures_files.py lowers the limit"
    ),
    "pipelines/summary.py: {}{} of {} shards {} empty; lower --shards": OF_SHARDS,
    "pipelines/dry_run.py: scans {} to {}; at {} mm the median is {}, and the largest sides are {}": PROPOSED,
    "pipelines/dry_run.py: --window-hu {},{}": PROPOSED,
    "pipelines/beam_options.py: --project=PROJECT --region=REGION --temp_location=gs://BUCKET/FOLDER": FACT,
    "halofeed/conversion.py: --depth: volumes have no default size; give --height and --width too.": PROPOSED,
    "prep/layouts/folders.py: {}: all images lie in {}, so that its name would be the only class;": OF_LAYOUTS,
    "prep/layouts/coco_files.py: {}: a panoptic file, whose masks are pictures: take --task segmentation": OF_LAYOUTS,
    **dict.fromkeys(
        (
            "prep/options/pipeline_data.py: {}.per_channel_pad_value -> --pad-value = {}",
            "prep/options/pipeline_data.py: {}.resize_method -> --interpolation = {}",
            "prep/options/pipeline_data.py: --channels 1:",
            "prep/options/recipe_file.py: --label-map = {}",
            "trainer/pipeline_config.py: boxes, classes and files: those of the data set, of `halofeed convert",
        ),
        FACT,
    ),
    "loader/decode.py: {}: NumPy has no bfloat16 of its own; install the package ml_dtypes,": "ml_dtypes is here",
    "loader/device/photometric.py: device augmentation HUWindow: expected Hounsfield units, the images are": OF_LAYOUTS,
    **dict.fromkeys(
        (
            "inspection/plan_report.py: --set model.images_at_once=1",
            "trainer/plan/search.py: --set model.images_at_once=1",
            "trainer/models/norm.py: norm_scope core: needs all images at once; take --set",
        ),
        "a U-Net compiles for minutes; tests/trainer/test_parity_models.py has the option",
    ),
    **dict.fromkeys(
        (
            "trainer/optimizers.py: decay steps: expected 1 or more, got {}; pass --set decay_steps=100000",
            "trainer/optimizers.py: warm-up steps: expected at most the {} updates of the run, got {}; take",
            "trainer/optimizers.py: nesterov: needs the optimizer sgd with a momentum above 0, got {} with",
            "trainer/optimizers.py: decay rate: expected more than 0 and less than 1, got {}; pass --set",
        ),
        "tests/trainer/test_optimizers.py has these settings",
    ),
    **dict.fromkeys(
        (
            "trainer/config.py: foreground_share: places the windows of {}, and the recipe has none;",
            "trainer/config.py: repeat_threshold {}: has an effect only with --set draw_by={}; add it,",
            "trainer/config.py: model.anisotropic: has no effect beside model.strides, which state the",
            "trainer/config.py: device_augment {}: mixes images of a batch, and batch_size is 1; pass",
            'trainer/class_weights.py: class_weights = "{}": the data set has no counts of voxels per class;',
            "trainer/tasks/segmentation.py: class_weights: weigh the cross-entropy, and the losses are {}; leave",
            "trainer/tasks/segmentation.py: regions: expected a table of lists of classes, got {}; take --set",
        ),
        "tests/trainer/test_segmentation_task.py, test_mask_rule.py and test_config.py have these settings",
    ),
    **dict.fromkeys(
        (
            "prep/layouts/bids.py: ; it is a part of a data set, whose folder is --source {}",
            "prep/layouts/msd.py: it is in the folder above: --source {}",
            "prep/layouts/pairs.py: name its folder with --source, or --layout csv",
            "prep/options/volumes.py: --window {} is center/width, and shows {} to {} HU only; if {} is the",
            "prep/options/volumes.py: --classes {}: the value 0 becomes a class beside the background; if it",
            "pipelines/summary.py: , or a finer --spacing-mm",
        ),
        "benchmarks/mistakes/volumes.md has the mistake; what to type depends on what the user meant",
    ),
    **dict.fromkeys(
        (
            "inspection/picture_plan.py: halofeed convert --source SOURCE --out data --fit tiles --height {}",
            "inspection/picture_plan.py: {} --tile-overlap {}",
        ),
        "the source is the user's; tests of tiles convert with these options",
    ),
    "trainer/plan/pictures.py: --picture-size: the config is for images of {}; take a config for": (
        "a case types another config; leaving the option out plans for volumes"
    ),
    "halofeed/planning.py: --{}: has no effect with --picture-size; leave one of them out": (
        "tests/trainer/plan/test_plan_of_config.py types each alone"
    ),
    **dict.fromkeys(
        (
            "prep/options/tiles.py: large pictures (--fit tiles)",
            "halofeed/training.py: boxes of pictures that are stored as tiles (--fit tiles)",
        ),
        "the heading of a group of options in --help",
    ),
    "prep/convert/tile_objects.py: ignored in a tile that shows less than --min-visible": FACT,
    "prep/convert/loss_findings.py: No tile shows as much of an object as --min-visible says, so the object": (
        "what the finding means; the case of objects larger than any tile types its fix"
    ),
    "prep/convert/loss_findings.py: {count} of {of} objects are ignored in every tile: none shows as much": (
        "numbers stand where it has names; the case of objects larger than any tile types it"
    ),
    **dict.fromkeys(
        (
            "prep/convert/loss_findings.py: add --fit tiles, which cuts the pictures into such records and keeps",
            "prep/convert/loss_findings.py: cut the pictures with --fit tiles --height 640 --width 640 in place of",
        ),
        "tests/pipelines/test_losses.py types it",
    ),
    **dict.fromkeys(
        (
            "prep/annotations/choose_classes.py: --map-classes {}={}: {} is a class here too; to leave {} out, use",
            "prep/annotations/choose_classes.py: ; {} (--emptied-pictures left-out leaves such pictures out)",
            "prep/annotations/class_names.py: --map-classes and --drop-classes",
            "prep/options/volumes.py: a choice of classes of objects or pictures, such as --classes",
        ),
        "tests/pipelines/test_chosen_classes.py types it",
    ),
    "prep/layouts/mot.py: boxes count from 0, as {}; MOT counts pixels from 1; --box-origin 1": (
        "its texts are put together; a case of sequence_advice.py types it"
    ),
    "prep/annotations/frame_rows.py: --frame-stride {} takes one of {} frames": FACT,
    **dict.fromkeys(
        (
            "prep/layouts/run_length_table.py: {}: expected a table with a column of run lengths, such as 264661 17",
            "prep/layouts/run_length_table.py: {}: {} of {} masks do not fit their pictures: {}: {}; name the folder",
        ),
        "only the user knows the table or the pictures; tests/prep/layouts/test_layout_run_lengths.py has both",
    ),
    "prep/options/volumes.py: --several-masks {}: masks of volumes are combined so; add --depth, or": (
        "pictures have no depth; a case of two masks types --several-masks merge"
    ),
    "prep/voxels/votes.py: {} of {} classes; choose fewer classes with --classes": (
        "it takes nine masks of more than a hundred classes; tests/prep/voxels/test_votes.py has them"
    ),
    "inspection/predicted_sources.py: {}: holds no {}; name the folder of `halofeed predict --out`": (
        "it names a folder that another command has written"
    ),
    "halofeed/conversion.py: layouts, which --help-all describes: {} {}": (
        "tests/pipelines/test_command_line.py types it"
    ),
    "halofeed/training.py: {} written, {} with a score below {} left out, the highest with {}": (
        "tests/inspection/test_predictions_page.py types it"
    ),
    **dict.fromkeys(
        ("halofeed/training.py: no metrics: the data set has no labeled split named validation, val or",),
        "tests/command/test_training_advice.py reads it; typing it takes a trained run",
    ),
    **dict.fromkeys(
        (
            "halofeed/training.py: look at predictions with `halofeed predict {} --out found --draw`",
            "halofeed/training.py: {} {} left out of the data set, so nothing is predicted there; --source",
        ),
        "tests/inspection/test_predictions_page.py types it",
    ),
    "trainer/detection/anchor_fit.py: --set model.{}={}": "tests/trainer/test_anchor_fit.py tries it",
    "trainer/choose_config.py: the data set has masks of its objects, which --config": (
        "tests/trainer/test_choose_config.py reads it; typing it takes a trained run"
    ),
    **dict.fromkeys(
        (
            "trainer/held_out.py: {}: an image may have several classes, and faults of such labels are",
            "trainer/loaded_run.py: {}: has {}, the model learned {}; convert the data with",
        ),
        "tests/trainer/test_multi_label_run.py does it with its run",
    ),
    "trainer/data.py: {}: model.mask_head needs the objects' masks, which the data set lacks;": (
        "tests/trainer/test_mask_head.py types --set; --masks is an option of another command"
    ),
    "trainer/models/retinanet.py: model.first_level {}: {} has no map of that level; take --set": (
        "tests/trainer/test_mask_head.py builds models of resnet50 with that level"
    ),
    "trainer/loaded_run.py: {}: has the labels {}, the model learned {}; convert the data with the": (
        "it tells to convert the data again, which is another command"
    ),
    "inspection/export_grid.py: it is a tile of a larger picture, and --grid source exports complete": (
        "it tells to convert without --fit tiles, which is to take an option away from another command"
    ),
    "pipelines/inputs.py: has less left; take fewer --workers": (
        "it depends on this machine's memory; tests/pipelines/test_memory_limits.py limits that"
    ),
    "trainer/predict.py: --geojson: is for boxes and masks of pictures that are stored as tiles": (
        "it needs a detector of tiles; tests/trainer/test_whole_pictures.py writes GeoJSON of one"
    ),
    **dict.fromkeys(
        (
            "trainer/auto/plan_auto.py: --config auto: no U-Net fits {} of {} on {}: a side of 8 or more must",
            "trainer/auto/plan_auto.py: ; expect a weak model: {} steps or more need --minutes {}",
            "halofeed/auto_config.py: --minutes {}: has an effect only with {}; add it, or pass --steps",
            "halofeed/auto_config.py: --minutes {}: expected more than 0, such as --minutes 10",
            "halofeed/auto_config.py: halofeed train: --config auto: the options are those of the run in {}",
            "halofeed/auto_config.py: --config auto: the processes of a run need one configuration; write it",
            "halofeed/training.py: --config auto",
            "halofeed/planning.py: --toml {}: has an effect only with --auto; add it",
            "halofeed/planning.py: --auto: needs a data set; name its folder, as in `halofeed plan",
        ),
        "a plan compiles networks; tests/trainer/auto/test_auto_command.py types these options",
    ),
    **dict.fromkeys(
        (
            "trainer/cross_validation.py: --cross-validate: {} and {} were both evaluated on {}; train each with",
            "halofeed/training.py: the runs were evaluated on different splits, {}: pass --cross-validate",
            "halofeed/training.py: warning: {} learned from {}, so these figures are better than those of",
            "halofeed/training.py: largest component alone: {}, as the validation split has proved",
        ),
        "it takes runs of several folds; tests/trainer/test_ensemble_commands.py trains them and types it",
    ),
    "trainer/train.py: step {}: the loss is {}; lower --learning-rate {}, or look for a broken": "by trial alone",
    **dict.fromkeys(
        (
            "pipelines/commit.py: {} of {} lie outside of the static shape and are in no record; take",
            "schemas/findings.py: Convert with --fit tiles, a larger --depth, --height and --width, or",
            "prep/options/kind_rules.py: --depth --task detection: boxes in volumes are read from --layout {};",
        ),
        "tests/test_scan_boxes_end_to_end.py and tests/mistakes/scan_box_advice.py type it",
    ),
    **dict.fromkeys(
        (
            "pipelines/convert.py: --from: the earlier version is compared on this machine; leave --runner",
            "pipelines/convert.py: {} was converted {}{} (--from); {}",
            "pipelines/plan.py: --from {}: its task is {}, and the sources show {}; correct them, or",
            "pipelines/earlier_version.py: --keep-splits has no effect without --from; add that, or leave it out",
            "pipelines/earlier_version.py: --from {}: is the data set {}, and files of shards have the name of",
            "pipelines/earlier_version.py: --version {}: is the version that --from names; give the new one",
            "pipelines/earlier_version.py: add --keep-splits, which keeps the splits of the earlier version's",
            "pipelines/earlier_version.py: leave them out; for other records convert all of them, without --from",
            "pipelines/earlier_version.py: --from {}: {} of the earlier version must keep the number; add new",
            "pipelines/earlier_version.py: --from {}: its classes have names ({}{}), and nothing names them now;",
            "halofeed/conversion.py: --from and --recipe both give the recipe; leave --recipe out",
            "halofeed/conversion.py: --from {}: give the new version its number, such as --version {}",
            "halofeed/conversion.py: halofeed convert: {} in another split than in {}, so a model of that",
        ),
        "tests/pipelines/test_earlier_version.py types it",
    ),
    **dict.fromkeys(
        (
            "inspection/html/difference_page.py: The first {} of {} --json lists all.",
            "inspection/subset_data.py: --where: {}: a review cannot search all of it, so a condition on",
            'inspection/subset_data.py: expected what `halofeed review --json FILE` wrote, or {"ID OF A',
            "inspection/subset_data.py: --out {}: would replace the data set itself; take another --name or",
            "inspection/subset_data.py: take another --name, --version or --out",
            "inspection/subset_data.py: {}: is there already; take another --name or --version, or remove it",
            "inspection/version_difference.py: and {} more; --json lists all",
        ),
        "tests/inspection/test_subset.py or test_compare_versions.py types it",
    ),
    **dict.fromkeys(
        (
            "halofeed/cli.py: --split and --checkpoint: are of the predictions of a run; add --run RUN",
            "halofeed/training.py: halofeed review: {}: the run was trained on these labels and may repeat",
        ),
        "tests/inspection/test_label_faults.py trains these runs and types it",
    ),
    "loader/contact_sheet.py: --k:{};--on:#000": "These are two colors of a style sheet, and no options.",
}
"""Texts whose suggestion is not typed here, each with the reason."""


@functools.cache
def tried(name: str) -> set[tuple[str, str]]:
    """The suggestions that a case types, each a template and an option."""
    with tempfile.TemporaryDirectory() as folder:
        return try_advice(CASES[name], Path(folder), templates())


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_what_a_message_suggests_works_when_it_is_typed(name: str) -> None:
    tried(name)


@pytest.mark.long
def test_every_suggestion_is_typed_by_a_case_or_excepted_with_a_reason() -> None:
    known = templates()
    typed = set().union(*map(tried, CASES))
    missing = [
        f"{name}: {options}"
        for name, template in known.items()
        if (options := sorted(o for o in template.advised if (name, o) not in typed))
        and name not in EXCEPTIONS
    ]
    assert not missing, "no case types what these suggest:\n" + "\n".join(missing)
    gone = sorted(EXCEPTIONS.keys() - known.keys())
    assert not gone, f"excepted, but no text of the product: {gone}"


def test_classes_that_can_be_read_are_named_where_a_folder_may_hold_others(ordinary_folder, ordinary_user):
    def prepare(source: Path) -> list[object]:
        words = layout_advice.scans("class-masks", "images/a.nii.gz", "liver/a.nii.gz")(source)
        words += ["--image-pattern", "images/{id}.nii.gz", "--label-pattern", "{class}/{id}.nii.gz"]
        assert run(words, source.parent / "imports everything")[0] == 0
        (source / "spleen").mkdir(mode=0)
        source.parent.chmod(0o777)
        return words

    advice = refused(prepare, "or name with (--classes)", more=("liver",), throughout=ordinary_user)
    assert {option for _, option in try_advice(advice, ordinary_folder, templates())} == {"--classes"}
