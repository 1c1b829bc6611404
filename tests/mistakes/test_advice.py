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
ONLY_OF = {"inspection/batch.py": "show", "inspection/bench.py": "bench"}
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
    "prep/formats/dicom/series.py: , or say --series-split channels": "it ends the message before",
    "system/memory.py: has less left; take fewer --workers": (
        "it depends on this machine's memory; tests/prep/sources/test_memory.py limits that"
    ),
    "storage/web.py: the server sends to another host, {}; if that is meant, allow it:": (
        "it needs a server that redirects; tests/loader/store/test_addresses.py types it"
    ),
    "system/resource_errors.py: Run the command with --debug to see where it failed": "it shows more of a failure",
    "halofeed/parser.py: `{} --help` lists the options": "a text about --help",
    "halofeed/cli.py: `halofeed COMMAND --help` shows an example of each. `halofeed demo`": "a text of --help",
    "inspection/export_pictures.py: {} pictures have an EXIF orientation, and their boxes are in the pixels": (
        "tests/inspection/test_export_data.py types it"
    ),
    "prep/layouts/detect.py: ; {} too: --layout {} reads that": "another reading of a source that was read",
    "prep/layouts/detect.py: {}: labels for {} of {} inputs; without labels: --layout {}": OF_LAYOUTS,
    "prep/layouts/detect.py: its files show no layout{}; name one of {} with --layout": OF_LAYOUTS,
    **dict.fromkeys(
        (
            "prep/annotations/suggest_layout.py: write what it says into a table with the columns filename,class for",
            "prep/annotations/suggest_layout.py: convert it with datum convert -i FOLDER -if datumaro -f coco -o",
            "prep/annotations/suggest_layout.py: rename it to filename, and that of the classes to class; corners of",
            "prep/annotations/suggest_patterns.py: by name and content, none of its {}, such as {}, is the label of",
            "prep/layouts/coco.py: {} has classes of images, and {} has objects; name one of the two with",
        ),
        "only the user can write the table, the list or the choice of files",
    ),
    **dict.fromkeys(
        (
            "prep/layouts/coco.py: {}: its annotations have no boxes and no outlines, and give each image",
            "prep/layouts/coco.py: {}: its annotations are objects, and no classes of images: take --task",
            "prep/layouts/image_table.py: {} for one image a row, with {} for one box a row; image,label need",
        ),
        "tests/prep/layouts/test_foreign_annotations.py and test_advice_of_cases.py type it",
    ),
    "pipelines/dry_run.py: warning: {} shards for {}: some will be empty; lower --shards": OF_SHARDS,
    "pipelines/summary.py: warning: {}: {} of {} shards {} empty; lower --shards": OF_SHARDS,
    "pipelines/dry_run.py: scans {} to {}; at {} mm the median is {}, and the largest sides are {}": PROPOSED,
    "pipelines/dry_run.py: --window-hu {},{}": PROPOSED,
    "pipelines/options.py: --project=PROJECT --region=REGION --temp_location=gs://BUCKET/FOLDER": FACT,
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
    "prep/options/recipe_file.py: {} --recipe {}": "the file of another message's options, which has its case",
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
            "trainer/optimizers.py: decay rate: expected more than 0 and less than 1, got {}; pass --set",
        ),
        "tests/trainer/test_optimizers.py has these settings",
    ),
    **dict.fromkeys(
        (
            "prep/layouts/bids.py: ; it is a part of a data set, whose folder is --source {}",
            "prep/layouts/msd.py: it is in the folder above: --source {}",
            "prep/layouts/pairs.py: name its folder with --source, or --layout csv",
            "prep/options/volumes.py: --window {} is center/width, and shows {} to {} HU only; if {} is the",
            "prep/options/volumes.py: --classes {}: the value 0 becomes a class beside the background; if it",
            "pipelines/summary.py: , or a finer --spacing-mm than {}",
        ),
        "benchmarks/mistakes/volumes.md has the mistake; what to type depends on what the user meant",
    ),
    "trainer/train.py: step {}: the loss is {}; lower --learning-rate {}, or look for a broken": "by trial alone",
    "loader/picture.py: --k:{};--on:{}": "These are two colors of a style sheet, and no options.",
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
