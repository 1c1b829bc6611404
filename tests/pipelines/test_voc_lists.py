"""Pascal VOC in parallel subfolders, and lists of ImageSets/Main that share names."""

from __future__ import annotations

from pathlib import Path

import pytest

from halofeed.schemas.errors import AnnotationsError
from tests.support.annotation_writer import boxed, voc_object, voc_text
from tests.support.annotation_writer import draw as draw_pictures
from tests.support.conversions import boxes_in_source, read_all, rejected_entries, run_convert


def draw(root: Path, *names: str) -> None:
    """Annotations/NAME.xml and JPEGImages/NAME.png, with a box each that begins at 3 and further to the right.

    The XML says the file's name without its folders, as VOC does.
    """
    draw_pictures(root / "JPEGImages", *(f"{name}.png" for name in names))
    for xmin, name in enumerate(names, start=3):
        xml = root / "Annotations" / f"{name}.xml"
        xml.parent.mkdir(parents=True, exist_ok=True)
        xml.write_text(voc_text(f"{Path(name).name}.png", voc_object(boxed(name, (xmin, 2, 20, 8)))))


def write_lists(root: Path, **lists: str) -> None:
    (root / "ImageSets/Main").mkdir(parents=True)
    for name, entries in lists.items():
        (root / "ImageSets/Main" / f"{name}.txt").write_text("\n".join(entries.split()) + "\n")


def splits(folder: str, names: list[str]) -> dict[str, str]:
    return {
        source.removeprefix("JPEGImages/").removesuffix(".png"): record["split"]
        for source, record in read_all(Path(folder), names).items()
    }


def test_parallel_subfolders_keep_each_box_on_its_own_picture(tmp_path):
    names = ("cam1/a", "cam1/b", "cam2/a", "cam2/b", "a")
    draw(tmp_path / "src", *names)
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="voc", max_rejected=0)
    records = read_all(Path(done.folder), ["train"])
    assert len(records) == 5 and not done.manifest.rejected
    for number, name in enumerate(names):
        assert boxes_in_source(records[f"JPEGImages/{name}.png"])[0, 1] == pytest.approx(2 + number, abs=1e-3)


@pytest.mark.parametrize(
    "entry", ["{}.png", "JPEGImages/{}.png", "D:\\voc\\JPEGImages\\{}.png", "./{}", "Annotations/{}.xml"]
)
def test_entries_of_lists_may_have_extensions_and_folders_above(tmp_path: Path, entry: str) -> None:
    draw(tmp_path / "src", "cam1/a", "cam2/a", "v1.2")
    write_lists(
        tmp_path / "src", train=entry.format("cam1/a"), val=f"{entry.format('cam2/a')} {entry.format('v1.2')}"
    )
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="voc", max_rejected=0)
    assert splits(done.folder, ["train", "val"]) == {"cam1/a": "train", "cam2/a": "val", "v1.2": "val"}


def test_an_entry_that_means_two_pictures_is_refused(tmp_path):
    draw(tmp_path / "src", "cam1/a", "cam2/a")
    write_lists(tmp_path / "src", train="a")
    words = r"ImageSets/Main/train.txt: a means Annotations/cam1/a.xml and Annotations/cam2/a.xml; .*cam2/a"
    with pytest.raises(AnnotationsError, match=words):
        run_convert(tmp_path / "src", tmp_path / "out", layout="voc")


def test_lists_that_share_names_are_all_listed_and_can_be_chosen(tmp_path):
    draw(tmp_path / "src", *"abcd")
    write_lists(tmp_path / "src", train="a b c", val="d", mini="a b", hat_train="a", all="a b c d")
    with pytest.raises(AnnotationsError) as caught:
        run_convert(tmp_path / "src", tmp_path / "out", layout="voc")
    for words in (
        "ImageSets/Main: an image has one split, and lists share names",
        "mini and train (a, 2 in all)",
        "all and val (d)",
        "choose lists with --image-sets of all (4), hat_train, mini (2), train (3), val (1)",
        "--split-shares",
    ):
        assert words in str(caught.value)
    options = {"layout": "voc", "image_sets": ("mini", "val")}
    done = run_convert(tmp_path / "src", tmp_path / "out", **options)
    assert splits(done.folder, ["mini", "val"]) == {"a": "mini", "b": "mini", "d": "val"}
    options["image_sets"] = ("mini", "all")
    with pytest.raises(AnnotationsError, match=r"mini and all \(a, 2 in all\)"):
        run_convert(tmp_path / "src", tmp_path / "other", **options)


def test_shares_make_the_lists_irrelevant_unless_they_choose_the_images(tmp_path):
    draw(tmp_path / "src", *"abcdefgh")
    write_lists(tmp_path / "src", train="a b c", val="d", mini="a d")
    options = {"layout": "voc", "split_shares": ("train=0.5", "test=0.5"), "max_rejected": 0}
    done = run_convert(tmp_path / "src", tmp_path / "out", **options)
    assert set(splits(done.folder, ["train", "test"])) == set("abcdefgh")
    chosen = run_convert(tmp_path / "src", tmp_path / "few", image_sets=("train", "val", "mini"), **options)
    assert set(splits(chosen.folder, list(chosen.manifest.splits))) == set("abcd")
    lists = [f"{name}={tmp_path / name}.txt" for name in ("one", "two")]
    (tmp_path / "one.txt").write_text("a\nb\n")
    (tmp_path / "two.txt").write_text("c\n")
    own = run_convert(tmp_path / "src", tmp_path / "own", layout="voc", split_lists=tuple(lists))
    assert splits(own.folder, ["one", "two"]) == {"a": "one", "b": "one", "c": "two"}
    assert {entry["reason"] for entry in rejected_entries(own.folder)} == {"in no split list"}
