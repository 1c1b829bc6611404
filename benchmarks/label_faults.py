"""Measure how many planted label faults the first tenth of `halofeed review --run` lists, beside cleanlab.

    halofeed convert --source ../shared/data/detection/bccd_voc --out data --name cells --folds 2 \
        --height 192 --width 192 --max-rejected 5
    python benchmarks/label_faults.py data/cells/1.0.0 --out /tmp/cells -- --config retinanet_small
    python benchmarks/label_faults.py data/cells/1.0.0 --out /tmp/cells --cleanlab /tmp/peers/bin/python

The set has classes or boxes of pictures, or masks of pictures or volumes, and two folds. The first command writes a
copy of it in which 5 % of the labels are faulty, trains a run on each fold with the options after `--`, and counts.
Later commands keep what is there.
`--cleanlab` names a Python with cleanlab, which ranks the labels by the same predictions.

Planted faults, in equal numbers:

- classes: another class
- boxes: another class (where there are several), a removed box, a box moved by half of its size, a box at an empty
  place
- masks: the same for connected objects of at least `--least` pixels; a removed object has the class around it

A fault is found if a suspect of its record overlaps its box before or after the change by `OVERLAP` or more; that of a
class is found if its record is a suspect. The list
is as long as a tenth of the labels, and a suspect that finds no fault uses up a place as one that finds one does.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import nibabel
import numpy as np
from numpy.typing import ArrayLike, NDArray

import halofeed
from halofeed.inspection.review.components import components_of
from halofeed.inspection.review.faulty_boxes import ious
from halofeed.inspection.review.label_faults import iterate_rows
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.loader import Loader
from halofeed.trainer.held_out import choose_runs, predict_splits
from halofeed.trainer.run_folder import open_run

SHARE, LISTED, OVERLAP = 0.05, 0.1, 0.3
IGNORED = 255
Box = tuple[float, float, float, float]
"""ymin, xmin, ymax, xmax in pixels of the stored picture."""
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
"""Place of a fault of a class: the whole picture."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A planted fault.

    Args:
        source: name of the picture in the copy.
        kind: class, removed, moved or added.
        boxes: where it is: the box before and after the change, where there is one, as shares of the picture; `WHOLE`
            for a class.
    """

    source: str
    kind: str
    boxes: tuple[Box, ...]


@dataclass(eq=False)
class Picture:
    """A picture of the copy, with rows ymin, xmin, ymax, xmax, class of its boxes, or a mask, or a class."""

    name: str
    split: str
    pixels: NDArray[np.uint8]
    boxes: NDArray[np.float64]
    mask: NDArray[np.uint8] | None = None
    label: int | None = None


def read_pictures(data: Path) -> Iterator[Picture]:
    """Read the pictures of a set, with their classes, boxes in pixels, or masks."""
    for split in halofeed.open(data).splits:
        loader = Loader(data, split=split, batch_size=1, training=False)
        for number in range(loader.num_records):
            batch = loader.batch(number)
            pixels = batch["image"][0]
            name = f"{split}_{number:05d}.png"
            if "label" in batch and batch["label"].ndim > 2:
                mask = batch["label"][0].astype(np.uint8)
                name = name if mask.ndim == 2 else name.replace(".png", ".nii.gz")
                yield Picture(name, split, pixels, np.zeros((0, 5)), mask.reshape(-1, *mask.shape[-2:]))
                continue
            if "label" in batch:
                label = int(batch["label"][0])
                yield Picture(name, split, pixels, np.zeros((0, 5)), label=label)
                continue
            count = int(batch["num_boxes"][0])
            boxes = batch["boxes"][0, :count] * np.tile(pixels.shape[:2], 2)
            rows = np.column_stack([boxes, batch["classes"][0, :count]]).astype(float)
            yield Picture(name, split, pixels, rows)


def overlap(one: ArrayLike, other: ArrayLike) -> float:
    """Return the intersection of two boxes over their union."""
    first, second = (np.asarray(box, np.float64)[None] for box in (one, other))
    return float(ious(first, second)[0, 0])


# Classes -------------------------------------------------------------------------------------------------


def plant_classes(pictures: list[Picture], classes: int, random: np.random.Generator) -> list[Fault]:
    """Give pictures another class in place, and return what was changed."""
    faults = []
    for at in random.permutation(len(pictures))[: round(SHARE * len(pictures))].tolist():
        one = pictures[at]
        assert one.label is not None
        one.label = (one.label + int(random.integers(1, classes))) % classes
        faults.append(Fault(source=one.name, kind="class", boxes=(WHOLE,)))
    return faults


# Boxes ---------------------------------------------------------------------------------------------------


def plant_boxes(pictures: list[Picture], classes: int, random: np.random.Generator) -> list[Fault]:
    """Change boxes of the pictures in place, and return what was changed."""
    places = [(number, row) for number, one in enumerate(pictures) for row in range(len(one.boxes))]
    kinds = (["class"] if classes > 1 else []) + ["removed", "moved", "added"]
    chosen = random.permutation(len(places))[: round(SHARE * len(places))]
    removed: dict[int, list[int]] = {}
    faults = []
    for turn, at in enumerate(chosen.tolist()):
        number, row = places[at]
        one = pictures[number]
        kind, box = kinds[turn % len(kinds)], one.boxes[row].copy()
        after: list[Box] = []
        if kind == "class":
            one.boxes[row, 4] = other_class(int(box[4]), classes, random)
        elif kind == "removed":
            removed.setdefault(number, []).append(row)
        else:
            size = np.array(one.pixels.shape[:2])
            new = moved_box(box, size, random) if kind == "moved" else free_box(box, one, random)
            if new is None:
                continue
            after = [as_shares(new, size)]
            if kind == "moved":
                one.boxes[row, :4] = new
            else:
                one.boxes = np.vstack([one.boxes, [*new, box[4]]])
        before = [] if kind == "added" else [as_shares(box[:4], np.array(one.pixels.shape[:2]))]
        faults.append(Fault(source=one.name, kind=kind, boxes=(*before, *after)))
    for number, rows in removed.items():
        pictures[number].boxes = np.delete(pictures[number].boxes, rows, 0)
    return faults


def as_shares(box: NDArray[np.float64], size: NDArray[np.int64]) -> Box:
    """Return a box as shares of the picture."""
    top, left, bottom, right = (box / np.tile(size, 2)).tolist()
    return top, left, bottom, right


def other_class(label: int, classes: int, random: np.random.Generator) -> int:
    """Draw another class, from 1."""
    return (label - 1 + int(random.integers(1, classes))) % classes + 1


def moved_box(
    box: NDArray[np.float64], size: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.float64] | None:
    """Move a box by half of its height and width within the picture, so that it overlaps its place by 0.1 to 0.5."""
    steps = (box[2:4] - box[:2]) / 2
    for signs in random.permutation([(-1, -1), (-1, 1), (1, -1), (1, 1)]):
        new = box[:4] + np.tile(steps * signs, 2)
        new = np.asarray(np.clip(new, 0, np.tile(size, 2)), np.float64)
        if 0.1 <= overlap(box, new) < 0.5:
            return new
    return None


def free_box(
    box: NDArray[np.float64], one: Picture, random: np.random.Generator
) -> NDArray[np.float64] | None:
    """Draw a place for a box of this size that overlaps no other by more than 0.1."""
    sides = box[2:4] - box[:2]
    for _ in range(50):
        corner = random.uniform(0, 1, 2) * (np.array(one.pixels.shape[:2]) - sides)
        new = np.concatenate([corner, corner + sides])
        if all(overlap(new, other) <= 0.1 for other in one.boxes):
            return new
    return None


# Masks ---------------------------------------------------------------------------------------------------


def objects_of(mask: NDArray[np.uint8], least: int) -> list[tuple[int, NDArray[np.bool_]]]:
    """Return the class and the pixels of each connected object of at least so many pixels."""
    found = components_of(mask, (mask != 0) & (mask != IGNORED), least)
    return [(label, found.numbers == row) for row, label in enumerate(found.classes.tolist(), start=1)]


def plant_masks(
    pictures: list[Picture], classes: Sequence[int], least: int, random: np.random.Generator
) -> tuple[list[Fault], int]:
    """Change objects of the masks in place; return what was changed, and the number of objects."""
    places = [
        (number, label, pixels)
        for number, one in enumerate(pictures)
        for label, pixels in objects_of(_mask(one), least)
    ]
    kinds = (["class"] if len(classes) > 1 else []) + ["removed", "moved", "added"]
    faults: list[Fault] = []
    wanted = round(SHARE * len(places))
    # A picture gets one fault at most, so that one does not cover another.
    used: set[int] = set()
    for at in random.permutation(len(places)).tolist():
        number, label, pixels = places[at]
        if number in used or len(faults) == wanted:
            continue
        kind = kinds[len(faults) % len(kinds)]
        changed = _changed_mask(kind, _mask(pictures[number]), label, pixels, classes, random)
        if changed is None:
            continue
        used.add(number)
        mask, after = changed
        pictures[number].mask = mask
        size = np.array(mask.shape[1:])
        shown = [after] if kind == "added" else [pixels] if after is None else [pixels, after]
        boxes = tuple(as_shares(box_of(one), size) for one in shown if one is not None)
        faults.append(Fault(source=pictures[number].name, kind=kind, boxes=boxes))
    return faults, len(places)


def _mask(one: Picture) -> NDArray[np.uint8]:
    assert one.mask is not None
    return one.mask


def _changed_mask(
    kind: str,
    mask: NDArray[np.uint8],
    label: int,
    pixels: NDArray[np.bool_],
    classes: Sequence[int],
    random: np.random.Generator,
) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None] | None:
    """Return the mask with the fault, and the pixels of the object after it; None if it has no room."""
    changed = mask.copy()
    if kind == "class":
        changed[pixels] = random.choice([other for other in classes if other != label])
        return changed, None
    if kind in ("removed", "moved"):
        changed[pixels] = class_around(mask, pixels)
    if kind == "removed":
        return changed, None
    box = box_of(pixels).astype(int)
    sides = box[2:] - box[:2]
    for _ in range(50):
        if kind == "moved":
            shift = np.round(random.choice([-0.5, 0.5], 2) * sides).astype(int)
        else:
            shift = random.integers(0, np.array(mask.shape[1:]) - sides + 1) - box[:2]
        after = shifted(pixels, shift)
        # An object that leaves the picture, or covers one of its class, would be another fault.
        fits = after.sum() >= 0.9 * pixels.sum()
        covered = int(np.count_nonzero(mask[after] == label))
        if fits and (kind == "moved" or not covered):
            changed[after] = label
            return changed, after
    return None


def class_around(mask: NDArray[np.uint8], pixels: NDArray[np.bool_]) -> int:
    """Return the most frequent class beside an object."""
    kernel = np.ones((3, 3), np.uint8)
    ring = np.stack([cv2.dilate(one.astype(np.uint8), kernel) for one in pixels]).astype(bool) & ~pixels
    values = mask[ring & (mask != IGNORED)]
    return int(np.bincount(values).argmax()) if values.size else 0


def box_of(pixels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the box around pixels in all slices, ymin, xmin, ymax, xmax."""
    seen: NDArray[np.bool_] = np.asarray(pixels.any(0))
    rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
    return np.array([rows[0], columns[0], rows[-1] + 1, columns[-1] + 1], float)


def shifted(pixels: NDArray[np.bool_], shift: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return pixels moved by rows and columns; what leaves the picture is lost."""
    places = np.argwhere(pixels) + np.array([0, *shift])
    places = places[((places >= 0) & (places < pixels.shape)).all(1)]
    moved = np.zeros_like(pixels)
    moved[tuple(places.T)] = True
    return moved


# The copy and its runs -----------------------------------------------------------------------------------


def write_copy(data: Path, out: Path, least: int, seed: int) -> None:
    """Write the pictures and the changed labels as a source, and faults.json beside it."""
    described = halofeed.open(data)
    pictures, random = list(read_pictures(data)), np.random.default_rng(seed)
    source = out / "source"
    (source / "images").mkdir(parents=True)
    names = described.class_names
    if pictures[0].label is not None:
        labels = len(pictures)
        faults = plant_classes(pictures, len(names), random)
        with (source / "classes.csv").open("w", newline="") as stream:
            table = csv.writer(stream)
            table.writerow(["filename", "class", "split"])
            table.writerows([one.name, names[one.label or 0], one.split] for one in pictures)
    elif pictures[0].mask is None:
        labels = sum(len(one.boxes) for one in pictures)
        faults = plant_boxes(pictures, len(names) - 1, random)
        with (source / "boxes.csv").open("w", newline="") as stream:
            table = csv.writer(stream)
            table.writerow(["filename", "class", "xmin", "ymin", "xmax", "ymax", "split"])
            for one in pictures:
                for top, left, bottom, right, label in one.boxes.tolist():
                    table.writerow([one.name, names[int(label)], left, top, right, bottom, one.split])
    else:
        used = sorted({value for one in pictures for value in np.unique(_mask(one)).tolist()} - {0, IGNORED})
        faults, labels = plant_masks(pictures, used, least, random)
        (source / "labels").mkdir()
        for one in pictures:
            write_image(source / "labels" / one.name, _mask(one))
    for one in pictures:
        write_image(source / "images" / one.name, one.pixels)
    for split in described.splits:
        listed = [one.name for one in pictures if one.split == split]
        (out / f"{split}.txt").write_text("".join(f"{name}\n" for name in listed))
    document = {"labels": labels, "faults": [asdict(fault) for fault in faults]}
    (out / "faults.json").write_text(json.dumps(document))


def write_image(file: Path, pixels: NDArray[np.uint8]) -> None:
    """Write a picture or a mask, [height, width, 3] or [1, height, width], or a volume, [depth, height, width, 1]."""
    if file.name.endswith(".nii.gz"):
        # halofeed's axes are those of NIfTI in reverse order.
        voxels = pixels.reshape(pixels.shape[:3]).T
        nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), file)
    elif pixels.shape[-1] == 3:
        cv2.imwrite(str(file), cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))
    else:
        cv2.imwrite(str(file), pixels[0])


def halofeed_command(*words: object) -> None:
    """Run a command of halofeed, and end with its error."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "halofeed", *map(str, words)], check=True)
    print(f"halofeed {words[0]}: {time.perf_counter() - begun:.0f} s", flush=True)


def prepare(data: Path, out: Path, given: argparse.Namespace) -> None:
    """Make the copy, convert it and train a run for each fold, each where it is not there yet."""
    if not (out / "faults.json").is_file():
        write_copy(data, out, given.least, given.seed)
    described = halofeed.open(data)
    if not (out / "data").is_dir():
        *depth, height, width, _ = described.manifest.field("image").shape
        size: tuple[object, ...] = ("--height", height, "--width", width, "-q")
        if depth:
            size = (*size, "--depth", *depth, "--window-percentiles", "0,100")
        source = out / "source"
        tables = [source / name for name in ("classes.csv", "boxes.csv") if (source / name).is_file()]
        if tables:
            form: tuple[object, ...] = ("--source", tables[0], "--images", source / "images")
        else:
            lists = ",".join(f"{split}={out / split}.txt" for split in described.splits)
            form = ("--source", source, "--layout", "pairs", "--split-lists", lists)
            ignored = described.manifest.ignore_label
            form = (*form, *(() if ignored is None else ("--ignore-label", ignored)))
        halofeed_command("convert", *form, "--out", out / "data", "--name", "faulty", *size)
    for fold in range(2):
        if not (out / f"run{fold}" / "report.html").is_file():
            folder = out / f"run{fold}"
            halofeed_command("train", version_of(out), "--fold", fold, "--out", folder, *given.train)


def version_of(out: Path) -> Path:
    """Return the folder of the converted copy."""
    return out / "data" / "faulty" / "1.0.0"


# The lists ------------------------------------------------------------------------------------------------

Ranked = Sequence[tuple[str, Box]]
"""Name of the picture and box of each suspect, best first."""


def reviewed(out: Path, runs: Sequence[Path]) -> Ranked:
    """Return the label faults that `halofeed review` lists."""
    file = out / "review.json"
    halofeed_command(
        "review", version_of(out), "--run", ",".join(map(str, runs)), "--json", file, "--show", 0
    )
    suspects = json.loads(file.read_text())["suspects"]
    # Other searches, such as that for copies, have no score of a label fault.
    faults = [one for one in suspects if "evidence" in one["words"]]
    return [(one["records"][0]["source"].rpartition("/")[2], tuple(one.get("box", WHOLE))) for one in faults]


def by_cleanlab(out: Path, runs: Sequence[Path], python: Path) -> dict[str, Ranked]:
    """Return the lists of cleanlab by their names."""
    sources = write_predictions(out, runs)
    begun = time.perf_counter()
    script = Path(__file__).with_name("rank_by_cleanlab.py")
    subprocess.run([str(python), str(script), str(out)], check=True)
    print(f"cleanlab: {time.perf_counter() - begun:.0f} s", flush=True)
    ranked = json.loads((out / "ranked.json").read_text())
    return {name: [(sources[number], tuple(box)) for number, box in rows] for name, rows in ranked.items()}


def write_predictions(out: Path, runs: Sequence[Path]) -> list[str]:
    """Write the predictions that the review uses as arrays; return the names of their pictures."""
    data = version_of(out)
    files = ReviewedSet(data)
    rows = list(iterate_rows(files, predict_splits(choose_runs([open_run(run) for run in runs], data), data)))
    classes = len(halofeed.open(data).class_names)
    first = rows[0][2]
    if "boxes" in first:
        labels, predicted = [], []
        for number, (_, found, true) in enumerate(rows):
            # cleanlab's boxes are x, y, x, y, and its classes count from 0.
            labels += [
                [number, *box[[1, 0, 3, 2]], label - 1]
                for box, label in zip(true["boxes"], true["classes"][: true["num_boxes"]], strict=False)
            ]
            known = zip(found["boxes"], found["classes"], found["scores"], strict=True)
            predicted += [
                [number, *box[[1, 0, 3, 2]], label - 1, score]
                for box, label, score in list(known)[: found["num_detections"]]
            ]
        np.savez(
            out / "predictions.npz",
            records=len(rows),
            classes=classes - 1,
            labels=np.array(labels),
            predicted=np.array(predicted),
        )
    elif np.ndim(first["label"]) == 0:
        np.savez(
            out / "predictions.npz",
            classes=np.array([int(true["label"]) for _, _, true in rows]),
            probabilities=np.stack([found["probabilities"] for _, found, _ in rows]),
        )
    else:
        ignored = files.manifest.ignore_label
        np.savez(out / "predictions.npz", ignored=-1 if ignored is None else ignored)
        size = first["label"].shape[-2:]
        masks = [true["label"].reshape(-1, *size) for _, _, true in rows]
        np.save(out / "labels.npy", np.stack(masks))
        shares = [found["probabilities"].reshape(-1, *size, classes) for _, found, _ in rows]
        np.save(out / "probabilities.npy", np.stack(shares))
    return [files.place(number).source.rpartition("/")[2] for number, _, _ in rows]


def ranks_of(faults: Sequence[Fault], ranked: Ranked) -> NDArray[np.float64]:
    """Return the place in the list at which each fault is found first; infinite if it is not."""
    by_source: dict[str, list[int]] = {}
    for number, fault in enumerate(faults):
        by_source.setdefault(fault.source, []).append(number)
    ranks = np.full(len(faults), np.inf)
    for place, (source, box) in enumerate(ranked):
        for number in by_source.get(source, []):
            if np.isinf(ranks[number]) and any(overlap(box, one) >= OVERLAP for one in faults[number].boxes):
                ranks[number] = place
    return ranks


def print_table(out: Path, lists: dict[str, Ranked]) -> None:
    """Print the share of the faults that each list finds, of all and of each kind."""
    document = json.loads((out / "faults.json").read_text())
    faults = [
        Fault(source=one["source"], kind=one["kind"], boxes=tuple(map(tuple, one["boxes"])))
        for one in document["faults"]
    ]
    kinds = sorted({fault.kind for fault in faults})
    is_of = np.array([[fault.kind == kind for fault in faults] for kind in kinds])
    print(f"{len(faults)} faults among {document['labels']:,} labels")
    print(f"{'found in the first':<40} {'5 %':>6} {'10 %':>6} {'20 %':>6}  10 % by kind")
    for name, ranked in lists.items():
        ranks = ranks_of(faults, ranked)
        shares = [np.mean(ranks < share * document["labels"]) for share in (LISTED / 2, LISTED, 2 * LISTED)]
        found = ranks < LISTED * document["labels"]
        by_kind = ", ".join(
            f"{kind} {found[rows].mean():.0%}" for kind, rows in zip(kinds, is_of, strict=True)
        )
        print(f"{name:<40} {' '.join(f'{share:>6.0%}' for share in shares)}  {by_kind}")


def main() -> None:
    """Plant, train, review and count."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="version folder of a converted set with two folds")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the copy, its runs and predictions"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults (default: 0)")
    parser.add_argument("--least", type=int, default=30, help="masks: pixels of an object (default: 30)")
    parser.add_argument("--cleanlab", type=Path, help="Python of an environment with cleanlab")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:at])
    given.train = words[at + 1 :]
    given.out.mkdir(parents=True, exist_ok=True)
    prepare(given.data, given.out, given)
    runs = [given.out / f"run{fold}" for fold in range(2)]
    lists = {"halofeed, a run for each fold": reviewed(given.out, runs)}
    lists["halofeed, one run"] = reviewed(given.out, runs[:1])
    if given.cleanlab is not None:
        lists |= {
            f"cleanlab, {name}": one for name, one in by_cleanlab(given.out, runs, given.cleanlab).items()
        }
    print_table(given.out, lists)


if __name__ == "__main__":
    main()
