"""Rank classes, boxes or regions of masks by cleanlab, for `benchmarks/label_faults.py --cleanlab`, which runs it.

    PYTHON benchmarks/rank_by_cleanlab.py FOLDER

PYTHON has cleanlab (pip install cleanlab) and needs no halofeed. FOLDER has predictions.npz; lists in the order of
each rank are written to ranked.json, as [picture, [ymin, xmin, ymax, xmax]]:

- classes: the label quality scores by self-confidence and by normalized margin with adjusted probabilities, lowest
  first, and the issues that `find_label_issues` lists by itself
- boxes: the scores of ObjectLab for swapped, badly located and overlooked boxes, in one list, lowest first
- masks: the connected regions of the pixels of `find_label_issues`, of one labeled class each; the largest first, and
  those with the lowest mean pixel score first. cleanlab itself ranks pictures only, of which each has many objects
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

LEAST_PIXELS = 9
"""As the smallest object of halofeed's search."""


WHOLE = [0.0, 0.0, 1.0, 1.0]
"""Place of the fault of a class."""


def rank_classes(stored: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the records by their scores, and the list of issues."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    labels, probabilities = stored["classes"], stored["probabilities"].astype(np.float64)
    probabilities /= probabilities.sum(1, keepdims=True)
    orders = {
        "self-confidence": np.argsort(get_label_quality_scores(labels, probabilities), kind="stable"),
        "adjusted normalized margin": np.argsort(
            get_label_quality_scores(
                labels, probabilities, method="normalized_margin", adjust_pred_probs=True
            ),
            kind="stable",
        ),
        "find_label_issues": find_label_issues(
            labels, probabilities, return_indices_ranked_by="self_confidence", n_jobs=1
        ),
    }
    return {name: [[number, WHOLE] for number in order.tolist()] for name, order in orders.items()}


def rank_boxes(stored: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the boxes by the lowest of their scores."""
    from cleanlab.object_detection import rank

    labels, predictions = [], []
    for number in range(int(stored["records"])):
        true = stored["labels"][stored["labels"][:, 0] == number]
        found = stored["predicted"][stored["predicted"][:, 0] == number]
        labels.append({"bboxes": true[:, 1:5], "labels": true[:, 5].astype(int)})
        by_class = [
            found[found[:, 5] == label][:, [1, 2, 3, 4, 6]] for label in range(int(stored["classes"]))
        ]
        array = np.empty(len(by_class), object)
        array[:] = by_class
        predictions.append(array)
    both = {"labels": labels, "predictions": predictions}
    scored = []
    for score in (rank.compute_swap_box_scores, rank.compute_badloc_box_scores):
        for number, scores in enumerate(score(**both)):
            boxes = labels[number]["bboxes"]
            scored += [(float(one), number, box.tolist()) for one, box in zip(scores, boxes, strict=True)]
    for number, scores in enumerate(rank.compute_overlooked_box_scores(**both)):
        boxes = np.concatenate(list(predictions[number]))[:, :4]
        scored += [(float(one), number, box.tolist()) for one, box in zip(scores, boxes, strict=True)]
    # A box may have two scores below 1; its lowest counts, and it is in the list once.
    ranked, seen = [], set()
    for _, number, (left, top, right, bottom) in sorted(one for one in scored if not np.isnan(one[0])):
        if (number, left, top, right, bottom) not in seen:
            seen.add((number, left, top, right, bottom))
            ranked.append([number, [top, left, bottom, right]])
    return {"ObjectLab": ranked}


def rank_masks(folder: Path, stored: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the regions of pixel issues by size and by mean score."""
    from cleanlab.segmentation import filter as issue_filter
    from cleanlab.segmentation import rank
    from scipy import ndimage

    labels, probabilities = np.load(folder / "labels.npy"), np.load(folder / "probabilities.npy")
    records, _, height, width = labels.shape
    flat = labels.reshape(-1, height, width).astype(int)
    moved = np.moveaxis(probabilities.reshape(-1, *probabilities.shape[2:]), -1, 1).astype(np.float32)
    moved /= moved.sum(1, keepdims=True)
    # Pixels without a label agree with the run.
    flat = np.where(flat == int(stored["ignored"]), moved.argmax(1), flat)
    issues = issue_filter.find_label_issues(flat, moved, n_jobs=1, verbose=False)
    _, scores = rank.get_label_quality_scores(flat, moved, n_jobs=1, verbose=False)
    issues, scores, flat = (one.reshape(labels.shape) for one in (issues, scores, flat))
    regions = []
    for number in range(records):
        for label in np.unique(flat[number][issues[number]]):
            numbered, _ = ndimage.label(issues[number] & (flat[number] == label), np.ones((3, 3, 3)))
            for row, place in enumerate(ndimage.find_objects(numbered), start=1):
                pixels = numbered[place] == row
                if pixels.sum() >= LEAST_PIXELS:
                    _, rows, columns = place
                    box = [
                        rows.start / height,
                        columns.start / width,
                        rows.stop / height,
                        columns.stop / width,
                    ]
                    regions.append(
                        (int(pixels.sum()), float(scores[number][place][pixels].mean()), number, box)
                    )
    largest, lowest = sorted(regions, key=lambda one: -one[0]), sorted(regions, key=lambda one: one[1])
    return {
        "pixel issues, largest region first": [one[2:] for one in largest],
        "pixel issues, lowest mean score first": [one[2:] for one in lowest],
    }


def main() -> None:
    """Write ranked.json."""
    folder = Path(sys.argv[1])
    stored = dict(np.load(folder / "predictions.npz"))
    if "probabilities" in stored:
        ranked = rank_classes(stored)
    else:
        ranked = rank_boxes(stored) if "predicted" in stored else rank_masks(folder, stored)
    (folder / "ranked.json").write_text(json.dumps(ranked))


if __name__ == "__main__":
    main()
