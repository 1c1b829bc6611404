"""Pictures and records for other_readers.py: files of each format, and what other decoders and readers make of them.

Pixels are those of the file, upright, in levels of 8 or 16 bits. A decoder that returns samples of fewer bits has them
scaled to 16 by the rule that halofeed states: round(sample * 65535 / largest sample).
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Objects = dict[str, list[list[Any]]]
Row = tuple[str, dict[str, Any]]
"""Name of a row of other_readers.py, and the arguments of its `Case`."""
_SIDES = (24, 36)


def pixels_as_objects(path: Path, pixels: NDArray[Any]) -> Objects:
    """Return the pixels of a picture as one object: its shape, and all values."""
    shown = pixels if pixels.ndim == 3 else pixels[..., None]
    return {path.stem: [["x".join(map(str, shown.shape)), *shown.ravel().tolist()]]}


def in_16_bits(samples: NDArray[Any], bits: int) -> NDArray[np.int64]:
    """Return samples of some bits as levels of 16 bits."""
    peak = (1 << bits) - 1
    return (samples.astype(np.int64) * 65535 + peak // 2) // peak


# What halofeed and others decode -----------------------------------------------------------------------------


def read_pixels_with_halofeed(folder: Path, form: Mapping[str, Any]) -> Objects:
    """Return the pixels of all pictures of a folder."""
    from halofeed.prep.formats.picture import ReadOptions, read_image

    options = ReadOptions(channels=form["channels"], dtype="uint8" if form["bits"] == 8 else "uint16")
    found: Objects = {}
    for path in sorted(folder.iterdir()):
        found |= pixels_as_objects(path, read_image(path.read_bytes(), options).pixels)
    return found


def _with_imagecodecs(path: Path) -> NDArray[Any]:
    import imagecodecs

    data = path.read_bytes()
    decoded = imagecodecs.avif_decode(data) if path.suffix == ".avif" else imagecodecs.ljpeg_decode(data)
    return np.asarray(decoded)


def _with_ffmpeg(path: Path) -> NDArray[Any]:
    import av

    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
    deep = any(one.bits > 8 for one in frame.format.components)
    return np.asarray(frame.to_ndarray(format="rgb48le" if deep else "rgb24"))


def _with_jxl_plugin(path: Path) -> NDArray[Any]:
    import pillow_jxl  # noqa: F401 - registers the format

    with Image.open(path) as image:
        return np.asarray(image)


def _with_libjpeg(path: Path) -> NDArray[Any]:
    import libjpeg

    samples = np.asarray(libjpeg.decode(path.read_bytes()))
    if samples.ndim == 2:
        return samples
    # It returns YCbCr of 12 bits; the matrix is that of JFIF.
    bright, blue, red = np.moveaxis(samples.astype(np.float64) - (0, 2048, 2048), -1, 0)
    colors = (bright + 1.402 * red, bright - 0.344136 * blue - 0.714136 * red, bright + 1.772 * blue)
    return np.stack(colors, -1).round().clip(0, 4095).astype(np.int64)


def _with_pydicom(path: Path) -> NDArray[Any]:
    """Return pydicom's values by the modality LUT and the VOI LUT, whose range becomes 0 to 65535."""
    import pydicom
    from pydicom.pixels import apply_modality_lut, apply_voi_lut

    dataset = pydicom.dcmread(io.BytesIO(path.read_bytes()), force=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = apply_voi_lut(apply_modality_lut(dataset.pixel_array, dataset), dataset).astype(np.float64)
    low, high = 0.0, float((1 << dataset.BitsStored) - 1)
    if dataset.get("ModalityLUTSequence"):
        high = float((1 << dataset.ModalityLUTSequence[0].LUTDescriptor[2]) - 1)
    elif "RescaleSlope" in dataset:
        low, high = (float(end * dataset.RescaleSlope + dataset.RescaleIntercept) for end in (low, high))
    if dataset.get("VOILUTSequence"):
        low, high = 0.0, float((1 << dataset.VOILUTSequence[0].LUTDescriptor[2]) - 1)
    share = (values - low) / (high - low)
    is_inverted = dataset.PhotometricInterpretation == "MONOCHROME1"
    return np.asarray(np.rint((1 - share if is_inverted else share) * 65535))


DECODERS: dict[str, Callable[[Path], NDArray[Any]]] = {
    "imagecodecs": _with_imagecodecs,
    "av": _with_ffmpeg,
    "pillow_jxl": _with_jxl_plugin,
    "libjpeg": _with_libjpeg,
    "pydicom": _with_pydicom,
}
"""Decoders by the module that must be installed; none is the one that halofeed calls for these files."""


def read_pixels_with(module: str, folder: Path, form: Mapping[str, Any]) -> Objects:
    """Return the pixels of all pictures of a folder by another decoder."""
    found: Objects = {}
    for path in sorted(folder.iterdir()):
        pixels = DECODERS[module](path)
        # Some return the samples of the file, and others levels.
        if form.get("samples") and form["bits"] > 8:
            pixels = in_16_bits(pixels, form["bits"])
        found |= pixels_as_objects(path, pixels)
    return found


def picture_rows(data: Path, work: Path) -> Iterator[Row]:
    """Draw pictures in the newer formats and single DICOM pictures, and yield a row for each decoder."""
    import imagecodecs
    import pillow_heif

    y, x = np.mgrid[: _SIDES[0], : _SIDES[1]]
    y_64, x_64 = np.mgrid[:64, :64]
    smooth = np.stack([y * 10, x * 7, (x + y) * 4], -1).astype(np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, (*_SIDES, 3), np.uint8)
    deep = (smooth.astype(np.uint16) << 4) | 5
    gray_12, gray_8 = (np.ascontiguousarray(one[..., 0]) for one in (deep, noise))
    colors: dict[str, Any] = {"channels": 3, "bits": 8}

    def row(
        name: str,
        reader: str,
        form: Mapping[str, Any],
        files: Mapping[str, bytes | bytearray],
        within: float = 0,
    ) -> Row:
        folder = work / name.replace(" ", "_")
        folder.mkdir()
        for file, content in files.items():
            (folder / file).write_bytes(content)
        return name, {
            "folder": folder,
            "layout": "",
            "reader": reader,
            "form": dict(form),
            "pixels": True,
        } | ({"within": within} if within else {})

    def saved(pixels: NDArray[Any], **options: Any) -> bytes:
        Image.fromarray(pixels).save(stream := io.BytesIO(), "AVIF", **options)
        return stream.getvalue()

    avif = {
        "all.avif": saved(smooth, quality=100, subsampling="4:4:4"),
        "half.avif": saved(smooth, quality=80, subsampling="4:2:0"),
    }
    yield row("AVIF", "imagecodecs", colors, avif)
    yield row("AVIF by FFmpeg", "av", colors, {"all.avif": avif["all.avif"]}, 3)
    samples = imagecodecs.avif_encode(deep >> 2, bitspersample=10, level=100)
    yield row("AVIF of 10 bits", "av", {"channels": 3, "bits": 16}, {"a.avif": samples}, 3 * 64)

    # FFmpeg returns the coded picture, whose sides are multiples of 64.
    square = np.stack([y_64 * 4, x_64 * 4, (x_64 + y_64) * 2], -1).astype(np.uint8)
    heif = pillow_heif.from_pillow(Image.fromarray(square))
    heif.save(stream := io.BytesIO(), quality=-1, chroma=444)
    yield row("HEIC", "av", colors, {"a.heic": stream.getvalue()}, 3)

    jxl = {
        "all.jxl": imagecodecs.jpegxl_encode(noise, lossless=True),
        "gray.jxl": imagecodecs.jpegxl_encode(gray_8, lossless=True),
    }
    yield row("JPEG XL", "pillow_jxl", colors, {"all.jxl": jxl["all.jxl"]})
    yield row("JPEG XL gray", "pillow_jxl", {"channels": 1, "bits": 8}, {"gray.jxl": jxl["gray.jxl"]})
    lossy = imagecodecs.jpegxl_encode(smooth, level=90)
    yield row("JPEG XL lossy", "pillow_jxl", colors, {"a.jxl": lossy}, 1)

    gray: dict[str, Any] = {"channels": 1, "samples": True}
    twelve = imagecodecs.jpeg8_encode(gray_12, bitspersample=12, level=95)
    yield row("JPEG of 12 bits", "libjpeg", {**gray, "bits": 12}, {"a.jpg": twelve}, 17)
    lossless = {
        bits: imagecodecs.jpeg8_encode(gray_12 if bits == 12 else gray_8, lossless=True, bitspersample=bits)
        for bits in (8, 12)
    }
    for bits, content in lossless.items():
        for reader in ("libjpeg", "imagecodecs"):
            name = f"JPEG lossless {bits} bits {reader}"
            yield row(name, reader, {**gray, "bits": bits}, {"a.jpg": content})
    monkey = data / "odd/images/libjpeg-turbo__libjpeg-turbo/testimages/monkey12.jpg"
    if monkey.exists():
        form = {"channels": 3, "samples": True, "bits": 12}
        # The rounding of two inverse transforms, through the matrix of colors: 21 of 4096 samples at most.
        yield row("JPEG of 12 bits real", "libjpeg", form, {monkey.name: monkey.read_bytes()}, 21 * 16)
    yield row("DICOM pictures", "pydicom", {"channels": 1, "bits": 16}, _dicom_files())


def _dicom_files() -> dict[str, bytes]:
    """Return radiographs with a window, a rescale, a VOI LUT, and inverted ones."""
    from pydicom.uid import ComputedRadiographyImageStorage

    from tests.support.dicom_writer import file_bytes, image_dataset, item

    values = np.random.default_rng(3).integers(0, 4096, _SIDES).astype(np.uint16)
    values[0, :2] = 0, 4095
    table = np.minimum(np.arange(4096) ** 2 >> 12, 1023).astype("<u2")
    lut = item(LUTDescriptor=[4096, 0, 10], LUTData=table.tobytes())
    lut["LUTDescriptor"].VR, lut["LUTData"].VR = "US", "OW"
    inverted = {"PhotometricInterpretation": "MONOCHROME1"}
    window = {"WindowCenter": 1500, "WindowWidth": 1000}
    kinds: dict[str, tuple[tuple[float, float] | None, dict[str, Any]]] = {
        "plain": (None, {}),
        "window": (None, window),
        "rescaled": ((0.5, -100.0), {"WindowCenter": 600, "WindowWidth": 900}),
        "table": (None, {"VOILUTSequence": [lut]}),
        "inverted": (None, window | inverted),
    }
    return {
        f"{name}.dcm": file_bytes(
            image_dataset(
                values,
                position=None,
                orientation=None,
                modality="CR",
                rescale=rescale,
                bits_stored=12,
                more={"SOPClassUID": ComputedRadiographyImageStorage} | more,
            )
        )
        for name, (rescale, more) in kinds.items()
    }


# Records ------------------------------------------------------------------------------------------------------


def record_rows(work: Path) -> Iterator[Row]:
    """Write records of containers and lists, and yield a row for each."""
    from tests.support.croissant_sets import SETS

    for name, write in SETS.items():
        write(folder := work / f"croissant_{name}")
        case = {"folder": folder, "layout": "croissant", "reader": "mlcroissant", "form": "images"}
        yield f"Croissant, {name}", case | {"by_first_value": True}
    yield "TFDS, ArrayRecord", _array_records(work / "array_records")
    yield "MONAI's list, folds", _monai_list(work / "monai")


def _array_records(folder: Path) -> dict[str, Any]:
    """Write a set as TFDS does; the classes are stated by the first value of each picture."""
    from array_record.python.array_record_module import ArrayRecordWriter

    from halofeed.schemas.tfexample import encode_example

    folder.mkdir()
    names = ["zebra", "ant"]
    features = {"image": {"image": {}}, "label": {"classLabel": {"numClasses": "2"}}}
    (folder / "features.json").write_text(json.dumps({"featuresDict": {"features": features}}))
    (folder / "label.labels.txt").write_text("\n".join(names) + "\n")
    described = {"name": "cards", "splits": [{"name": "train"}]}
    (folder / "dataset_info.json").write_text(json.dumps(described))
    writer = ArrayRecordWriter(str(folder / "cards-train.array_record-00000-of-00001"), "group_size:1")
    for number in range(4):
        Image.new("RGB", (10, 8 + number), (9 * number,) * 3).save(stream := io.BytesIO(), "PNG")
        example = encode_example({"image": stream.getvalue(), "label": np.array([number % 2])})
        writer.write(b"".join(bytes(chunk) for chunk in example.chunks))
    writer.close()
    form = {str(9 * number): [[names[number % 2]]] for number in range(4)}
    return {"folder": folder, "layout": "tfrecord", "reader": "stated", "form": form, "by_first_value": True}


def _monai_list(folder: Path) -> dict[str, Any]:
    """Write a list with channels and folds, and a case without a label."""
    import nibabel

    names = [f"{case}_{part}.nii.gz" for case in "abcz" for part in ("t1", "t2", "seg")]
    folder.mkdir()
    for name in names:
        voxels = np.zeros((4, 5, 6), np.uint8 if "seg" in name else np.int16)
        nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), folder / name)
    training = [
        {"image": [f"{case}_t1.nii.gz", f"{case}_t2.nii.gz"], "label": f"{case}_seg.nii.gz", "fold": fold}
        for fold, case in enumerate("abc")
    ]
    testing = [{"image": ["z_t1.nii.gz", "z_t2.nii.gz"]}]
    labels = {"0": "background", "1": "tumor"}
    document = {"labels": labels, "training": training, "testing": testing}
    (folder / "folds.json").write_text(json.dumps(document))
    (folder / "z_seg.nii.gz").unlink()
    return {"folder": folder, "layout": "monai", "reader": "monai", "form": "folds.json", "is_list": True}


def read_with_croissant(record_set: str, folder: Path) -> Objects:
    """Return the class of each record of a record set, by the first value of its picture."""
    import mlcroissant

    (path,) = folder.glob("*.json")
    found: Objects = {}
    for record in mlcroissant.Dataset(str(path)).records(record_set):
        first = int(np.asarray(record[f"{record_set}/image"]).ravel()[0])
        found[str(first)] = [[record[f"{record_set}/label"].decode()]]
    return found


def read_with_monai(file: str, folder: Path) -> Objects:
    """Return the fold, the channels and the label of each entry of a list, by its first channel."""
    from monai.data import load_decathlon_datalist

    found: Objects = {}
    for key, split in (("training", ""), ("testing", "test")):
        for entry in load_decathlon_datalist(str(folder / file), True, key, str(folder)):
            images = [Path(one).name for one in entry["image"]]
            label = Path(entry["label"]).name if "label" in entry else "None"
            found[images[0]] = [[f"{split or 'fold' + str(entry['fold'])} {' '.join(images)} {label}"]]
    return found


def read_list_with_halofeed(layout: str, folder: Path) -> Objects:
    """Return what `read_with_monai` gives, as a layout of volumes reads it."""
    from halofeed.prep.layouts import LayoutOptions, find_layout
    from halofeed.prep.sources.files import LocalFiles

    files = LocalFiles(folder)
    listed = find_layout(layout).list_references(files, files, None, LayoutOptions(task="segmentation"))
    return {
        one.source: [[f"{one.split} {' '.join([one.source, *one.channels])} {one.mask}"]]
        for one in listed
        if one.problem is None
    }
