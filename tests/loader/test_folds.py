"""Folds: splits that `--folds` makes, and the loader's choice among them."""

import numpy as np
import pytest

from halofeed.errors import UsageError
from halofeed.loader import Loader
from tests.support.annotation_writer import draw
from tests.support.conversions import run_convert


def ids_of(loader: Loader) -> set[tuple[int, ...]]:
    return {
        tuple(np.atleast_1d(loader.record(number)["id"]).tolist()) for number in range(loader.num_records)
    }


def test_each_record_is_validated_in_one_fold_and_trained_on_in_the_others(tmp_path):
    source = draw(
        tmp_path / "src", *(f"{label}/{number}.png" for label in ("hat", "coat") for number in range(7))
    )
    folder = run_convert(source, tmp_path / "out", layout="folders", folds=3).folder
    seen: list[tuple[int, ...]] = []
    for fold in range(3):
        train = Loader(folder, fold=fold, batch_size=2)
        held_out = Loader(folder, fold=fold, split="validation", batch_size=2, training=False)
        assert not ids_of(train) & ids_of(held_out)
        assert held_out.num_records > 0 and train.restore(train.state(3)) == 3
        seen += ids_of(held_out)
        everything = ids_of(train) | ids_of(held_out)
        with pytest.raises(UsageError, match="split"):
            Loader(folder, fold=(fold + 1) % 3, batch_size=2).restore(train.state(3))
    assert len(seen) == len(set(seen)) and set(seen) == everything
    for options, words in (
        ({"fold": 3}, "has 3 folds; expected 0 to 2"),
        ({"fold": 0, "split": "test"}, "expected 'train' or 'validation'"),
        ({}, "choose by fold=0 or --fold 0"),
    ):
        with pytest.raises(UsageError, match=words):
            Loader(folder, batch_size=2, **options)
