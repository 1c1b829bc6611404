"""Search for copies: drawn pictures with planted copies of each kind."""

import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

import halofeed
from halofeed.inspection.review import copies as copies_module
from halofeed.inspection.review.copies import CopyKind, copy_groups, find_copies
from halofeed.inspection.review.review import Review, review_dataset
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.suspects import Suspect
from halofeed.pipelines import shard_writer
from halofeed.prep.voxels import copy_search, signatures
from halofeed.prep.voxels.copy_groups import group_pairs
from halofeed.prep.voxels.copy_search import (
    find_pairs,
    find_pairs_within,
    shows_something,
    turn_back,
    turn_by_both,
    turned,
)
from halofeed.prep.voxels.same_pixels import Match
from halofeed.prep.voxels.signatures import Signatures, sign_picture, sign_stack, unpack_signatures
from tests.support.conversions import halofeed_here, run_convert

Pixels = NDArray[np.uint8]
PLANTED: dict[str, Callable[[Pixels], Pixels]] = {
    "exact": lambda one: one,
    "resized": lambda one: cv2.resize(one, None, fx=0.4, fy=0.4, interpolation=cv2.INTER_AREA),
    "recompressed": lambda one: cv2.imdecode(cv2.imencode(".jpg", one, [cv2.IMWRITE_JPEG_QUALITY, 25])[1], 1),
    "mirrored": lambda one: one[:, ::-1],
    "turned once": lambda one: np.rot90(one),
    "turned twice": lambda one: np.rot90(one, 2),
    "turned thrice": lambda one: np.rot90(one, 3),
    "brightened": lambda one: np.clip(one * 1.0 + 25, 0, 255).astype(np.uint8),
    "contrast": lambda one: np.clip((one - 128.0) * 1.2 + 128, 0, 255).astype(np.uint8),
    "cropped": lambda one: one[8:-8, 10:-10],
    "cropped at a corner": lambda one: one[16:, 20:],
}


def draw(seed: int) -> Pixels:
    """Draw a scene of shapes over a gradient."""
    random = np.random.default_rng(seed)
    corners = random.integers(60, 200, (2, 2, 3)).astype(np.float32)
    scene = cv2.resize(corners, (200, 160)).astype(np.uint8)
    for _ in range(14):
        center = tuple(random.integers(0, 200, 2).tolist())
        axes = tuple(random.integers(6, 40, 2).tolist())
        color = random.integers(0, 256, 3).tolist()
        cv2.ellipse(scene, center, axes, int(random.integers(0, 180)), 0, 360, color, -1)
    noise = random.normal(0, 5, scene.shape)
    return np.clip(scene + noise, 0, 255).astype(np.uint8)


def retina(seed: int) -> Pixels:
    """Draw an eye through the round window of a camera: the strongest edge is the same in all of them."""
    random = np.random.default_rng(seed)
    picture = np.zeros((160, 200, 3), np.uint8)
    cv2.circle(picture, (100, 80), 74, (110, 130, 150), -1)
    inside = picture[..., 0] > 0
    for _ in range(9):
        ends = random.integers(20, 180, (4, 2)).astype(np.int32)
        cv2.polylines(picture, [ends], False, (80, 95, 110), 3)
    picture[~inside] = 0
    return picture


def write(folder: Path, name: str, pixels: Pixels) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(folder / name), np.ascontiguousarray(pixels))


def copies(found: Review) -> list[Suspect]:
    return [one for one in found.suspects if isinstance(one.kind, CopyKind)]


def reviewed(folder: Path, **more: object) -> Review:
    halofeed.convert(
        layout="folders", source=folder / "in", out=folder, name="drawn", workers=1, shards=1,
        **{"height": 128, "width": 160, **more},
    )  # fmt: skip
    return review_dataset(folder / "drawn" / "1.0.0")


def names(suspect: Suspect) -> set[str]:
    return {Path(place.source).stem for place in suspect.places}


def test_planted_copies_of_each_kind_are_found_and_nothing_else(tmp_path: Path) -> None:
    for number in range(150):
        write(tmp_path / "in", f"train/a/{number}.png", draw(number))
    planted = {}
    for kind, change in PLANTED.items():
        for _ in range(5):
            number = len(planted)
            planted[f"copy{number}"] = (kind, str(number))
            write(tmp_path / "in", f"test/a/copy{number}.png", change(draw(number)))
    found = reviewed(tmp_path)
    leaks = found.by_kind()[CopyKind.LEAK]
    pairs = {frozenset(names(one)) for one in leaks}
    missed = [one for one in planted.items() if frozenset({one[0], one[1][1]}) not in pairs]
    assert len(missed) <= 0.05 * len(planted), missed
    assert len(pairs) - (len(planted) - len(missed)) <= 0.02 * 150
    assert copies(found) == leaks
    exact = next(one for one in leaks if "copy0" in names(one))
    assert "equal pixels" in exact.words and "1 in test, 1 in train" in exact.words


def test_copies_in_a_split_and_with_other_labels_are_kinds_of_their_own(tmp_path: Path) -> None:
    for name in ("a/0", "a/1", "b/2"):
        write(tmp_path / "in", f"{name}.png", draw(1))
    write(tmp_path / "in", "a/3.png", draw(2))
    write(tmp_path / "in", "a/4.png", PLANTED["resized"](draw(2)))
    for number in range(5, 9):
        write(tmp_path / "in", f"b/{number}.png", draw(number))
    found = reviewed(tmp_path).by_kind()
    assert [names(one) for one in found[CopyKind.EXACT]] == [{"0", "1", "2"}]
    assert [names(one) for one in found[CopyKind.NEAR]] == [{"3", "4"}]
    (other,) = found[CopyKind.OTHER_LABELS]
    assert names(other) == {"0", "1", "2"} and "a in 2 and b in 1" in other.words


def test_flat_pictures_and_pages_with_a_number_are_no_copies(tmp_path: Path) -> None:
    for number in range(6):
        page = np.full((160, 200, 3), 255, np.uint8)
        write(tmp_path / "in", f"a/{number}.png", page)
        write(tmp_path / "in", f"a/black{number}.png", page * 0)
        cv2.putText(page, str(number), (90, 150), 0, 0.5, (0, 0, 0))
        write(tmp_path / "in", f"b/page{number}.png", page)
    assert copies(reviewed(tmp_path)) == []


def test_tiles_of_one_picture_are_no_copies_of_each_other(tmp_path: Path) -> None:
    write(tmp_path / "in", "a/0.png", np.tile(draw(1), (2, 2, 1)))
    write(tmp_path / "in", "a/1.png", draw(2))
    assert copies(reviewed(tmp_path, tile_overlap="0,0", height=160, width=200, fit="tiles")) == []


@pytest.mark.parametrize("first", range(8))
def test_turns_are_undone_and_joined_as_pixels_are(first: int) -> None:
    picture = np.arange(12).reshape(3, 4)
    assert np.array_equal(turned(turned(picture, first), turn_back(first)), picture)
    for second in range(8):
        both = turned(turned(picture, first), second)
        assert np.array_equal(turned(picture, turn_by_both(first, second)), both)


def signed(words: list[tuple[int, ...]]) -> Signatures:
    return unpack_signatures(np.array(words))


def test_many_copies_of_one_picture_are_all_in_some_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_search, "_MOST_BANDS", 4)
    picture = draw(1)
    words = [sign_picture(picture, f"{number}.png", None) for number in range(300)]
    pairs = find_pairs(signed([*words, sign_picture(draw(2), "x.png", None)]))
    assert set(pairs.first.tolist()) | set(pairs.second.tolist()) == set(range(300))
    assert len(pairs) < 300 * 32


def test_large_groups_are_linked_by_few_pairs_and_other_copies_keep_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds = [1] * 70 + [2] * 5 + list(range(3, 12))
    words = [sign_picture(draw(seed), f"{number}.png", None) for number, seed in enumerate(seeds)]
    shown: list[tuple[int, int]] = []
    pairs = find_pairs(signed(words), progress=lambda *done: shown.append(done))
    assert shown == [(number, 16) for number in range(1, 17)]
    monkeypatch.setattr(copy_search, "MANY", 1 << 30)
    every = find_pairs(signed(words))

    def named(found: copy_search.Pairs) -> set[tuple[int, int]]:
        return {
            (min(pair), max(pair)) for pair in zip(found.first.tolist(), found.second.tolist(), strict=True)
        }

    assert named(pairs) < named(every)
    small = {pair for pair in named(every) if min(pair) >= 70}
    assert small == {pair for pair in named(pairs) if min(pair) >= 70} and len(small) >= 10
    groups = [one.records for one in group_pairs(pairs)]
    assert groups == [one.records for one in group_pairs(every)] and groups[0] == tuple(range(70))


def test_records_of_one_number_are_no_pairs_and_link_nothing() -> None:
    words = [sign_picture(draw(1), f"{number}.png", None) for number in range(5)]
    together = np.array([7, 7, 0, 0, 7])
    pairs = find_pairs(signed(words), together)
    found = {frozenset(pair) for pair in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)}
    assert found == {frozenset(pair) for pair in ((0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4))}


def test_records_of_one_kind_are_linked_without_those_of_the_other() -> None:
    drawn = draw(0)
    words = [sign_picture(drawn, f"{number}.png", None) for number in range(80)]
    kinds = np.arange(80) < 40
    groups = group_pairs(find_pairs_within(signed(words), kinds))
    assert [group.records for group in groups] == [tuple(range(40)), tuple(range(40, 80))]
    # A search of all links those of one kind by the others.
    pairs = find_pairs(signed(words))
    kept = group_pairs(pairs.take(kinds[pairs.first] == kinds[pairs.second]))
    assert sum(len(group.records) for group in kept) < 80


def test_a_mirrored_scan_is_found_and_a_scan_of_the_same_first_slices_is_none() -> None:
    scan = np.stack([draw(seed)[..., 0] for seed in range(6) for _ in range(4)])
    other = np.concatenate([scan[:8], np.stack([draw(seed)[..., 0] for seed in range(10, 26)])])
    stacks = [scan, scan[:, :, ::-1], scan[::-1], other]
    found = signed([sign_stack(one, str(number), None) for number, one in enumerate(stacks)])
    pairs = find_pairs(found)
    high = {tuple(sorted(pair)) for pair in zip(pairs.first, pairs.second, strict=True)}
    assert {(0, 1), (0, 2)} <= high and not any(3 in pair for pair in high)


def test_records_without_a_signature_have_no_copies() -> None:
    none = unpack_signatures(np.zeros((4, 18), np.int64))
    assert not shows_something(none).any() and len(find_pairs(none)) == 0
    assert len(find_pairs(unpack_signatures(np.zeros((4, 0), np.int64)))) == 0


def test_a_set_of_before_signatures_says_what_is_not_searched_and_gets_them_by_overwrite(
    tmp_path, monkeypatch
):
    source = tmp_path / "photos"
    for number in range(3):
        write(source / "one", f"{number}.png", draw(number))
    with monkeypatch.context() as before:
        before.setattr(shard_writer._Rows, "signature_column", lambda rows: None)
        before.setattr(shard_writer._Rows, "measure_columns", lambda rows: {})
        done = run_convert(source, tmp_path / "out", layout="folders")
    found = review_dataset(done.folder)
    assert str(found).count("not searched: ") == 2 == len(found.to_json()["not_searched"])
    again = run_convert(source, tmp_path / "out", layout="folders", overwrite=True)
    assert again.summary.shards_kept == 0 and not review_dataset(done.folder).not_searched
    assert run_convert(source, tmp_path / "out", layout="folders", overwrite=True).summary.shards_kept > 0


def test_signatures_of_an_earlier_version_are_named_and_written_again(tmp_path, monkeypatch):
    source = tmp_path / "photos"
    for number in range(3):
        write(source / "one", f"{number}.png", draw(number))
    with monkeypatch.context() as before:
        before.setattr(signatures, "_VERSION", 1)
        done = run_convert(source, tmp_path / "out", layout="folders")
    (text,) = review_dataset(done.folder).not_searched
    assert "copies of 3 records with signatures of another version" in text and "--overwrite" in text
    run_convert(source, tmp_path / "out", layout="folders", overwrite=True)
    assert not review_dataset(done.folder).not_searched


def write_mask(folder: Path, name: str, label: Pixels) -> None:
    write(folder, f"masks/{name}.png", label)


def reviewed_masks(folder: Path, **more: object) -> Review:
    done = run_convert(
        folder / "in", folder / "out", layout="pairs", task="segmentation", height=160, width=200,
        image_pattern="images/{id}.png", label_pattern="masks/{id}.png", missing_masks="prediction", **more,
    )  # fmt: skip
    return review_dataset(done.folder)


def square(value: int, *, top: int = 40, side: int = 60) -> Pixels:
    label = np.zeros((160, 200), np.uint8)
    label[top : top + side, 40 : 40 + side] = value
    return label


def test_contradicting_labels_are_found_beside_a_copy_without_a_label(tmp_path: Path) -> None:
    for name, value in (("0", 1), ("1", 2), ("2", 0)):
        write(tmp_path / "in", f"images/{name}.png", draw(1))
        if value:
            write_mask(tmp_path / "in", name, square(value))
    (other,) = reviewed_masks(tmp_path).by_kind()[CopyKind.OTHER_LABELS]
    assert {"0", "1"} <= names(other)


def test_records_for_prediction_are_no_leak_of_training(tmp_path: Path) -> None:
    for name, seed in (("0", 1), ("1", 1), ("2", 2), ("3", 2), ("4", 2), ("5", 3), ("6", 3)):
        write(tmp_path / "in", f"images/{name}.png", draw(seed))
        if name in "0256":
            write_mask(tmp_path / "in", name, square(1))
    found = reviewed_masks(tmp_path)
    assert {place.split for one in found.suspects for place in one.places} == {"train", "unlabeled"}
    assert [names(one) for one in copies(found)] == [{"3", "4"}, {"5", "6"}]
    assert {one.kind for one in copies(found)} == {CopyKind.EXACT}


def other_labels(found: Review) -> list[tuple[set[str], str]]:
    return [(names(one), one.words.split(";")[0]) for one in found.by_kind().get(CopyKind.OTHER_LABELS, ())]


def test_masks_of_exact_copies_are_compared_pixel_by_pixel_and_classes_are_named(tmp_path: Path) -> None:
    # Equal areas at other places; small areas; a class at another place; a pixel at the edge; equal labels.
    pairs = (
        (square(1), square(1, top=80)),
        (square(2, side=6), square(2, side=6, top=43)),
        (square(1, side=6), square(2, side=6)),
        (square(1), square(1, top=41)),
        (square(2), square(2)),
    )
    for number, pair in enumerate(pairs):
        for letter, label in zip("ab", pair, strict=True):
            write(tmp_path / "in", f"images/{number}{letter}.png", draw(number))
            write_mask(tmp_path / "in", f"{number}{letter}", label)
    found = dict(map(reversed, other_labels(reviewed_masks(tmp_path, map_classes=("1=cell", "2=nerve")))))
    assert sorted(found.values()) == [{"0a", "0b"}, {"1a", "1b"}, {"2a", "2b"}]
    assert sum("'cell'" in text for text in found) == 2 and sum("'nerve'" in text for text in found) == 1


def test_areas_of_near_copies_are_compared_without_ignored_pixels(tmp_path: Path) -> None:
    for number, (first, second) in enumerate((((1, 255), (2, 255)), ((1, 255), (1, 0)))):
        for letter, (value, below) in zip("ab", (first, second), strict=True):
            pixels = draw(number)
            write(
                tmp_path / "in", f"images/{number}{letter}.png", pixels if letter == "a" else pixels // 2 + 40
            )
            write_mask(tmp_path / "in", f"{number}{letter}", square(value) + square(below, top=100, side=50))
    found = reviewed_masks(tmp_path, map_classes=("1=cell", "2=nerve"), ignore_label=("255",))
    ((group, words),) = other_labels(found)
    assert group == {"0a", "0b"} and words == "class 'cell' covers 11% more in one of them"


def test_boxes_of_exact_copies_are_compared_by_their_corners(tmp_path: Path) -> None:
    images, objects = [], []
    for number, (first, second) in enumerate((((20, 20), (90, 60)), ((20, 20), (21, 20)), ((5, 9), (5, 9)))):
        for letter, (left, top) in zip("ab", (first, second), strict=True):
            write(tmp_path / "in", f"{number}{letter}.png", draw(number))
            images.append(
                {"id": len(images), "file_name": f"{number}{letter}.png", "height": 160, "width": 200}
            )
            box = {"image_id": len(objects), "category_id": 3, "bbox": [left, top, 40, 30], "iscrowd": 0}
            objects.append({**box, "id": len(objects) + 1, "area": 1200})
    document = {"images": images, "annotations": objects, "categories": [{"id": 3, "name": "hat"}]}
    (tmp_path / "in" / "instances.json").write_text(json.dumps(document))
    done = run_convert(tmp_path / "in", tmp_path / "out", layout="coco", height=160, width=200)
    ((group, words),) = other_labels(review_dataset(done.folder))
    assert group == {"0a", "0b"} and words == "a box of 'hat' overlaps those of another one by 0% at most"


def test_doubtful_pairs_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / "in", f"a/{number}.png", draw(number))
        write(tmp_path / "in", f"a/part{number}.png", PLANTED["cropped at a corner"](draw(number)))
    assert not reviewed(tmp_path).not_searched
    limited = ReviewedSet(tmp_path / "drawn" / "1.0.0", most_compared=1)
    list(find_copies(limited))
    (text,) = limited.not_searched
    assert (
        "pairs of records whose signatures are less alike" in text
        and "of 1 doubtful pairs were compared" in text
    )


def test_alike_pairs_beyond_the_limit_are_copies_only_where_the_compared_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        for side in "ab":
            write(tmp_path / "in", f"a/{side}{number}.png", retina(number))
            write(tmp_path / "in", f"a/mirrored{side}{number}.png", retina(number)[:, ::-1])
    reviewed(tmp_path)
    limited = ReviewedSet(tmp_path / "drawn" / "1.0.0", most_compared=8)
    assert sorted(len(group.records) for group in copy_groups(limited)) == [4, 4, 4, 4]
    assert not limited.not_searched
    unlike = Match(details=0, blocks=0, is_small=False)
    monkeypatch.setattr(copies_module, "match_pair", lambda *_: unlike)
    assert all(len(group.records) == 2 for group in copy_groups(limited))
    (text,) = limited.not_searched
    assert "of 8 doubtful pairs were compared" in text


def test_retinas_of_other_eyes_are_no_copies_and_a_suspect_states_the_correlation_of_the_pixels(
    tmp_path: Path,
) -> None:
    for number in range(12):
        write(tmp_path / "in", f"train/a/{number}.png", retina(number))
    write(tmp_path / "in", "test/a/copy.png", PLANTED["recompressed"](retina(3)[:, ::-1]))
    (leak,) = copies(reviewed(tmp_path))
    assert leak.kind == CopyKind.LEAK and names(leak) == {"3", "copy"}
    (group,) = copy_groups(ReviewedSet(tmp_path / "drawn" / "1.0.0"))
    assert f"correlate by {group.similarity:.2f}" in leak.words and group.similarity != group.thumbnails


def test_the_command_prints_the_first_suspects_and_writes_all(tmp_path):
    for number in range(4):
        write(tmp_path / "photos/one", f"{number}.png", draw(number // 2))
    folder = run_convert(tmp_path / "photos", tmp_path / "out", layout="folders").folder
    file = tmp_path / "found.json"
    done = halofeed_here("review", folder, "--show", 1, "--json", file)
    assert done.returncode == 0 and "and 1 more; --json FILE lists all" in done.stdout
    assert json.loads(file.read_text()) == json.loads(json.dumps(review_dataset(folder).to_json()))
    assert halofeed_here("review", folder, "--json", "-").stdout == file.read_text()
    assert "expected 0 or more" in halofeed_here("review", folder, "--show", -1).stderr
