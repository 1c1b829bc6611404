"""`keras_datasets` converts a source once, and a changed one again; its two splits have no common record."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import halofeed
from halofeed.errors import UsageError
from halofeed.loader import FlipLeftRight

PICTURES = 30
OPTIONS = {"height": 8, "width": 8, "batch_size": 4}


def draw(folder: Path, numbers=range(PICTURES), name="{:02}.png") -> Path:
    """Pictures of two classes, whose gray level is their number."""
    for number in numbers:
        path = folder / ("odd" if number % 2 else "even") / name.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(path)
        # Files are older than the resolution of their times, as those of a user are.
        os.utime(path, (1.6e9, 1.6e9))
    return folder


def numbers_in(dataset) -> list[int]:
    return [int(picture[0, 0, 0]) for pictures, _ in dataset.as_numpy_iterator() for picture in pictures]


@pytest.fixture
def photos(tmp_path):
    return draw(tmp_path / "photos")


def files_of(cache: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every record file below the cache."""
    found = {str(path): path.stat() for path in cache.rglob("*.tfrecord-*")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


def test_every_record_is_in_one_split_and_comes_once_in_each_of_five_epochs(photos, tmp_path):
    data = halofeed.keras_datasets(photos, cache=tmp_path / "cache", augment=[FlipLeftRight()], **OPTIONS)
    train, validation, class_names = data
    assert class_names == ("even", "odd") and halofeed.open(data.path).splits.keys() == {
        "train",
        "validation",
    }
    held_out = numbers_in(validation)
    assert len(held_out) == 6 and held_out == numbers_in(validation)
    epochs = [numbers_in(train) for _ in range(5)]
    for numbers in epochs:
        assert sorted(numbers + held_out) == list(range(PICTURES))
    assert len({tuple(numbers) for numbers in epochs}) == 5
    labels = [
        (int(picture[0, 0, 0]), int(label)) for batch in train for picture, label in zip(*batch, strict=True)
    ]
    assert all(number % 2 == label for number, label in labels)


def test_initial_epoch_resumes_with_the_order_of_the_next_epoch(photos, tmp_path):
    options = {"cache": tmp_path / "cache", **OPTIONS}
    train = halofeed.keras_datasets(photos, **options).train
    epochs = [numbers_in(train) for _ in range(5)]
    resumed = halofeed.keras_datasets(photos, initial_epoch=3, **options).train
    assert [numbers_in(resumed) for _ in range(2)] == epochs[3:]
    with pytest.raises(UsageError, match="initial_epoch"):
        halofeed.keras_datasets(photos, initial_epoch=-1, **options)


def test_each_call_says_whether_it_converted_and_rejects_advise_another_call(photos, tmp_path, capsys):
    for number in range(4):
        (photos / "odd" / f"cut_{number}.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    options = {"cache": tmp_path / "cache", **OPTIONS}
    path = halofeed.keras_datasets(photos, **options).path
    said = capsys.readouterr().err
    assert f"{photos} was converted in " in said and path in said
    assert (
        "rejected" in said and "overwrite" not in said and "call keras_datasets again, which converts" in said
    )
    halofeed.keras_datasets(photos, **options)
    assert f"halofeed.keras_datasets: {photos} is already converted: {path}" in capsys.readouterr().err
    # The advice works: without the damaged files, another call converts again.
    for number in range(4):
        (photos / "odd" / f"cut_{number}.png").unlink()
    halofeed.keras_datasets(photos, **options)
    said = capsys.readouterr().err
    assert "converting it again" in said and "was converted in" in said and "rejected" not in said
    halofeed.keras_datasets(photos, quiet=True, **options)
    halofeed.keras_datasets(photos, quiet=True, **options)
    assert not capsys.readouterr().err


def test_a_second_call_converts_nothing_and_other_options_have_a_place_of_their_own(
    photos, tmp_path, monkeypatch
):
    cache = tmp_path / "cache"
    first = halofeed.keras_datasets(photos, cache=cache, **OPTIONS)
    files = files_of(cache)
    monkeypatch.chdir(tmp_path)
    for source in (photos, "photos", tmp_path / "photos" / "."):
        again = halofeed.keras_datasets(source, cache=cache, **OPTIONS | {"height": np.int64(8)})
        assert again.path == first.path and files_of(cache) == files and files
    other = halofeed.keras_datasets(photos, cache=cache, validation=0.5, **OPTIONS)
    assert other.path != first.path and len(numbers_in(other.validation)) == PICTURES // 2
    assert files.items() < files_of(cache).items()


def test_a_changed_source_is_converted_again(photos, tmp_path, capsys):
    def numbers() -> list[int]:
        data = halofeed.keras_datasets(photos, cache=tmp_path / "cache", **OPTIONS)
        return sorted(numbers_in(data.train) + numbers_in(data.validation))

    assert numbers() == list(range(PICTURES))
    draw(photos, [100])
    assert numbers() == [*range(PICTURES), 100]
    (photos / "even" / "04.png").unlink()
    Image.fromarray(np.full((8, 8, 3), 200, np.uint8)).save(photos / "odd" / "03.png")
    assert numbers() == sorted({*range(PICTURES), 100, 200} - {3, 4})
    assert capsys.readouterr().err.count("photos has changed since it was converted") == 2
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_group_is_in_one_split(tmp_path):
    photos = draw(tmp_path / "photos", name="patient{0:02}_a.png")
    for number in range(PICTURES):
        path = photos / ("odd" if number % 2 else "even") / f"patient{number:02}_b.png"
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(path)
    pattern = "(patient[0-9]+)"
    data = halofeed.keras_datasets(photos, cache=tmp_path / "cache", group_pattern=pattern, **OPTIONS)
    train, validation = Counter(numbers_in(data.train)), Counter(numbers_in(data.validation))
    assert set(train.values()) == set(validation.values()) == {2}
    assert not train.keys() & validation.keys() and len(train | validation) == PICTURES


def test_the_splits_of_a_source_are_kept_by_name(tmp_path):
    draw(tmp_path / "photos" / "train", range(20))
    draw(tmp_path / "photos" / "val", range(20, 30))
    options = {"cache": tmp_path / "cache", **OPTIONS}
    with pytest.raises(
        UsageError, match=r'has the splits train, val, and a share .* pass validation="val", or name'
    ):
        halofeed.keras_datasets(tmp_path / "photos", **options)
    (tmp_path / "photos" / "val").rename(tmp_path / "photos" / "test")
    with pytest.raises(UsageError, match='pass validation="test", or name'):
        halofeed.keras_datasets(tmp_path / "photos", **options)
    (tmp_path / "photos" / "test").rename(tmp_path / "photos" / "val")
    data = halofeed.keras_datasets(tmp_path / "photos", validation="val", **options)
    assert sorted(numbers_in(data.train)) == list(range(20))
    assert sorted(numbers_in(data.validation)) == list(range(20, 30))
    with pytest.raises(
        UsageError, match=r"split test has no records; splits: train \(20\), val \(10\); name one"
    ):
        halofeed.keras_datasets(tmp_path / "photos", validation="test", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(
            ({"validation": share}, "above 0 and below 1, such as validation=0.2")
            for share in (0, 1, 20, True, None)
        ),
        ({"folds": 3}, "folds: keras_datasets makes a train and a validation split"),
        ({"overwrite": True}, "converts again when a file of the source has changed"),
        ({"image_size": (8, 8)}, "image_size"),
        ({"cache": 3}, "cache"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_converted(photos, tmp_path, options, words):
    with pytest.raises(UsageError, match=words):
        halofeed.keras_datasets(photos, **{"cache": tmp_path / "cache", **OPTIONS} | options)
    assert not (tmp_path / "cache").exists()


def test_the_cache_is_below_the_folder_of_the_user(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    data = halofeed.keras_datasets(photos, **OPTIONS)
    assert Path(data.path).is_relative_to(tmp_path / "user" / "halofeed" / "datasets")
