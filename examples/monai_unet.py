"""Train a U-Net of MONAI on CT scans, and evaluate it with MONAI's sliding windows and Dice.

pip install 'halofeed[convert]' monai
python examples/monai_unet.py

Checked with monai 1.6.1 and torch 2.15.0.
"""

import tempfile
from pathlib import Path

import torch
from drawn import draw_ct
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.networks.utils import one_hot

import halofeed
from halofeed.loader import FlipDepth, FlipLeftRight, FlipUpDown, RandomCrop

WINDOW = (-60, 160)


def main(folder: Path) -> None:
    draw_ct(folder / "ct")
    data = halofeed.convert(
        folder / "ct" / "ct.csv",
        folder / "data",
        layout="csv",
        name="ct",
        task="segmentation",
        depth=24,
        height=40,
        width=40,
    )
    augment = [RandomCrop(16, 32, 32, foreground=0.5), FlipDepth(), FlipUpDown(), FlipLeftRight()]
    # `scale_range` does what ScaleIntensityRanged does: stored Hounsfield units become 0 to 1.
    train = halofeed.torch.monai(
        data.loader("train", batch_size=4, seed=1, augment=augment), scale_range=WINDOW
    )

    torch.manual_seed(0)
    classes = len(data.class_names)
    model = UNet(spatial_dims=3, in_channels=1, out_channels=classes, channels=(8, 16, 32), strides=(2, 2))
    loss_of = DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(12):  # each iteration is one epoch
        for batch in train:
            loss = loss_of(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0], losses

    test = halofeed.torch.monai(
        data.loader("test", batch_size=1, training=False), scale_range=WINDOW, meta=True
    )
    dice = DiceMetric(include_background=False)
    model.eval()
    with torch.no_grad():
        for batch in test:
            scores = sliding_window_inference(batch["image"], (16, 32, 32), 1, model)
            found = one_hot(scores.argmax(1, keepdim=True), classes)
            dice(found, one_hot(batch["label"], classes))
            # A MetaTensor has the affine of its axes, here depth, height and width, in RAS orientation.
            assert batch["image"].affine.shape == (1, 4, 4)
    print(f"loss {losses[0]:.2f}, then {losses[-1]:.2f}; Dice of test scans {float(dice.aggregate()):.2f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
