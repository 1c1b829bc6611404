"""Compare libraries with our own readers and resampling: time, memory, and behavior on damaged files.

    python -m benchmarks.library_trials            # SimpleITK, SciPy, nibabel, highdicom, tifffile, imagecodecs

Each case runs in a process of its own, one thread; the least processor time of five, and the most memory beside the
arrays that go in. What is not installed is left out. docs/decisions.md has the figures and what follows from them.
"""

from __future__ import annotations

import argparse
import gzip
import io
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

ROUNDS = 5
SHAPE = (100, 512, 512)
SPACING = (2.5, 0.8, 0.8)


def scan() -> Any:
    """A body with smooth organs and noise, int16 [depth, height, width]."""
    generator = np.random.default_rng(1)
    coarse = generator.normal(0, 200, (13, 64, 64)).astype(np.float32)
    planes = np.stack([cv2.resize(plane, SHAPE[:0:-1], interpolation=cv2.INTER_CUBIC) for plane in coarse])
    volume = planes[np.minimum(np.arange(SHAPE[0]) // 8, 12)]
    return (volume + generator.normal(0, 20, SHAPE).astype(np.float32)).astype(np.int16)


def memory(name: str) -> float:
    """A figure of this process's memory in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def measured(prepare: Callable[[], Callable[[], Any]], rounds: int = ROUNDS) -> tuple[float, float, str]:
    """Seconds of a processor, MiB beside what was there, and what went wrong."""
    cv2.setNumThreads(1)
    work = prepare()
    Path("/proc/self/clear_refs").write_text("5")  # the highest use of memory starts over
    before = memory("VmRSS")
    best = float("inf")
    try:
        for _ in range(rounds):
            start = time.process_time()
            work()
            best = min(best, time.process_time() - start)
    except Exception as error:
        return best, 0.0, f"{type(error).__name__}: {error}"[:70]
    return best, memory("VmHWM") - before, ""


def _answer(case: str, rounds: int, sender: Any) -> None:
    try:
        sender.send(measured(CASES[case], rounds))
    except ImportError as error:
        sender.send((0.0, 0.0, f"not installed: {error.name}"))


def run(case: str, rounds: int) -> str:
    """A line of the table; a case that ends its process says so."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_answer, args=(case, rounds, sender))
    process.start()
    sender.close()
    try:
        seconds, mebibytes, wrong = receiver.recv()
    except EOFError:
        seconds, mebibytes, wrong = 0.0, 0.0, "the process ended"
    process.join()
    said = wrong if wrong else f"{seconds:8.3f} s {mebibytes:8.0f} MiB"
    return f"{case:<52} {said}"


# Resampling ----------------------------------------------------------------------------------------------


def _grid() -> Any:
    from halofeed.prep.geometry.scan import Grid

    return Grid(
        shape=SHAPE, affine=np.array([[0, 0, 0.8, 0], [0, 0.8, 0, 0], [2.5, 0, 0, 0], [0, 0, 0, 1.0]])
    )


def ours(spacing: tuple[float, float, float], kernel: str, *, antialias: bool) -> Callable[[], Any]:
    """Our resampling."""
    from halofeed.prep.geometry.volume_plan import plan_resample
    from halofeed.prep.voxels.resample import apply_image

    volume = scan()
    plan = plan_resample(_grid(), spacing, image_kernel=kernel, antialias=antialias, slice_wise="never")
    return lambda: apply_image(plan, volume, -1024)


def _itk(volume: Any) -> Any:
    import SimpleITK

    SimpleITK.ProcessObject.SetGlobalDefaultNumberOfThreads(1)
    image: Any = SimpleITK.GetImageFromArray(volume)
    image.SetSpacing(SPACING[::-1])
    return SimpleITK, image


def simpleitk(
    spacing: tuple[float, float, float], kernel: str, *, antialias: bool, mask: bool = False
) -> Callable[[], Any]:
    """Its Resample filter; what shrinks is smoothed by its recursive Gaussian first."""
    sitk, image = _itk(labels() if mask else scan())
    size = [round(n * a / b) for n, a, b in zip(SHAPE[::-1], SPACING[::-1], spacing[::-1], strict=True)]
    ratios = [b / a for a, b in zip(SPACING[::-1], spacing[::-1], strict=True)]

    def work() -> Any:
        source = image
        for axis, ratio in enumerate(ratios):
            if antialias and ratio > 1.01:
                smooth = sitk.RecursiveGaussianImageFilter()
                smooth.SetDirection(axis)
                smooth.SetSigma(0.5 * ratio * SPACING[::-1][axis])
                source = smooth.Execute(source)
        done = sitk.Resample(
            *(source, size, sitk.Transform(), getattr(sitk, f"sitk{kernel}"), image.GetOrigin()),
            *(spacing[::-1], image.GetDirection(), -1024 if not mask else 0, image.GetPixelID()),
        )
        return sitk.GetArrayFromImage(done)

    return work


def scipy(spacing: tuple[float, float, float], order: int, *, antialias: bool) -> Callable[[], Any]:
    """ndimage.zoom; what shrinks is smoothed by its Gaussian first."""
    from scipy import ndimage

    volume = scan()
    ratios = [b / a for a, b in zip(SPACING, spacing, strict=True)]

    def work() -> Any:
        source = volume.astype(np.float32)
        if antialias and max(ratios) > 1.01:
            sigmas = [0.5 * ratio if ratio > 1.01 else 0 for ratio in ratios]
            source = ndimage.gaussian_filter(source, sigmas, truncate=3)
        zoomed = ndimage.zoom(
            source, [1 / ratio for ratio in ratios], order=order, grid_mode=True, mode="nearest"
        )
        return np.rint(zoomed).astype(np.int16)

    return work


def labels() -> Any:
    """12 classes, smooth, uint8."""
    planes = scan()[::8]
    smooth = np.stack([cv2.blur(plane.astype(np.float32), (31, 31)) for plane in planes])
    return np.clip((smooth + 300) // 50, 0, 12).astype(np.uint8)[np.minimum(np.arange(SHAPE[0]) // 8, 12)]


def our_mask(spacing: tuple[float, float, float], kernel: str) -> Callable[[], Any]:
    """Our resampling of classes."""
    from halofeed.prep.geometry.volume_plan import plan_resample
    from halofeed.prep.voxels.resample import apply_mask

    mask = labels()
    plan = plan_resample(_grid(), spacing, mask_kernel=kernel, slice_wise="never")
    return lambda: apply_mask(plan, mask)


# NIfTI ---------------------------------------------------------------------------------------------------


def nifti(dtype: str, slope: float, damage: str = "") -> bytes:
    """A .nii.gz as nibabel writes it, or damaged so."""
    import nibabel

    volume = scan().astype(dtype)
    image = nibabel.Nifti1Image(volume.T, np.diag([0.8, 0.8, 2.5, 1.0]))
    image.header.set_slope_inter(slope, 0 if slope == 1 else -1024)
    stream = io.BytesIO()
    image.to_file_map(
        {"image": nibabel.FileHolder(fileobj=stream), "header": nibabel.FileHolder(fileobj=stream)}
    )
    data = bytearray(stream.getvalue())
    if damage == "claims 8e9 voxels":
        data[40:48] = np.array([3, 2000, 2000, 2000], "<i2").tobytes()
        data = data[:10_000]
    return gzip.compress(bytes(data), 1)


def nifti_ours(dtype: str, slope: float, damage: str = "") -> Callable[[], Any]:
    """Our reader."""
    from halofeed.prep.formats.volume_formats import open_scan
    from halofeed.prep.sources.files import LocalFiles

    folder = tempfile.mkdtemp()
    (Path(folder) / "a.nii.gz").write_bytes(nifti(dtype, slope, damage))
    return lambda: open_scan(LocalFiles(folder), "a.nii.gz").read()


def nifti_nibabel(dtype: str, slope: float, damage: str = "", how: str = "fdata") -> Callable[[], Any]:
    """Nibabel over isal's stream of the bytes."""
    import nibabel
    from isal import igzip

    data = nifti(dtype, slope, damage)

    def work() -> Any:
        stream = igzip.GzipFile(fileobj=io.BytesIO(data))
        image = nibabel.Nifti1Image.from_stream(stream)
        if how == "unscaled":
            return np.asarray(image.dataobj.get_unscaled())
        return image.get_fdata(dtype=np.float32) if how == "fdata" else np.asarray(image.dataobj)

    return work


# SEG -----------------------------------------------------------------------------------------------------


def seg(folder: Path, damage: str = "") -> str:
    """A series of 60 slices of 512 x 512 with a binary SEG of five segments beside it; or one that claims too much."""
    import pydicom

    from tests.prep.formats.test_dicom_mask_writers import write_scan, write_segmentation

    write_scan(folder, shape=(60, 512, 512))
    pixels = (labels()[:60] // 2 % 6).astype(np.uint8)
    write_segmentation(folder, pixels, "BINARY", 5)
    path = folder / "seg.dcm"
    if damage:
        dataset = pydicom.dcmread(path)
        dataset.Rows = dataset.Columns = 60_000
        dataset.PixelData = bytes(1 << 20)
        dataset.save_as(path)
    return str(path)


def seg_ours(damage: str = "") -> Callable[[], Any]:
    """Our reader, onto the scan's grid."""
    from halofeed.prep.formats.dicom.mask_files import open_dicom_mask
    from halofeed.prep.formats.dicom.series import open_series
    from halofeed.prep.sources.files import LocalFiles

    folder = Path(tempfile.mkdtemp())
    seg(folder, damage)
    files = LocalFiles(folder)
    grid = open_series(files, tuple(name for name in files.sizes() if name != "seg.dcm")).grid
    return lambda: open_dicom_mask(files, "seg.dcm", grid).read()


def seg_highdicom(damage: str = "") -> Callable[[], Any]:
    """Its reader, onto the segmentation's own grid."""
    import highdicom

    path = seg(Path(tempfile.mkdtemp()), damage)
    return lambda: (
        highdicom.seg.segread(path).get_volume(combine_segments=True, skip_overlap_checks=False).array
    )


# TIFF ----------------------------------------------------------------------------------------------------


def tiff(kind: str) -> bytes:
    """A picture of 6 megapixels, as Pillow writes it so; "claims": 100 bytes that claim 3.6 gigapixels."""
    from PIL import Image

    gray = cv2.resize(scan()[50], (3000, 2000), interpolation=cv2.INTER_CUBIC)
    color = np.stack([np.clip(gray // 4 + 128 + shift, 0, 255).astype(np.uint8) for shift in (0, 9, 30)], -1)
    deep = kind.startswith("16 bit")
    image = Image.fromarray((gray.astype(np.int32) + 32768).astype(np.uint16) if deep else color)
    stream = io.BytesIO()
    names = {"lzw": "tiff_lzw", "deflate": "tiff_adobe_deflate", "jpeg": "jpeg"}
    image.save(stream, "TIFF", compression=names.get(kind.rpartition(" ")[2]))
    data = bytearray(stream.getvalue())
    if kind.startswith("claims"):
        import struct

        at = struct.unpack_from("<I", data, 4)[0]
        for place in range(at + 2, at + 2 + 12 * struct.unpack_from("<H", data, at)[0], 12):
            if struct.unpack_from("<H", data, place)[0] in (256, 257, 278):
                struct.pack_into("<HII", data, place + 2, 4, 1, 60_000)
    return bytes(data)


def tiff_ours(kind: str) -> Callable[[], Any]:
    """Our reader: Pillow's libtiff behind our own directory."""
    from halofeed.prep.formats.picture import ReadOptions, read_image

    data = tiff(kind)
    deep = kind.startswith("16 bit")
    options = ReadOptions(channels=1 if deep else 3, dtype="uint16" if deep else "uint8")
    return lambda: read_image(data, options)


def tiff_tifffile(kind: str) -> Callable[[], Any]:
    """Its reader of the first page."""
    import tifffile

    data = tiff(kind)
    return lambda: tifffile.imread(io.BytesIO(data), key=0)


def tiff_imagecodecs(kind: str) -> Callable[[], Any]:
    """Libtiff as imagecodecs wraps it."""
    import imagecodecs

    data = tiff(kind)
    return lambda: imagecodecs.tiff_decode(data, index=0)


COARSER, FINER = (4.0, 1.5, 1.5), (2.0, 0.6, 0.6)
TIFFS = ("plain", "lzw", "deflate", "jpeg", "16 bit lzw", "claims lzw")
CASES: Mapping[str, Callable[[], Callable[[], Any]]] = {
    "resample finer linear, here": lambda: ours(FINER, "linear", antialias=True),
    "resample finer linear, SimpleITK": lambda: simpleitk(FINER, "Linear", antialias=True),
    "resample finer linear, SciPy": lambda: scipy(FINER, 1, antialias=True),
    "resample finer cubic, here": lambda: ours(FINER, "cubic", antialias=True),
    "resample finer cubic, SimpleITK": lambda: simpleitk(FINER, "BSpline3", antialias=True),
    "resample finer cubic, SciPy": lambda: scipy(FINER, 3, antialias=True),
    "resample coarser linear, here": lambda: ours(COARSER, "linear", antialias=True),
    "resample coarser linear, SimpleITK": lambda: simpleitk(COARSER, "Linear", antialias=True),
    "resample coarser linear, SciPy": lambda: scipy(COARSER, 1, antialias=True),
    "resample coarser unsmoothed, here": lambda: ours(COARSER, "linear", antialias=False),
    "resample coarser unsmoothed, SimpleITK": lambda: simpleitk(COARSER, "Linear", antialias=False),
    "mask nearest, here": lambda: our_mask(COARSER, "nearest"),
    "mask nearest, SimpleITK": lambda: simpleitk(COARSER, "NearestNeighbor", antialias=False, mask=True),
    "mask by weight, here": lambda: our_mask(COARSER, "onehot-linear"),
    "mask by weight, SimpleITK": lambda: simpleitk(COARSER, "LabelLinear", antialias=False, mask=True),
    "nifti int16, here": lambda: nifti_ours("int16", 1.0),
    "nifti int16, nibabel get_fdata float32": lambda: nifti_nibabel("int16", 1.0),
    "nifti int16, nibabel dataobj": lambda: nifti_nibabel("int16", 1.0, how="dataobj"),
    "nifti int16 slope 2, here": lambda: nifti_ours("int16", 2.0),
    "nifti int16 slope 2, nibabel dataobj": lambda: nifti_nibabel("int16", 2.0, how="dataobj"),
    "nifti int16 slope 2, nibabel unscaled": lambda: nifti_nibabel("int16", 2.0, how="unscaled"),
    "nifti claims 8e9 voxels, here": lambda: nifti_ours("int16", 1.0, "claims 8e9 voxels"),
    "nifti claims 8e9 voxels, nibabel": lambda: nifti_nibabel("int16", 1.0, "claims 8e9 voxels"),
    "seg, here": seg_ours,
    "seg, highdicom": seg_highdicom,
    "seg claims 2e11 voxels, here": lambda: seg_ours("claims"),
    "seg claims 2e11 voxels, highdicom": lambda: seg_highdicom("claims"),
    **{
        f"tiff {kind}, {name}": partial(read, kind)
        for kind in TIFFS
        for name, read in (
            ("here", tiff_ours),
            ("tifffile", tiff_tifffile),
            ("imagecodecs", tiff_imagecodecs),
        )
    },
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("only", nargs="?", default="", help="cases whose name begins so")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    for case in CASES:
        if case.startswith(given.only):
            print(run(case, given.rounds), flush=True)


if __name__ == "__main__":
    main()
