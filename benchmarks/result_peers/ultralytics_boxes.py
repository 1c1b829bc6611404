"""Ultralytics' YOLO11n from scratch at 320 pixels, with its defaults and no pretrained weights.

Its own budget (`time`) reads a clock; it is given the processor time.
"""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace

os.environ.update({"YOLO_OFFLINE": "true", "YOLO_VERBOSE": "false"})

import ultralytics.engine.trainer as engine
from budget import of_split, read_arguments, write_log
from PIL import Image
from ultralytics import YOLO


def main() -> None:
    """Train for the budget, and write the boxes of the test."""
    task, out, budget, seed = read_arguments(__doc__)
    root = (out / "yolo").resolve()
    for split in ("train", "test"):
        for kind in ("images", "labels"):
            (root / kind / split).mkdir(parents=True, exist_ok=True)
        for number, one in enumerate(of_split(task, split)):
            Image.open(one["picture"]).convert("RGB").save(
                root / "images" / split / f"{number:05d}.jpg", quality=95
            )
            height, width = one["size"]
            lines = []
            for row in one["objects"]:
                x, y, w, h = row["bbox"]
                lines.append(
                    f"{row['category_id'] - 1} {(x + w / 2) / width} {(y + h / 2) / height} {w / width} {h / height}"
                )
            (root / "labels" / split / f"{number:05d}.txt").write_text("\n".join(lines))
    names = "".join(f"  {number}: {name}\n" for number, name in enumerate(task["class_names"]))
    (root / "data.yaml").write_text(f"path: {root}\ntrain: images/train\nval: images/test\nnames:\n{names}")
    # The trainer compares time.time() with its budget in hours.
    engine.time = SimpleNamespace(time=time.process_time, sleep=time.sleep)
    model = YOLO("yolo11n.yaml")
    started = time.process_time()
    model.train(
        data=str(root / "data.yaml"), imgsz=320, batch=16, workers=0, device="cpu", pretrained=False, plots=False,
        val=False, amp=False, seed=seed, time=(budget.minutes * 60 - started) / 3600, project=str(out / "runs"),
        exist_ok=True, save=True, patience=0, cache="ram",
    )  # fmt: skip
    trained = time.process_time()
    budget.steps = int(model.trainer.epoch + 1)
    budget.notes["unit"] = "epochs"
    best = YOLO(out / "runs" / "train" / "weights" / "last.pt")
    rows = []
    for number, one in enumerate(of_split(task, "test")):
        picture = root / "images" / "test" / f"{number:05d}.jpg"
        found = best.predict(str(picture), imgsz=320, conf=0.001, max_det=300, verbose=False, device="cpu")[
            0
        ].boxes
        for box, label, score in zip(
            found.xyxy.tolist(), found.cls.tolist(), found.conf.tolist(), strict=True
        ):
            left, top, right, bottom = box
            rows.append(
                {
                    "image": one["name"], "category_id": int(label) + 1, "score": score,
                    "bbox": [left, top, right - left, bottom - top],
                }
            )  # fmt: skip
    (out / "detections.json").write_text(json.dumps(rows))
    write_log(out, budget, ("torch", "ultralytics"), sum(p.numel() for p in best.model.parameters()), trained)


if __name__ == "__main__":
    main()
