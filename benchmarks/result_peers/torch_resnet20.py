"""ResNet-20 in PyTorch (He et al. 2016, section 4.2): padded crops, mirrors, SGD with momentum, weight decay 1e-4.

The number of epochs is `--minutes`, since the row compares the same epochs; the cosine runs over them.
"""

from __future__ import annotations

import json
import math
import time

import numpy as np
import torch
from budget import of_split, read_arguments, write_log
from PIL import Image
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut without parameters (option A)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.more = stride, outputs - inputs
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features of the block."""
        y = functional.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        shortcut = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return functional.relu(y + shortcut)


def resnet20(classes: int) -> nn.Module:
    """Return the network of 0.27 million parameters."""
    blocks: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    inputs = 16
    for width in (16, 32, 64):
        for number in range(3):
            blocks.append(Block(inputs, width, 2 if number == 0 and width > 16 else 1))
            inputs = width
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def read_pixels(examples: list[dict]) -> torch.Tensor:
    """Return all pictures as uint8 [count, 3, 32, 32]."""
    pictures = [np.asarray(Image.open(one["picture"]).convert("RGB")) for one in examples]
    return torch.from_numpy(np.stack(pictures).transpose(0, 3, 1, 2).copy())


def main() -> None:
    """Train for the epochs, and write the class of each test picture."""
    task, out, budget, seed = read_arguments(__doc__)
    torch.manual_seed(seed)
    train = of_split(task, "train")
    pixels, labels = read_pixels(train), torch.tensor([one["number"] for one in train])
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)
    spread = torch.tensor([0.2470, 0.2435, 0.2616]).view(1, 3, 1, 1)

    def scaled(part: torch.Tensor) -> torch.Tensor:
        return (part.float() / 255 - mean) / spread

    model = resnet20(len(task["class_names"])).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    size, epochs = 128, int(budget.minutes)
    total = epochs * (len(train) // size)
    for _ in range(epochs):
        order = torch.randperm(len(train))
        for start in range(0, len(train) - size + 1, size):
            rows = order[start : start + size]
            batch = functional.pad(scaled(pixels[rows]), (4, 4, 4, 4))
            offsets = torch.randint(0, 9, (size, 2)).tolist()
            batch = torch.stack(
                [
                    one[:, top : top + 32, left : left + 32]
                    for one, (top, left) in zip(batch, offsets, strict=True)
                ]
            )
            mirrored = torch.rand(size) < 0.5
            batch[mirrored] = batch[mirrored].flip(-1)
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * (1 + math.cos(math.pi * budget.steps / total))
            loss = functional.cross_entropy(
                model(batch.contiguous(memory_format=torch.channels_last)), labels[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            budget.steps += 1
    trained = time.process_time()
    model.eval()
    test = of_split(task, "test")
    with torch.inference_mode():
        numbers = torch.cat([model(scaled(part)).argmax(1) for part in read_pixels(test).split(500)]).tolist()
    (out / "classes.json").write_text(
        json.dumps({one["name"]: n for one, n in zip(test, numbers, strict=True)})
    )
    write_log(out, budget, ("torch",), sum(p.numel() for p in model.parameters()), trained)


if __name__ == "__main__":
    main()
