"""Feed torch's DataLoader: single records that it shuffles and batches, or halofeed's complete batches.

pip install 'halofeed[convert]' torch
python examples/torch_dataloader.py
"""

import tempfile
from collections import Counter
from pathlib import Path

from drawn import draw_photos
from torch import nn, optim
from torch.utils.data import DataLoader

import halofeed
from halofeed.loader import join_id


def main(folder: Path) -> None:
    draw_photos(folder / "photos")
    data = halofeed.convert(folder / "photos", folder / "data", layout="folders", height=32, width=32)
    loader = data.loader("train", batch_size=8, seed=1)

    # 1. Records: torch draws, batches and counts them. A worker opens the files itself.
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    optimizer = optim.Adam(model.parameters(), 0.02)
    seen = Counter()
    for batch in DataLoader(loader.records, batch_size=8, shuffle=True, num_workers=2):
        scores = model(batch["image"].movedim(-1, 1) / 255)  # channels first, as torch wants them
        loss = nn.functional.cross_entropy(scores, batch["label"].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.update(join_id(batch["id"]).tolist())
    by_hand = len(list((folder / "photos" / "train").glob("*/*.png")))
    assert len(seen) == by_hand == 54 and set(seen.values()) == {1}

    in_order = [
        one
        for batch in DataLoader(loader.records, batch_size=5, num_workers=2)
        for one in join_id(batch["id"])
    ]
    assert in_order == [loader.stored(number).id for number in range(loader.num_records)]

    # 2. Complete batches, shuffled exactly and augmented: each iteration is one epoch.
    batches = loader.by_step()
    epochs = DataLoader(batches, batch_size=None, sampler=batches.sampler(), num_workers=2)
    taken = []
    for _ in range(5):
        epoch = list(epochs)
        assert sorted(one for batch in epoch for one in join_id(batch["id"]).tolist()) == sorted(seen)
        taken += epoch

    # A resume in the second epoch gives the same batches.
    sampler = batches.sampler(start_step=10)
    resumed = list(DataLoader(batches, batch_size=None, sampler=sampler, num_workers=2))
    for batch, expected in zip(resumed, taken[10:], strict=False):
        for name, array in expected.items():
            assert (batch[name] == array).all()
    print(f"each of {len(seen)} pictures once in each epoch; {len(resumed)} batches resumed at step 10")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
