"""How tests write the folder of a training run that never was: logs, configuration, examples."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

LABELS = {
    "detection": {1: "disk", 2: "square", 4: "star"},
    "classification": {0: "disk", 1: "square", 2: "cross", 3: "ring"},
    "segmentation": {0: "background", 1: "liver", 2: "spleen"},
}
CONFIG: dict[str, Any] = {
    "model": "retinanet", "model_options": {"width": 16, "features": [8, 16]}, "task_options": {"alpha": 0.25},
    "image_shape": None, "augment": [{"name": "FlipLeftRight", "probability": 0.5}], "backbone_weights": "",
    "steps": 200, "batch_size": 8, "seed": 7, "learning_rate": 0.02, "rates": [0.1, 1e-05], "cores_per_replica": 4,
    "partition": "image=1,2,2,1", "evaluate_every": 50,
}  # fmt: skip


def write_run(folder: Path, task: str, *, steps: int = 200, volume: bool | None = None, **more: Any) -> Path:
    """Fabricate what training leaves: a falling loss, rising metrics and drawn pictures with nearly right predictions.

    Args:
        volume: of segmentation: whether it is of CT scans, the default, or of pictures.
        more: entries of run.json.
    """
    volume = task == "segmentation" if volume is None else volume
    shape = (20, 44, 52, 1) if volume else (96, 128, 3)
    config = {**CONFIG, **({"model": "unet", "partition": "image=1,2,2,1,1"} if volume else {})}
    facts = {"task": task, "labels": {str(label): name for label, name in LABELS[task].items()}}
    facts |= {"image_shape": list(shape), "mean": [101.5, 99.25, 87.0][: shape[-1]]}
    facts["std"] = [50.0, 51.0, 52.0][: shape[-1]]
    document = {"format": 1, "config": config, "facts": facts, "halofeed": "0.3.0", "parameters": 1_234_567}
    document |= {"data": "data/drawn/1.0.0", "data_name": "drawn", "data_version": "1.0.0"}
    document |= {"split": "train", "evaluate_split": "validation", "platform": "cpu"}
    document["mesh"] = {"replica": 2, "core0": 2, "core1": 2}
    best = {"detection": "mAP", "classification": "accuracy", "segmentation": "dice"}
    document["best_metric"] = best[task]
    document["recipe"] = {"dtype": "int16", "window_hu": [-160, 240]} if volume else {"resize": "keep-aspect"}
    document |= more
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(document))
    random = np.random.default_rng(5)
    with (folder / "log.jsonl").open("w") as log:
        for step in range(1, steps + 1):
            loss = 3.2 * math.exp(-step / 45) + 0.06 + 0.05 * random.random()
            rate = 0.01 * min(1.0, step / 20) * (1 + math.cos(math.pi * step / max(1, steps)))
            entry = {"step": step, "loss": loss, "class_loss": 0.7 * loss, "learning_rate": rate}
            entry |= {"box_loss": 0.3 * loss * random.random()}
            entry |= {"gradient_norm": 4 * loss * (5 if step == 120 else 1)}
            entry |= {"images_per_second": None if step == 1 else 40 + 4 * random.random()}
            entry |= {"waiting_share": 0.4 if step < 3 else 0.02 * random.random()}
            log.write(json.dumps(entry) + "\n")
    with (folder / "evaluations.jsonl").open("w") as lines:
        for step in range(50, steps + 1, 50):
            metrics = fabricated_metrics(task, step / (step + 40))
            lines.write(json.dumps({"step": step, "split": "validation", "metrics": metrics}) + "\n")
    if steps >= 50:
        write_examples(folder, task, volume, steps)
    return folder


def fabricated_metrics(task: str, good: float) -> dict[str, Any]:
    names = [name for label, name in LABELS[task].items() if label or task != "segmentation"]
    if task == "detection":
        each = {name: {"AP": good * 0.9**at, "AP@0.5": good * 0.97**at} for at, name in enumerate(names)}
        return {
            "mAP": good * 0.9, "mAP@0.5": good, "mAP@0.75": good * 0.8, "mAP small": None, "AR@100": good * 0.95,
            "ap": {**each, names[-1]: {"AP": None, "AP@0.5": None}},
        }  # fmt: skip
    if task == "classification":
        right = round(40 * good)
        confusion = np.full((4, 4), 2) + np.diag([right, right, right, right])
        confusion[2, 3] += 15
        recall = {name: float(confusion[at, at] / confusion[at].sum()) for at, name in enumerate(names)}
        return {
            "accuracy": float(np.trace(confusion) / confusion.sum()), "examples": int(confusion.sum()),
            "recall": recall, "precision": {**recall, "disk": None}, "confusion": confusion.tolist(),
        }  # fmt: skip
    return {
        "dice": good, "dice_per_class": {"liver": good, "spleen": good * 0.9}, "hausdorff95_mm": 9 * (1 - good),
        "hausdorff95_mm_per_class": {"liver": 4.0, "spleen": None}, "examples": 12,
    }  # fmt: skip


def write_examples(folder: Path, task: str, volume: bool, step: int) -> None:
    draw: Callable[[np.random.Generator], dict[str, Any]] = {
        "detection": draw_detection,
        "classification": draw_classification,
        "segmentation": draw_scan if volume else draw_label,
    }[task]
    (folder / "examples").mkdir()
    listed = []
    for number in range(4):
        arrays = draw(np.random.default_rng(number))
        np.savez_compressed(folder / "examples" / f"{number:02d}.npz", **arrays)
        told = {"file": f"{number:02d}.npz", "id": 4_000_000_007 + number}
        told |= {"score": None if number == 3 else 0.2 + 0.1 * number}
        listed.append({**told, "reason": "worst" if number < 2 else "typical"})
    document = {"step": step, "split": "validation", "examples": listed}
    (folder / "examples" / "examples.json").write_text(json.dumps(document))


def draw_shapes(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A picture with shapes on a soft ground, their boxes in pixels and their classes."""
    rows, columns = np.mgrid[:96, :128]
    ground = 120 + 40 * np.sin(columns / 17 + random.random() * 6) + 30 * np.cos(rows / 11)
    picture = np.stack([ground, ground * 0.95, ground * 0.8], -1).clip(0, 255).astype(np.uint8)
    boxes, classes = [], []
    for at in range(count):
        size = int(random.integers(14, 26))
        top, left = int(random.integers(2, 94 - size)), int(2 + at * 124 / count)
        kind = int(random.choice([1, 2]))
        color = tuple(map(int, random.integers(0, 255, 3)))
        middle = (left + size // 2, top + size // 2)
        if kind == 1:
            cv2.circle(picture, middle, size // 2, color, -1)
        else:
            cv2.rectangle(picture, (left, top), (left + size, top + size), color, -1)
        boxes.append((top, left, top + size, left + size))
        classes.append(kind)
    return picture, np.array(boxes, np.float32), np.array(classes, np.int32)


def draw_detection(random: np.random.Generator) -> dict[str, Any]:
    picture, boxes, classes = draw_shapes(random, 4)
    scale = np.array([96, 128, 96, 128], np.float32)
    truth = np.zeros((10, 4), np.float32)
    truth[:4] = boxes / scale
    found = np.concatenate([boxes[:3] + random.normal(0, 1, (3, 4)), [[60, 90, 90, 120]]]) / scale
    predicted = np.zeros((20, 4), np.float32)
    predicted[:4] = found
    predicted[4:] = found[0]
    arrays = {"image": picture, "truth_boxes": truth, "truth_classes": np.pad(classes, (0, 6))}
    arrays |= {"truth_num_boxes": np.int32(4), "truth_is_crowd": np.zeros(10, bool), "truth_id": np.int64(5)}
    scores = np.array([0.97, 0.88, 0.61, 0.45, *np.linspace(0.2, 0.01, 16)], np.float32)
    arrays |= {
        "predicted_boxes": predicted,
        "predicted_scores": scores,
        "predicted_num_detections": np.int32(18),
    }
    return {**arrays, "predicted_classes": np.array([*classes[:3], 2, *[1] * 16], np.int32)}


def draw_classification(random: np.random.Generator) -> dict[str, Any]:
    picture, _, _ = draw_shapes(random, 1)
    shares = random.dirichlet([0.4] * 4).astype(np.float32)
    predicted = {"predicted_label": np.int32(shares.argmax()), "predicted_probabilities": shares}
    return {"image": picture, "truth_label": np.int32(random.integers(4)), **predicted}


def draw_label(random: np.random.Generator) -> dict[str, Any]:
    picture, boxes, classes = draw_shapes(random, 3)
    truth = np.zeros((96, 128), np.uint8)
    for (top, left, bottom, right), kind in zip(boxes.astype(int).tolist(), classes.tolist(), strict=True):
        truth[top:bottom, left:right] = kind
    predicted = np.roll(truth, (2, -3), (0, 1))
    return {"image": picture, "truth_label": truth, "predicted_label": predicted.astype(np.int32)}


def draw_scan(random: np.random.Generator) -> dict[str, Any]:
    depth, height, width = np.mgrid[:20, :44, :52].astype(np.float64)

    def ball(middle: tuple[float, float, float], radii: tuple[float, float, float]) -> np.ndarray:
        axes = zip((depth, height, width), middle, radii, strict=True)
        return np.asarray(sum(((axis - at) / radius) ** 2 for axis, at, radius in axes) < 1)

    liver, spleen = ball((11, 24, 36), (6, 11, 10)), ball((12, 18, 12), (4, 6, 6))
    volume = np.full((20, 44, 52), -1000.0)
    volume[ball((10, 22, 26), (40, 20, 24))] = 0
    volume[liver], volume[spleen] = 90, 140
    volume += random.normal(0, 18, volume.shape)
    truth = np.where(liver, 1, np.where(spleen, 2, 0)).astype(np.uint8)
    predicted = np.roll(truth, 2, 2)
    predicted[ball((6, 30, 30), (3, 4, 4))] = 1
    arrays = {"image": volume[..., None].astype(np.int16), "predicted_label": predicted.astype(np.int32)}
    return {**arrays, "truth_label": truth, "spacing_mm": np.array([5.0, 2.0, 2.0], np.float32)}
