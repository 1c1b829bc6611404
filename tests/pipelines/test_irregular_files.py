"""What is no regular file, or may not be read or listed, is one reject in every layout, and never waited for."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from halofeed.cli import main
from halofeed.errors import AnnotationsError, HalofeedError, JobError, UsageError
from tests.support.conversions import read_all, rejected_entries, run_convert
from tests.support.layout_references import by_source
from tests.support.layout_sources import COUNT, LAYOUT_SOURCES, draw_masks, draw_pictures, draw_scans
from tests.support.volume_support import rejected

LABELLED = ("voc", "scan table", "msd", "nnunet", "lits", "pairs", "class-masks")
WITH_TABLE = ("csv", "jsonl", "coco", "scan table", "msd", "nnunet")
layouts = pytest.mark.parametrize("layout", LAYOUT_SOURCES)


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """A test that waits for a pipe fails; without this it would wait for ever."""

    def stop(*_: object) -> None:
        raise TimeoutError("something was waited for")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_link_to_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(pipe := path.with_suffix(".pipe.txt"))
    path.symlink_to(pipe)


def as_link_to_a_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def as_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def without_end(path: Path) -> None:
    os.truncate(path, 1 << 43)


IRREGULAR: tuple[tuple[Callable[[Path], None], str], ...] = (
    (as_pipe, "it is a named pipe; expected a regular file"),
    (as_link_to_a_device, "it is a device; expected a regular file"),
    (as_link_to_itself, "Too many levels of symbolic links"),
    (as_link_to_a_pipe, "it is a named pipe; expected a regular file"),
    (without_end, "it holds 8.80 TB"),
)


@layouts
def test_images_that_are_no_regular_files_are_rejects(tmp_path, layout):
    source = LAYOUT_SOURCES[layout](tmp_path / "s")
    for files, (change, _) in zip(source.images[1:], IRREGULAR, strict=False):
        change(tmp_path / "s" / files[0])
    done = run_convert(tmp_path / "s", tmp_path / "o", **source.options)
    assert done.manifest.inputs["count"] == COUNT
    assert sum(split.records for split in done.manifest.splits.values()) == 1
    rejects = rejected_entries(done.folder)
    for files, (_, says) in zip(source.images[1:], IRREGULAR, strict=False):
        (entry,) = (one for one in rejects if one["source"] in (files[0], files[0].partition("/")[0]))
        assert entry["stage"] == "read" and says in entry["detail"]
    with pytest.raises(JobError, match="--max-rejected"):
        run_convert(tmp_path / "s", tmp_path / "p", max_rejected=COUNT - 2, **source.options)


@pytest.mark.parametrize("layout", LABELLED)
def test_labels_that_are_no_regular_files_are_rejects(tmp_path, layout):
    source = LAYOUT_SOURCES[layout](tmp_path / "s")
    endless = without_end, "about 8,388,608 MiB; --max-memory allows"
    changes = (*IRREGULAR[2:4], endless) if layout == "msd" else IRREGULAR[:3]
    for name, (change, _) in zip(source.labels[1:], changes, strict=False):
        change(tmp_path / "s" / name)
    done = run_convert(tmp_path / "s", tmp_path / "o", **source.options)
    assert sum(split.records for split in done.manifest.splits.values()) == 1
    details = {entry["source"]: entry["detail"] for entry in rejected_entries(done.folder)}
    for files, (_, says) in zip(source.images[1:], changes, strict=False):
        assert says in details[files[0]]


@pytest.mark.parametrize("layout", WITH_TABLE)
@pytest.mark.parametrize(("change", "says"), IRREGULAR, ids=[change.__name__ for change, _ in IRREGULAR])
def test_a_table_that_is_no_regular_file_is_an_error_that_names_it(tmp_path, layout, change, says):
    source = LAYOUT_SOURCES[layout](tmp_path / "s")
    change(tmp_path / "s" / source.tables[0])
    with pytest.raises(AnnotationsError) as caught:
        run_convert(tmp_path / "s", tmp_path / "o", **source.options)
    assert source.tables[0] in str(caught.value) and says in str(caught.value)


def test_a_source_a_list_or_a_config_that_is_a_pipe_is_refused(tmp_path, capsys):
    draw_pictures(tmp_path / "s", "hat/0.png", "coat/1.png")
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    options = {"layout": "folders"}
    words = r"--source .*pipe\.json: it is a named pipe; expected a folder or a regular"
    with pytest.raises(UsageError, match=words):
        run_convert(pipe, tmp_path / "o", layout="coco")
    for more in ({"label_map": str(pipe)}, {"split_lists": (f"train={pipe}",)}, {"nnunet_splits": str(pipe)}):
        with pytest.raises(UsageError, match=r"pipe\.json: it is a named pipe; expected a regular file"):
            run_convert(tmp_path / "s", tmp_path / "o", **options, **more)
    with pytest.raises(HalofeedError, match=r"pipe\.json"):
        run_convert(tmp_path / "s", tmp_path / "o", normalize_like=str(pipe), **options)
    assert main(["configs", str(pipe.rename(tmp_path / "pipe.toml"))]) == 2
    assert "it is a named pipe; expected a regular file" in capsys.readouterr().err


def is_accounted_for(path: str, records: set[str], rejects: list[dict[str, str]]) -> bool:
    """Whether a file, or the folder in which it lies, is in a record or in a reject."""
    above = [path.rsplit("/", depth)[0] for depth in range(path.count("/") + 1)]
    told = [entry for entry in rejects if entry["source"] in above or f"{path}: " in entry["detail"]]
    return path in records or bool(told)


@layouts
@pytest.mark.parametrize("mode", [0, pytest.param(0o444, marks=pytest.mark.long)])
def test_what_an_ordinary_user_may_not_read_is_named(ordinary_folder, ordinary_user, tmp_path, layout, mode):
    import_all_for(layout, tmp_path)
    source = LAYOUT_SOURCES[layout](ordinary_folder / "s")
    locked = ordinary_folder / "s" / source.images[1][0]
    locked.chmod(0)
    if "/" in source.images[1][0] and layout in ("folders", "class-masks", "dicom"):
        (ordinary_folder / "s" / source.images[2][0]).parent.chmod(mode)
    with ordinary_user():
        done = run_convert(ordinary_folder / "s", ordinary_folder / "o", **source.options)
        with pytest.raises(JobError, match="--max-rejected allows 0"):
            run_convert(ordinary_folder / "s", ordinary_folder / "o", max_rejected=0, **source.options)
    records = set(read_all(Path(done.folder), list(done.manifest.splits)))
    rejects = rejected_entries(done.folder)
    assert records and rejects and all(entry["stage"] in ("read", "selection") for entry in rejects)
    for files in source.images:
        for path in files if layout != "dicom" else files[:1]:
            folder = path.partition("/")[0]
            assert is_accounted_for(path, records | ({path} if folder in records else set()), rejects), path


def import_all_for(layout: str, folder: Path) -> None:
    """Convert a source of the layout, so that nothing is left to import of what an ordinary user may not read."""
    run_convert(folder / "s", folder / "o", **LAYOUT_SOURCES[layout](folder / "s").options)


@layouts
def test_where_nothing_can_be_listed_the_message_says_so(ordinary_folder, ordinary_user, tmp_path, layout):
    import_all_for(layout, tmp_path)
    source = LAYOUT_SOURCES[layout](ordinary_folder / "s")
    for folder in {files[0].split("/")[0] for files in source.images}:
        (ordinary_folder / "s" / folder).chmod(0)
    with ordinary_user(), pytest.raises((AnnotationsError, JobError), match="Permission denied"):
        run_convert(ordinary_folder / "s", ordinary_folder / "o", **source.options)
    (ordinary_folder / "s").chmod(0o111)
    if not source.tables:
        with ordinary_user(), pytest.raises(UsageError, match="cannot be listed: Permission denied"):
            run_convert(ordinary_folder / "s", ordinary_folder / "p", **source.options)


@pytest.mark.parametrize(
    ("layout", "images", "labels", "test"),
    [
        ("nnunet", "imagesTs/b_{}_0000.nii", "labelsTs/b_{}.nii", "imagesTs/b_0_0000.nii"),
        ("pairs", "imagesTs/{}.nii", "labelsTs/{}.nii", "imagesTs/0.nii"),
        ("lits", "test/test-volume-{}.nii", "more/test-segmentation-{}.nii", "test/test-volume-0.nii"),
    ],
)
def test_test_scans_need_a_listing_of_labels(ordinary_folder, ordinary_user, layout, images, labels, test):
    LAYOUT_SOURCES[layout](ordinary_folder)
    if layout == "pairs":
        for name in ("images", "labels"):
            os.rename(ordinary_folder / name, ordinary_folder / f"{name}Tr")
    draw_scans(ordinary_folder, *(images.format(number) for number in range(2)))
    assert by_source(layout, ordinary_folder)[test].problem is None
    draw_masks(ordinary_folder, *(labels.format(number) for number in range(2)))
    (ordinary_folder / labels).parent.chmod(0)
    with ordinary_user():
        problem = by_source(layout, ordinary_folder)[test].problem
    assert problem is not None and problem[1] == "image has no label"


def test_dicom_series_are_not_for_prediction_and_may_go_on_where_a_folder_cannot_be_listed(
    ordinary_folder, ordinary_user
):
    LAYOUT_SOURCES["dicom"](ordinary_folder)
    assert all(one.problem is None for one in by_source("dicom", ordinary_folder).values())
    (ordinary_folder / "masks").mkdir(mode=0)
    with ordinary_user():
        problems = [one.problem for one in by_source("dicom", ordinary_folder).values()]
    assert len(problems) == COUNT
    assert {problem and problem[1] for problem in problems} == {"image has no label"}
    (ordinary_folder / "masks").rmdir()
    (ordinary_folder / "p1/more").mkdir(mode=0)
    with ordinary_user():
        found = by_source("dicom", ordinary_folder, missing_masks="prediction")
    assert {source for source, one in found.items() if one.problem} == {"p1"}
    assert found["p1"].problem[2].startswith("p1/more: folder cannot be listed")


def test_a_scan_whose_label_cannot_be_listed_is_rejected(ordinary_folder, ordinary_user, tmp_path):
    import_all_for("class-masks", tmp_path)
    source = LAYOUT_SOURCES["class-masks"](ordinary_folder / "s")
    (ordinary_folder / "s/1/segmentations").chmod(0)
    with ordinary_user():
        done = run_convert(ordinary_folder / "s", ordinary_folder / "o", **source.options)
        with pytest.raises(JobError, match="1 input was rejected"):
            run_convert(ordinary_folder / "s", ordinary_folder / "o", max_rejected=0, **source.options)
    assert rejected(done)["1/segmentations"] == ("read", "folder cannot be listed", "Permission denied")
    assert rejected(done)["1/ct.nii"][1] == "image has no label"
    assert done.manifest.splits["train"].records == COUNT - 1
