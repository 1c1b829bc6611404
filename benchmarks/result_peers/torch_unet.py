"""U-Net in PyTorch for label images: of MONAI for two classes, else of the size of our small one.

The pictures are cropped at random and mirrored, the loss is cross-entropy (and Dice for two classes), the optimizer
AdamW with a cosine over the budget.
"""

from __future__ import annotations

import random
import time

import numpy as np
import torch
from budget import of_split, read_arguments, write_log
from monai.losses import DiceCELoss
from monai.networks.nets import BasicUNet, UNet
from PIL import Image
from torch.nn import functional


def read_pair(one: dict, classes: int, ignored: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pixels as float32 [3, height, width] of mean 0, and classes [height, width] with 255 where ignored."""
    pixels = np.asarray(Image.open(one["picture"]).convert("RGB"), np.float32) / 127.5 - 1
    label = np.array(Image.open(one["label"]))
    label = (label > 127).astype(np.int64) if classes == 2 else label.astype(np.int64)
    if ignored is not None:
        label[label == ignored] = 255
    if one["region"]:
        label[np.asarray(Image.open(one["region"]).convert("L")) <= 127] = 255
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), torch.from_numpy(label)


def padded(pixels: torch.Tensor, factor: int = 16) -> torch.Tensor:
    """Pad height and width at their ends to a multiple of the network's stride."""
    height, width = pixels.shape[-2:]
    return functional.pad(pixels, (0, -width % factor, 0, -height % factor))


def main() -> None:
    """Train for the budget, and write a label image for each test picture."""
    task, out, budget, seed = read_arguments(__doc__)
    random.seed(seed)
    torch.manual_seed(seed)
    classes = len(task["class_names"])
    vessels = classes == 2
    train = [read_pair(one, classes, task["ignored"]) for one in of_split(task, "train")]
    if vessels:
        model = UNet(
            spatial_dims=2,
            in_channels=3,
            out_channels=2,
            channels=(16, 32, 64, 128),
            strides=(2, 2, 2),
            num_res_units=2,
        )
        dice = DiceCELoss(to_onehot_y=True, softmax=True)
    else:
        model = BasicUNet(
            spatial_dims=2, in_channels=3, out_channels=classes, features=(8, 16, 32, 64, 128, 8)
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    crop = (192, 192) if vessels else (192, 256)
    model.train()
    while budget.used_share() < 1:
        batch = [cropped(*random.choice(train), crop) for _ in range(8)]
        pixels, label = (torch.stack(parts) for parts in zip(*batch, strict=True))
        logits = model(padded(pixels))[..., : crop[0], : crop[1]]
        if vessels:
            # MONAI's losses have no ignored class: pixels outside of the field of view are background.
            loss = dice(logits, torch.where(label == 255, 0, label)[:, None])
        else:
            loss = functional.cross_entropy(logits, label, ignore_index=255)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * budget.cosine()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.steps += 1
    trained = time.process_time()
    model.eval()
    with torch.inference_mode():
        for one in of_split(task, "test"):
            pixels, label = read_pair(one, classes, task["ignored"])
            height, width = label.shape
            predicted = model(padded(pixels[None]))[0, :, :height, :width].argmax(0)
            Image.fromarray(predicted.numpy().astype(np.uint8)).save(out / f"{one['name']}.png")
    write_log(out, budget, ("torch", "monai"), sum(p.numel() for p in model.parameters()), trained)


def cropped(
    pixels: torch.Tensor, label: torch.Tensor, crop: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut a random part, and mirror half of them."""
    top = random.randint(0, max(label.shape[0] - crop[0], 0))
    left = random.randint(0, max(label.shape[1] - crop[1], 0))
    part = (slice(top, top + crop[0]), slice(left, left + crop[1]))
    pixels, label = pixels[(slice(None), *part)], label[part]
    return (pixels.flip(-1), label.flip(-1)) if random.random() < 0.5 else (pixels, label)


if __name__ == "__main__":
    main()
