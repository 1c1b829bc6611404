"""Reader of MINC volumes (.mnc): version 1 is a NetCDF file (CDF-1, CDF-2), version 2 an HDF5 file.

    value = image-min + (stored - valid minimum) / (valid maximum - valid minimum) * (image-max - image-min)

Each slice can have its own image-min and image-max. Then the voxels are rescaled slice by slice to float64, so that
labels stay within the tolerance for integers. Floating-point voxels are not rescaled.

Of a NetCDF file, only the header is parsed; a variable's values are a view of the file's bytes. nibabel's reader would
copy the file (it maps files with a descriptor only), accepts negative offsets, which read from the end of the file, and
calls a truncated file "cannot reshape array":

    magic, record count | dimensions | global attributes | variables with their attributes, type and offset | values

Sources: https://en.wikibooks.org/wiki/MINC/SoftwareDevelopment/MINC2.0_File_Format_Reference, nibabel's readers, and
https://docs.unidata.ucar.edu/netcdf-c/current/file_format_specifications.html
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume.streams import COPY_AGAIN, GZIP_MAGIC, PieceStream, open_stream
from halofeed.prep.formats.volume.volume_file import VolumeFile, volume_file
from halofeed.prep.formats.volume.volume_header import (
    Content,
    PlacedAffine,
    StoredVoxels,
    check_voxel_count,
    damaged_header,
    quote,
    unit_scale,
    unsupported_type,
    wrong_format,
)
from halofeed.prep.geometry.scan import Finding, affine_matrix
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.findings import FindingName
from halofeed.system.errors import SourceError

HDF5_MAGIC: Final = b"\x89HDF\r\n\x1a\n"
SPACE: Final = {"xspace": (1.0, 0.0, 0.0), "yspace": (0.0, 1.0, 0.0), "zspace": (0.0, 0.0, 1.0)}
"""The axes of space, each with its default direction: to the right, anterior and superior."""
UNIT_TOLERANCE = 1e-3
"""Largest deviation of a direction's length from 1."""
_IMAGE, _AXES = "minc-2.0/image/0/", "minc-2.0/dimensions/"
_HDF5_ERRORS = (OSError, KeyError, RuntimeError, ValueError, TypeError, AttributeError, OverflowError)
"""Errors of h5py for damaged bytes; OverflowError for an address that a Python file cannot seek."""

Attributes = Mapping[str, Any]
ReadPlanes = Callable[[bytes], Iterator[NDArray[Any]]]


@dataclass(frozen=True, kw_only=True)
class MincImage:
    """Header of a MINC file.

    Args:
        dimensions: names of the image's axes, the slowest first.
        shape: lengths of the axes.
        dtype: dtype of a stored value.
        attributes: attributes of the image.
        limits: image-min and image-max: names of the axes and values of each; empty if absent.
        axes: attributes of each axis.
        planes: function that returns the stored parts along the slowest axis, of any thickness.
        working_bytes: memory that `planes` takes besides the file.
    """

    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    attributes: Attributes
    limits: Mapping[str, tuple[tuple[str, ...], NDArray[np.float64]]]
    axes: Mapping[str, Attributes]
    planes: ReadPlanes
    working_bytes: int


def open_minc(files: SourceFiles, path: str, options: ScanOptions) -> VolumeFile:
    """Open a file by its header. The axes of space keep the file's order; times or vectors become channels.

    Raises:
        SourceError: the file has another format, an unsupported type or irregular slices, or is damaged or too large.
    """
    data = _unpacked(files.read(path), options)
    image = _open_image(data)
    # HDF5 also has types of texts, references and records.
    if image.dtype.kind not in "iuf" or image.dtype.itemsize > 8:
        raise unsupported_type(f"{image.dtype}"[:100])
    spatial, channels, interleaved = _axes_of_space(image)
    shape = tuple(image.shape[image.dimensions.index(one)] for one in spatial)
    check_voxel_count(shape, channels, options.max_voxels)
    rescale = _rescale(image)
    # With one slope for all slices, integers stay integers; with several, values are rescaled as they are read.
    dtype = image.dtype if rescale.is_uniform else np.dtype("<f8")
    stored = StoredVoxels(
        shape=(shape[0], shape[1], shape[2]),
        channels=channels,
        interleaved=interleaved,
        dtype=dtype,
        offset=0,
        slope=float(rescale.slopes.flat[0]) if rescale.is_uniform else 1.0,
        inter=float(rescale.inters.flat[0]) if rescale.is_uniform else 0.0,
        step=0.0 if rescale.is_uniform or image.dtype.kind == "f" else float(np.abs(rescale.slopes).max()),
    )
    plane_bytes = 3 * 8 * math.prod(image.shape[1:])
    content = Content(
        data=data,
        unpack=lambda data, _: PieceStream(_pieces(image.planes(data), rescale, dtype), stored.voxel_bytes),
        working_bytes=image.working_bytes + plane_bytes,
    )
    return volume_file(stored, _affine(image, spatial), content, (path,))


def _open_image(data: bytes) -> MincImage:
    """Return the header of a file of either version."""
    if data.startswith(NETCDF_MAGIC):
        return _open_version_1(data)
    if data.startswith(HDF5_MAGIC):
        with _open_hdf5(data) as file:
            return _open_version_2(file)
    raise wrong_format("a MINC volume", data)


@dataclass(frozen=True, kw_only=True)
class _Rescale:
    """Slope and intercept of each slice, arrays over the image's first axes, and the range of valid stored values.

    The arrays have no axis if all slices share the values; the range is None for floating-point voxels.
    """

    slopes: NDArray[np.float64]
    inters: NDArray[np.float64]
    valid: tuple[float, float] | None

    @property
    def is_uniform(self) -> bool:
        return bool((self.slopes == self.slopes.flat[0]).all() and (self.inters == self.inters.flat[0]).all())

    def of_plane(self, number: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the slopes and intercepts of a part along the first axis."""
        if not self.slopes.ndim:
            return self.slopes, self.inters
        return np.asarray(self.slopes[number]), np.asarray(self.inters[number])


def _pieces(parts: Iterator[NDArray[Any]], rescale: _Rescale, dtype: np.dtype[Any]) -> Iterator[bytes]:
    """Yield the voxels of each plane, rescaled if the planes have different slopes."""
    for number, plane in enumerate(plane for part in parts for plane in part):
        _check_range(plane, rescale.valid)
        # With one slope, `StoredVoxels` rescales, and integers stay integers.
        if not rescale.is_uniform:
            slope, inter = (
                one.reshape(one.shape + (1,) * (plane.ndim - one.ndim)) for one in rescale.of_plane(number)
            )
            plane = plane * slope + inter
        yield np.ascontiguousarray(plane, dtype).tobytes()


def _unpacked(data: bytes, options: ScanOptions) -> bytes:
    """Return the bytes of a file, unpacked if they are gzip, whose last four bytes tell their number."""
    # MINC 1 files are often kept as .mnc.gz; HDF5 and the NetCDF offsets need the unpacked bytes.
    if not data.startswith(GZIP_MAGIC):
        return data
    size = int.from_bytes(data[-4:], "little")
    options.reserve(len(data) + size)
    # The size is that of the last member modulo 2**32 (RFC 1952, 2.3.1), so it is checked before and after unpacking.
    if size > (stream := open_stream(data)).max_bytes:
        raise SourceError("decode", "gzip data is damaged", f"it cannot hold the {size} bytes that it claims")
    unpacked = bytearray(size)
    if stream.read_into(memoryview(unpacked)) < size or stream.read_into(memoryview(bytearray(1))):
        raise SourceError(
            "decode", "gzip data is damaged", f"it does not hold the {size} bytes that it claims"
        )
    return bytes(unpacked)


def _open_version_1(data: bytes) -> MincImage:
    """Return the header of a NetCDF file."""
    variables = read_netcdf_header(data)
    if (image := variables.get("image")) is None:
        raise SourceError("decode", "not a MINC volume", "a NetCDF file without a variable 'image'")
    dtype, sign = image.dtype, _text(image.attributes.get("signtype", ""))
    # NetCDF has signed types only; MINC 1 states the sign, whose default is unsigned for bytes.
    if dtype.kind == "i" and sign.startswith("unsigned") | (dtype.itemsize == 1 and not sign):
        dtype = np.dtype(dtype.str.replace("i", "u"))
    stored = NetcdfVariable(
        dimensions=image.dimensions,
        shape=image.shape,
        attributes=image.attributes,
        dtype=dtype,
        offset=image.offset,
    )
    stored.values(data)  # refuses a truncated file
    limits = {
        name: (one.dimensions, np.array(one.values(data), np.float64))
        for name in ("image-min", "image-max")
        if (one := variables.get(name)) is not None
    }
    return MincImage(
        dimensions=stored.dimensions,
        shape=stored.shape,
        dtype=dtype,
        attributes=stored.attributes,
        limits=limits,
        axes={name: variables[name].attributes for name in stored.dimensions if name in variables},
        planes=lambda data: iter((stored.values(data),)),
        working_bytes=0,
    )


@contextmanager
def _open_hdf5(data: bytes) -> Iterator[Any]:
    """Open an HDF5 file in memory; its errors become SourceErrors."""
    import h5py

    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            yield file
    except _HDF5_ERRORS as error:
        raise SourceError("decode", "HDF5 file is damaged", f"{error}"[:200]) from error


def _dataset(file: Any, path: str) -> Any:
    """Return a data set of the file itself; None if it is absent.

    Raises:
        SourceError: the path is a link to another file, or the values are in another file.
    """
    import h5py

    for end in (at for at, letter in enumerate(f"{path}/") if letter == "/"):
        link = file.get(path[:end], getlink=True)
        # An absent part of a path; the caller says whether it is needed.
        if link is None:
            return None
        # HDF5 would open any file of the machine that a link names.
        if not isinstance(link, h5py.HardLink):
            raise SourceError("decode", "not a MINC volume", f"{path[:end]} is a link")
    found = file[path]
    if not isinstance(found, h5py.Dataset):
        raise SourceError("decode", "not a MINC volume", f"{path} is not a data set")
    # HDF5 would read any file of the machine that the data set names.
    if found.is_virtual or found.external:
        raise SourceError("decode", "not a MINC volume", f"the values of {path} lie in another file")
    return found


def _open_version_2(file: Any) -> MincImage:
    """Return the header of an HDF5 file."""
    if (image := _dataset(file, f"{_IMAGE}image")) is None:
        raise SourceError("decode", "not a MINC volume", f"an HDF5 file without a data set {_IMAGE}image")
    dimensions = _names(image.attrs.get("dimorder", ""))
    _check_hdf5_image(image, dimensions)
    limits = {
        name: (_names(one.attrs.get("dimorder", ""))[: one.ndim], np.array(one[()], np.float64))
        for name in ("image-min", "image-max")
        if (one := _dataset(file, _IMAGE + name)) is not None and one.size <= image.size
    }
    axes = {name: _dataset(file, _AXES + name) for name in dimensions}
    thickness = image.chunks[0] if image.chunks else 1
    return MincImage(
        dimensions=dimensions,
        shape=image.shape,
        dtype=image.dtype,
        attributes=dict(image.attrs),
        limits=limits,
        axes={name: dict(axis.attrs) for name, axis in axes.items() if axis is not None},
        planes=lambda data: _hdf5_planes(data, thickness),
        working_bytes=2 * thickness * math.prod(image.shape[1:]) * image.dtype.itemsize,
    )


def _check_hdf5_image(image: Any, dimensions: tuple[str, ...]) -> None:
    if len(dimensions) != image.ndim:
        raise damaged_header(f"dimorder names {len(dimensions)} axes, the image has {image.ndim}")
    # HDF5 allocates a whole chunk, so that a small file could ask for any memory.
    if image.chunks and any(one > whole for one, whole in zip(image.chunks, image.shape, strict=True)):
        raise damaged_header(f"chunks of {image.chunks} in an image of {image.shape}")
    # HDF5 returns zeros for values that were never written.
    if not image.id.get_storage_size():
        raise SourceError("decode", "voxels are missing", "the image was never written")


def _hdf5_planes(data: bytes, thickness: int) -> Iterator[NDArray[Any]]:
    """Yield the stored values; every chunk is decompressed once."""
    with _open_hdf5(data) as file:
        image = _dataset(file, f"{_IMAGE}image")
        for start in range(0, len(image), thickness):
            yield image[start : start + thickness]


def _axes_of_space(image: MincImage) -> tuple[tuple[str, ...], int, bool]:
    """Return the axes of space in the file's order, the number of channels, and whether these are adjacent.

    Raises:
        SourceError: the image has other axes than three of space, and a first one of time or a last one of vectors.
    """
    spatial = tuple(name for name in image.dimensions if name in SPACE)
    rest = image.dimensions
    channels, interleaved = 1, False
    # `planes` yields parts of the slowest axis, so channels have to be the first or the last axis.
    if rest[:1] == ("time",):
        channels, rest = image.shape[0], rest[1:]
    elif rest[-1:] == ("vector_dimension",):
        channels, interleaved, rest = image.shape[-1], True, rest[:-1]
    if rest != spatial or len(set(spatial)) != 3:
        detail = (
            f"axes {quote(', '.join(image.dimensions))}; expected xspace, yspace and zspace in any order, and at most "
            "time before them or vector_dimension after them; store one volume per file"
        )
        raise SourceError("decode", "not three axes of space", detail)
    return spatial, channels, interleaved


def _rescale(image: MincImage) -> _Rescale:
    """Return how stored values are rescaled.

    Raises:
        SourceError: the range of valid values, or image-min and image-max, are missing or impossible.
    """
    if image.dtype.kind == "f":  # the format does not rescale them
        return _Rescale(slopes=np.ones(()), inters=np.zeros(()), valid=None)
    low, high = _valid_range(image)
    if len(image.limits) < 2:
        raise damaged_header("image-min or image-max is missing, which say what the stored values mean")
    (axes, least), (others, most) = image.limits["image-min"], image.limits["image-max"]
    # A limit per slice is an array over the first axes of the image; planes are rescaled by it one after another.
    if axes != others or least.shape != most.shape or least.shape != image.shape[: least.ndim]:
        raise damaged_header(f"image-min has the shape {least.shape}, image-max {most.shape}")
    if axes != image.dimensions[: least.ndim] or least.ndim >= len(image.dimensions):
        raise damaged_header(
            f"image-min has the axes {quote(', '.join(axes))}, which are not the image's first"
        )
    if not (np.isfinite(least).all() and np.isfinite(most).all()):
        raise damaged_header("image-min or image-max is not finite")
    slopes = (most - least) / (high - low)
    return _Rescale(slopes=slopes, inters=least - low * slopes, valid=(low, high))


def _valid_range(image: MincImage) -> tuple[float, float]:
    """Return the valid stored values: `valid_range`, else `valid_min` and `valid_max`, else all of the type."""
    info = np.iinfo(image.dtype)
    stated = image.attributes.get("valid_range")
    if stated is None:
        stated = [image.attributes.get("valid_min", info.min), image.attributes.get("valid_max", info.max)]
    low, high = _numbers("valid_range", [float(np.squeeze(end)) for end in stated], 2)
    if not info.min <= low < high <= info.max:
        raise damaged_header(f"valid_range {low:g} to {high:g} of {image.dtype.name}")
    return float(low), float(high)


def _check_range(plane: NDArray[Any], valid: tuple[float, float] | None) -> None:
    """Refuse stored values outside of the valid range, to which the format gives no meaning."""
    # Floats are stored as they are and have no valid range.
    if valid is None or (plane.min() >= valid[0] and plane.max() <= valid[1]):
        return
    detail = (
        f"{plane.min()} to {plane.max()}, valid are {valid[0]:g} to {valid[1]:g}; nibabel takes the nearest valid "
        "value: nibabel.save(nibabel.Nifti1Image(image.get_fdata(), image.affine), 'scan.nii')"
    )
    raise SourceError("decode", "voxels outside of the valid range", detail)


def _affine(image: MincImage, spatial: tuple[str, ...]) -> PlacedAffine:
    """Return the affine from voxel (i, j, k) to millimeters (right, anterior, superior), and findings about it.

    Raises:
        SourceError: an axis is irregular or damaged.
    """
    steps, origin, missing = [], np.zeros(3), []
    for name in reversed(spatial):
        axis = image.axes.get(name, {})
        if _text(axis.get("spacing", "regular")).startswith("irregular"):
            detail = f"{name} has irregular distances; store it on a regular grid first, as mincresample does"
            raise SourceError("decode", "slices lie at irregular distances", detail)
        # The defaults are used, with a finding, because a voxel size of 1 mm is rarely true.
        if "step" not in axis or "start" not in axis:
            missing.append(name)
        (step,) = _numbers(f"step of {name}", axis.get("step", 1.0), 1)
        (start,) = _numbers(f"start of {name}", axis.get("start", 0.0), 1)
        direction = _numbers(f"direction_cosines of {name}", axis.get("direction_cosines", SPACE[name]), 3)
        # A direction of another length would change the voxel size, which `step` states.
        if abs(np.linalg.norm(direction) - 1) > UNIT_TOLERANCE:
            raise damaged_header(f"direction_cosines of {name}: expected a length of 1, got {direction}")
        steps.append(direction * step)
        origin += direction * start
    scale, findings = unit_scale([_text(image.axes.get(name, {}).get("units", "")) for name in spatial])
    affine = affine_matrix(np.stack(steps), origin)
    affine[:3] *= scale
    if missing:
        detail = f"step or start of {', '.join(missing)}: 1 mm and 0, the defaults of the format"
        findings += (Finding.noted(FindingName.NO_VOXEL_SIZE, detail),)
    return affine, findings


def _numbers(name: str, written: object, count: int) -> NDArray[np.float64]:
    """Return the numbers of an attribute; raise SourceError for other values."""
    try:
        values = np.asarray(written, np.float64).reshape(-1)
    except (ValueError, TypeError):
        values = np.empty(0)
    if len(values) != count or not np.isfinite(values).all():
        raise damaged_header(f"{name}: expected {count} numbers, got {quote(str(written))}")
    return values


def _text(written: object) -> str:
    """Return the text of an attribute without padding."""
    text = written.decode("utf-8", "replace") if isinstance(written, bytes) else str(written)
    return text.strip("\0 _")


def _names(written: object) -> tuple[str, ...]:
    """Return the names of axes in an attribute."""
    return tuple(filter(None, _text(written).split(",")))


NETCDF_MAGIC: Final = (b"CDF\1", b"CDF\2")
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12
_TYPES: Final = {1: "i1", 2: "S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8"}
_MAX_ITEMS = 4096


@dataclass(frozen=True, kw_only=True)
class NetcdfVariable:
    """One variable of a file.

    Args:
        dimensions: names of its axes, the slowest first.
        shape: lengths of its axes; 0 for the axis of records.
        attributes: text or a big-endian array by name.
        dtype: dtype of a stored value.
        offset: offset of the first value in the file.
    """

    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    attributes: Mapping[str, str | NDArray[Any]]
    dtype: np.dtype[Any]
    offset: int

    def values(self, data: bytes) -> NDArray[Any]:
        """Return the values as a view of the file's bytes.

        Raises:
            SourceError: the file ends before the last value.
        """
        count = math.prod(self.shape)
        needed = self.offset + count * self.dtype.itemsize
        if needed > len(data):
            detail = f"the header says {needed} bytes, the file has {len(data)}; {COPY_AGAIN}"
            raise SourceError("decode", "voxels are missing", detail)
        return np.frombuffer(data, self.dtype, count, self.offset).reshape(self.shape)


def read_netcdf_header(data: bytes) -> dict[str, NetcdfVariable]:
    """Return the variables of a file by name.

    Raises:
        SourceError: the header is damaged or truncated.

    >>> [name for name in read_netcdf_header(b"CDF" + bytes([1]) + bytes(28))]
    []
    """
    return _HeaderParser(data).variables()


class _HeaderParser:
    """Cursor over the bytes of a header, which reads one part after another."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 4
        self.offset_bytes = 8 if data.startswith(NETCDF_MAGIC[1]) else 4
        self.integer()  # number of records

    def take(self, size: int) -> bytes:
        """Return the next bytes and skip the padding to a multiple of four."""
        taken = self.data[self.at : self.at + size]
        if len(taken) < size:
            raise damaged_header(f"it ends at byte {len(self.data)}, within a value of {size} bytes")
        self.at += -(-size // 4) * 4
        return taken

    def integer(self, size: int = 4) -> int:
        return int.from_bytes(self.take(size), "big")

    def name(self) -> str:
        return self.take(self.integer()).decode("utf-8", "replace")

    def count(self, tag: int) -> int:
        """Return the number of items of a list, which is 0 if the list is absent."""
        found, count = self.integer(), self.integer()
        # ABSENT is written as two zeros.
        if (found, count) != (0, 0) and (found != tag or count > _MAX_ITEMS):
            raise damaged_header(f"a list of {count} items with tag {found}; expected tag {tag}")
        return count

    def dtype(self) -> np.dtype[Any]:
        code = self.integer()
        if code not in _TYPES:
            raise damaged_header(f"type {code}; known: {', '.join(map(str, _TYPES))}")
        return np.dtype(_TYPES[code])

    def attributes(self) -> dict[str, str | NDArray[Any]]:
        found: dict[str, str | NDArray[Any]] = {}
        for _ in range(self.count(_ATTRIBUTES)):
            name, dtype, length = self.name(), self.dtype(), self.integer()
            raw = self.take(length * dtype.itemsize)
            found[name] = raw.decode("utf-8", "replace") if dtype.kind == "S" else np.frombuffer(raw, dtype)
        return found

    def variables(self) -> dict[str, NetcdfVariable]:
        axes = [(self.name(), self.integer()) for _ in range(self.count(_DIMENSIONS))]
        self.attributes()
        found: dict[str, NetcdfVariable] = {}
        for _ in range(self.count(_VARIABLES)):
            name, rank = self.name(), self.integer()
            numbers = [self.integer() for _ in range(min(rank, _MAX_ITEMS))]
            if rank > _MAX_ITEMS or any(number >= len(axes) for number in numbers):
                raise damaged_header(f"{name!r:.60}: an axis that is not defined")
            attributes, dtype = self.attributes(), self.dtype()
            self.integer()  # size in bytes, which the shape also gives
            found[name] = NetcdfVariable(
                dimensions=tuple(axes[number][0] for number in numbers),
                shape=tuple(axes[number][1] for number in numbers),
                attributes=attributes,
                dtype=dtype,
                offset=self.integer(self.offset_bytes),
            )
        return found
