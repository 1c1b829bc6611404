"""Feed Grain: records are a random-access source, which Grain shuffles, batches and checkpoints.

pip install 'halofeed[convert]' grain
python examples/grain_loader.py
"""

import tempfile
from collections import Counter
from pathlib import Path

import grain
from drawn import draw_photos

import halofeed
from halofeed.loader import join_id


def main(folder: Path) -> None:
    draw_photos(folder / "photos")
    data = halofeed.convert(folder / "photos", folder / "data", layout="folders", height=32, width=32)
    records = data.loader("train", batch_size=1).records

    epoch = grain.MapDataset.source(records).shuffle(seed=7).batch(6)
    seen = Counter(one for batch in epoch for one in join_id(batch["id"]).tolist())
    by_hand = len(list((folder / "photos" / "train").glob("*/*.png")))
    assert len(seen) == by_hand == 54 and set(seen.values()) == {1}

    # Grain draws another order for each epoch.
    epochs = [join_id(batch["id"]).tolist() for batch in epoch.repeat(5)]
    for number in range(5):
        found = [one for batch in epochs[number * len(epoch) :][: len(epoch)] for one in batch]
        assert sorted(found) == sorted(seen)

    iterator = iter(epoch.to_iter_dataset())
    next(iterator)
    state = iterator.get_state()
    expected = next(iterator)["id"].tolist()
    iterator = iter(epoch.to_iter_dataset())
    iterator.set_state(state)
    assert next(iterator)["id"].tolist() == expected
    print(f"Grain gave each of {len(seen)} records once, and resumed at the second batch")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
