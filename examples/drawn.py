"""Draw small inputs for the examples and the pages: class folders, boxes, records, CT scans and clips.

`python drawn.py [FOLDER]` draws all of them into FOLDER, by default the working directory.
"""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import nibabel
import numpy as np
from PIL import Image

from halofeed.demo import draw_data_set, draw_picture
from halofeed.schemas.tfexample import encode_example
from halofeed.schemas.tfrecord import RecordWriter


def draw_photos(folder: Path, *, train: int = 18, test: int = 7) -> None:
    """Draw folder/SPLIT/CLASS/N.png: pictures whose color is their class, `train` and `test` of each of three."""
    generator = np.random.default_rng(0)
    for split, count in (("train", train), ("test", test)):
        for channel, name in enumerate(("red", "green", "blue")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 120, (40, 48, 3), np.uint8)
                pixels[..., channel] += 120
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")


def draw_boxes(folder: Path, images: int = 24) -> None:
    """Draw folder/images/*.jpg and COCO's folder/annotations; the first picture is truncated on purpose."""
    draw_data_set(folder, images)


def draw_box_table(file: Path, images: int = 12) -> None:
    """Draw pictures beside a CSV table of their boxes, a row per box."""
    generator = np.random.default_rng(1)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["filename", "xmin", "ymin", "xmax", "ymax", "class"])
        for number in range(images):
            picture, objects = draw_picture(generator, 160, 120)
            picture.save(file.parent / f"{number}.png")
            for one in objects:
                corners = np.clip([*one["corners"].min(0), *one["corners"].max(0)], 0, [160, 120] * 2)
                table.writerow([f"{number}.png", *corners.round(2), one["shape"]])


def draw_records(folder: Path, images: int = 8) -> None:
    """Draw folder/shapes.record: a TFRecord file with pictures and boxes, as the TF Object Detection API has them."""
    generator = np.random.default_rng(2)
    folder.mkdir(parents=True)
    with (folder / "shapes.record").open("wb") as stream:
        records = RecordWriter(stream)
        for _ in range(images):
            picture, objects = draw_picture(generator, 160, 120)
            picture.save(file := io.BytesIO(), "JPEG")
            corners = np.array([[*one["corners"].min(0), *one["corners"].max(0)] for one in objects]).reshape(
                -1, 4
            )
            shares = np.clip(corners / [160, 120, 160, 120], 0, 1).astype(np.float32)
            sides = zip(("xmin", "ymin", "xmax", "ymax"), shares.T, strict=True)
            features = {f"image/object/bbox/{name}": values for name, values in sides}
            features["image/object/class/text"] = [one["shape"].encode() for one in objects]
            example = encode_example({"image/encoded": file.getvalue(), **features})
            records.write(example.chunks, example.length)


def draw_scan(image: Path, label: Path, seed: int) -> int:
    """Draw a CT scan of 40 x 40 x 24 voxels with one bright organ and its label; return the organ's voxels."""
    generator = np.random.default_rng(seed)
    place = np.stack(np.meshgrid(*map(np.arange, (40, 40, 24)), indexing="ij"), -1)
    organ = np.linalg.norm((place - generator.uniform(10, 14, 3)) * (1, 1, 2), axis=-1) < 9
    voxels = generator.normal(-20, 15, organ.shape) + 140 * organ
    affine = np.diag([1.5, 1.5, 3.0, 1.0])
    for file, array in ((image, voxels.astype(np.int16)), (label, organ.astype(np.uint8))):
        file.parent.mkdir(parents=True, exist_ok=True)
        nibabel.Nifti1Image(array, affine).to_filename(file)
    return int(organ.sum())


def draw_ct(folder: Path, scans: int = 6) -> None:
    """Draw CT scans, their labels and the table folder/ct.csv with the columns id, image, label, split."""
    rows = []
    for number in range(scans):
        image, label = f"{number}.nii.gz", f"{number}_label.nii.gz"
        draw_scan(folder / image, folder / label, number)
        rows.append(f"{number},{image},{label},{'test' if number % 3 == 2 else 'train'}\n")
    (folder / "ct.csv").write_text("id,image,label,split\n" + "".join(rows))


def draw_clips(folder: Path, clips: int = 3) -> None:
    """Draw folder/CLASS/N.gif: animations of 20 frames in which a square moves to the left or to the right."""
    for name, step in (("left", -2), ("right", 2)):
        (folder / name).mkdir(parents=True)
        for number in range(clips):
            frames = np.zeros((20, 48, 64), np.uint8)
            for time, frame in enumerate(frames):
                start = (20 if step > 0 else 58) + step * time - number
                frame[20:30, max(start - 10, 0) : start] = 200 + 10 * number
            first, *others = (Image.fromarray(frame) for frame in frames)
            first.save(folder / name / f"{number}.gif", save_all=True, append_images=others, duration=100)


def draw_all(folder: Path) -> None:
    """Draw the inputs of docs/quick-start.md: photos, cards, boxes, records, scans and videos below the folder."""
    draw_photos(folder / "photos")
    draw_boxes(folder / "cards")
    draw_box_table(folder / "boxes/boxes.csv")
    draw_records(folder / "records")
    draw_ct(folder / "scans")
    draw_clips(folder / "videos")
    print(f"drew photos, cards, boxes, records, scans and videos in {folder.resolve()}")


if __name__ == "__main__":
    draw_all(Path(*sys.argv[1:2]))
