"""torchvision's RetinaNet for boxes and Mask R-CNN for instances, ResNet-50 with FPN, from scratch.

Pictures are resized to 320 pixels at their shorter side (256 for instances), mirrored at random. SGD with momentum 0.9
and a cosine over the budget.
"""

from __future__ import annotations

import functools
import json
import random
import time

import numpy as np
import torch
from budget import of_split, read_arguments, write_log
from PIL import Image
from pycocotools import mask as run_lengths
from torchvision.models.detection import maskrcnn_resnet50_fpn, retinanet_resnet50_fpn


def read_example(one: dict, masks: bool) -> tuple[torch.Tensor, dict]:
    """Return pixels as uint8 [3, height, width], and boxes, classes from 1 and run lengths of masks."""
    pixels = torch.from_numpy(np.asarray(Image.open(one["picture"]).convert("RGB")).transpose(2, 0, 1).copy())
    boxes = torch.tensor([row["bbox"] for row in one["objects"]], dtype=torch.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    target = {
        "boxes": boxes,
        "labels": torch.tensor([row["category_id"] for row in one["objects"]], dtype=torch.int64),
    }
    if masks:
        target["shapes"] = [row["segmentation"] for row in one["objects"]]
    return pixels, target


def with_masks(pixels: torch.Tensor, target: dict) -> tuple[torch.Tensor, dict]:
    """Decode the masks of a chosen example: those of all examples at once have 5 GB."""
    if "shapes" not in target:
        return pixels, target
    shapes = np.stack([run_lengths.decode(one) for one in target["shapes"]])
    return pixels, {**target, "masks": torch.from_numpy(shapes)}


def mirrored(
    pixels: torch.Tensor, target: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Mirror left and right."""
    width = pixels.shape[-1]
    boxes = target["boxes"].clone()
    boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
    changed = {**target, "boxes": boxes}
    if "masks" in target:
        changed["masks"] = target["masks"].flip(-1)
    return pixels.flip(-1), changed


def main() -> None:
    """Train for the budget, and write boxes or masks of the test."""
    task, out, budget, seed = read_arguments(__doc__)
    random.seed(seed)
    torch.manual_seed(seed)
    masks = task["kind"] == "instances"
    train = [read_example(one, masks) for one in of_split(task, "train") if one["objects"]]
    classes = len(task["class_names"]) + 1
    side = 256 if masks else 320
    sizes = {
        "min_size": side,
        "max_size": 2 * side,
        "weights": None,
        "weights_backbone": None,
        "num_classes": classes,
    }
    network = (
        functools.partial(maskrcnn_resnet50_fpn, box_detections_per_img=500)
        if masks
        else retinanet_resnet50_fpn
    )
    model = network(**sizes)
    rate = 0.02 if masks else 0.005
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    model.train()
    while budget.used_share() < 1:
        drawn = [with_masks(*one) for one in random.choices(train, k=4)]
        batch = [mirrored(*one) if random.random() < 0.5 else one for one in drawn]
        losses = model([pixels.float() / 255 for pixels, _ in batch], [target for _, target in batch])
        for group in optimizer.param_groups:
            group["lr"] = rate * budget.cosine(0.1)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10)
        optimizer.step()
        budget.steps += 1
    trained = time.process_time()
    model.eval()
    rows = []
    with torch.inference_mode():
        for one in of_split(task, "test"):
            pixels, _ = read_example({**one, "objects": []}, False)
            found = model([pixels.float() / 255])[0]
            for number, (left, top, right, bottom) in enumerate(found["boxes"].tolist()):
                row = {
                    "image": one["name"], "category_id": int(found["labels"][number]),
                    "score": float(found["scores"][number]),
                    "bbox": [left, top, right - left, bottom - top],
                }  # fmt: skip
                if masks:
                    shape = run_lengths.encode(
                        np.asfortranarray(found["masks"][number, 0].numpy() > 0.5, np.uint8)
                    )
                    row["segmentation"] = {"size": shape["size"], "counts": shape["counts"].decode()}
                rows.append(row)
    (out / "detections.json").write_text(json.dumps(rows))
    write_log(out, budget, ("torch", "torchvision"), sum(p.numel() for p in model.parameters()), trained)


if __name__ == "__main__":
    main()
