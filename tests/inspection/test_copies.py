"""Search for copies: drawn pictures with planted copies of each kind."""

import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

import halofeed
from halofeed.inspection.review.copies import CopyKind
from halofeed.inspection.review.copy_search import (
    find_pairs,
    shows_something,
    turn_back,
    turn_by_both,
    turned,
)
from halofeed.inspection.review.review import Review, review_dataset
from halofeed.inspection.review.suspects import Suspect
from halofeed.pipelines import shard_writer
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


def test_many_copies_of_one_picture_are_all_in_some_pair() -> None:
    words = [sign_picture(draw(1), f"{number}.png", None) for number in range(300)]
    pairs = find_pairs(signed([*words, sign_picture(draw(2), "x.png", None)]))
    assert set(pairs.first.tolist()) | set(pairs.second.tolist()) == set(range(300))
    assert len(pairs) < 300 * 32


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
