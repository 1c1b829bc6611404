"""Does every stored pixel of a 2-D segmentation have the class that its place has in the label image?"""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halofeed.errors import SourceError
from halofeed.prep.convert.label_image import read_label_image
from tests.support.conversions import read_all, run_convert
from tests.support.memory_cases import png_of, saved
from tests.support.volume_support import rejected, write_table

LIMIT = 10**6


def png(pixels: np.ndarray, bits: int, color_type: int = 0) -> bytes:
    """A PNG with as many bits per sample as one likes; a palette of grays for color type 3."""
    rows = []
    for row in pixels.tolist():
        text = "".join(format(value, f"0{bits}b") for value in row)
        text += "0" * (-len(text) % 8)
        rows.append(b"\0" + bytes(int(text[at : at + 8], 2) for at in range(0, len(text), 8)))
    height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0)
    palette = [(b"PLTE", bytes(3 * 2 ** min(bits, 8)))] * (color_type == 3)
    return png_of((b"IHDR", header), *palette, (b"IDAT", zlib.compress(b"".join(rows))))


@pytest.mark.parametrize(
    ("bits", "color_type"), [*((b, 0) for b in (1, 2, 4, 8, 16)), *((b, 3) for b in (1, 2, 4, 8))]
)
def test_gray_values_and_palette_indices_of_every_depth_are_the_classes(bits, color_type):
    largest = 2**bits - 1
    pixels = np.random.default_rng(bits).integers(0, largest + 1, (7, 11))
    pixels[0, :2] = 0, largest
    assert np.array_equal(read_label_image(png(pixels, bits, color_type), LIMIT), pixels)


def test_what_is_no_label_image_is_refused_with_its_reason():
    gray = Image.fromarray(np.zeros((4, 5), np.uint8))
    whole = saved(gray, "PNG")
    damaged = bytearray(whole)
    damaged[whole.index(b"IDAT") + 6] ^= 1
    for data, reason in (
        (saved(gray, "JPEG"), "label image is not a PNG"),
        (b"", "label image is not a PNG"),
        (saved(Image.new("RGB", (5, 4), (1, 2, 3)), "PNG"), "label image is in color"),
        (saved(Image.new("RGBA", (5, 4), (1, 1, 1, 9)), "PNG"), "label image is in color"),
        (saved(Image.fromarray(np.zeros((4, 5), np.float32)), "TIFF"), "label image holds fractions"),
        (whole[:-20], "file is truncated"),
        (bytes(damaged), "file is damaged"),
    ):
        with pytest.raises(SourceError) as caught:
            read_label_image(data, LIMIT)
        assert caught.value.reason == reason
    with pytest.raises(SourceError, match="more pixels than allowed"):
        read_label_image(whole, 19)


def blocks(height: int, width: int, classes: int = 6) -> np.ndarray:
    small = np.random.default_rng(height).integers(0, classes, (height // 6 + 1, width // 6 + 1))
    return np.kron(small, np.ones((6, 6), int))[:height, :width].astype(np.int32)


def as_file(labels: np.ndarray, kind: str) -> bytes:
    if kind == "palette":
        image = Image.frombytes("P", labels.shape[::-1], labels.astype(np.uint8).tobytes())
        image.putpalette(list(range(255, -1, -1)) * 3)
        return saved(image, "PNG")
    return saved(Image.fromarray(labels.astype(np.uint16 if kind == "gray 16" else np.uint8)), "PNG")


def write_pictures(root, kind="gray", orientations=(1, 3, 6, 8)):
    """Pictures whose red channel is 30 times the class, with an EXIF orientation; their labels as the file lies."""
    shown, rows = {}, []
    root.mkdir(parents=True)
    for number, orientation in enumerate(orientations):
        labels = blocks(36 + 6 * number, 60)
        picture = np.repeat((labels * 30)[..., None], 3, axis=2).astype(np.uint8)
        exif = Image.Exif()
        exif[274] = orientation
        (root / f"{number}.png").write_bytes(saved(Image.fromarray(picture), "PNG", exif=exif))
        (root / f"{number}_mask.png").write_bytes(as_file(labels, kind))
        rows.append((number, f"{number}.png", f"{number}_mask.png"))
        turns = {1: 0, 3: 2, 6: 3, 8: 1}[orientation]
        shown[f"{number}.png"] = np.rot90(labels, turns)
    write_table(root, rows)
    return shown


def label_of(features: dict[str, Any], encoding: str, dtype: Any = np.uint8) -> np.ndarray:
    data = features["image/label"][0]
    if encoding == "raw":
        shape = [int(features[f"image/{side}"][0]) for side in ("height", "width")]
        return np.frombuffer(data, dtype).reshape(shape)
    return np.asarray(Image.open(io.BytesIO(data)))


NEAREST = {"layout": "csv", "task": "segmentation", "interpolation": "tf2-nearest"}
FIXED = {**NEAREST, "height": 32, "width": 44}


def nearest(labels: np.ndarray, height: int, width: int) -> np.ndarray:
    """The slow way: the class whose source pixel holds the center of each pixel."""
    rows = [int((y + 0.5) * labels.shape[0] / height) for y in range(height)]
    columns = [int((x + 0.5) * labels.shape[1] / width) for x in range(width)]
    return np.array([[labels[y, x] for x in columns] for y in rows])


@pytest.mark.parametrize("kind", ["gray", "palette", "gray 16"])
@pytest.mark.parametrize("encoding", ["raw", "png", "jpeg"])
def test_each_stored_pixel_has_the_class_of_its_place(tmp_path, kind, encoding):
    shown = write_pictures(tmp_path / "s", kind)
    done = run_convert(tmp_path / "s", tmp_path / "o", encoding=encoding, **FIXED)
    records = read_all(Path(done.folder), ["train"])
    assert len(records) == len(shown) == 4
    for name, labels in shown.items():
        found = label_of(records[name], encoding)
        assert np.array_equal(found, nearest(labels, 32, 44)), name
        assert records[name]["image/labelled"].tolist() == [1]
        if encoding == "raw":
            pixels = np.frombuffer(records[name]["image/encoded"][0], np.uint8).reshape(32, 44, 3)
            assert np.array_equal(pixels[..., 0], found * 30)


@pytest.mark.parametrize("encoding", ["raw", "png", "jpeg"])
def test_a_kept_aspect_pads_the_label_with_background(tmp_path, encoding):
    shown = write_pictures(tmp_path / "s", orientations=(1, 6))
    sizes = {
        "resize": "keep-aspect",
        "min_dimension": 30,
        "max_dimension": 50,
        "pad": True,
        "pad_value": (7,),
    }
    done = run_convert(tmp_path / "s", tmp_path / "o", encoding=encoding, **sizes, **NEAREST)
    for name, features in read_all(Path(done.folder), ["train"]).items():
        found = label_of(features, encoding)
        height, width = (int(features[f"image/unpadded/{side}"][0]) for side in ("height", "width"))
        assert found.shape == (50, 50) and min(height, width) == 30 and max(height, width) in (43, 50)
        assert np.array_equal(found[:height, :width], nearest(shown[name], height, width))
        assert not found[height:].any() and not found[:, width:].any()


def test_a_label_drawn_on_the_displayed_picture_is_known_by_its_size(tmp_path):
    shown = write_pictures(tmp_path / "s", orientations=(6, 8))
    for name, labels in shown.items():
        (tmp_path / f"s/{name.replace('.png', '_mask.png')}").write_bytes(as_file(labels, "gray"))
    done = run_convert(tmp_path / "s", tmp_path / "o", **FIXED)
    for name, features in read_all(Path(done.folder), ["train"]).items():
        assert np.array_equal(label_of(features, "raw"), nearest(shown[name], 32, 44))


def test_more_than_255_classes_are_stored_in_16_bits(tmp_path):
    write_pictures(tmp_path / "s", orientations=(1, 1))
    labels = blocks(36, 60, 400)
    (tmp_path / "s/0_mask.png").write_bytes(as_file(labels, "gray 16"))
    (tmp_path / "map.txt").write_text("background\n" + "".join(f"class {n}\n" for n in range(1, 400)))
    options = {"layout": "csv", "task": "segmentation", "height": 36, "width": 60}
    for encoding in ("raw", "png"):
        out = tmp_path / encoding
        done = run_convert(
            tmp_path / "s", out, label_map=str(tmp_path / "map.txt"), encoding=encoding, **options
        )
        features = read_all(Path(done.folder), ["train"])["0.png"]
        assert np.array_equal(label_of(features, encoding, np.uint16), labels) and labels.max() > 255
    done = run_convert(tmp_path / "s", tmp_path / "open", **options)
    assert rejected(done)["0.png"][:2] == ("annotation", "mask has unknown labels")


def test_color_masks_other_sizes_and_missing_masks_are_refused_one_by_one(tmp_path):
    write_pictures(tmp_path / "s", orientations=(1, 1, 1, 1))
    (tmp_path / "s/0_mask.png").write_bytes(saved(Image.new("RGB", (60, 36), (1, 2, 3)), "PNG"))
    (tmp_path / "s/1_mask.png").write_bytes(saved(Image.new("L", (61, 42)), "PNG"))
    (tmp_path / "s/2_mask.png").unlink()
    options = {"layout": "csv", "task": "segmentation", "height": 36, "width": 60}
    done = run_convert(tmp_path / "s", tmp_path / "o", **options)
    assert {name: entry[1] for name, entry in rejected(done).items()} == {
        "0.png": "label image is in color",
        "1.png": "label image is of another size than the picture",
        "2.png": "label file not found",
    }
    assert [*read_all(Path(done.folder), ["train"])] == ["3.png"]
