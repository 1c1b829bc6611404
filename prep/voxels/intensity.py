"""What a voxel's value becomes: windows in Hounsfield units, and the number types a record may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.voxels.memory_order import in_memory_order
from halofeed.schemas.errors import SourceError, UsageError

STORES: Final = ("int16", "uint8", "float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Window:
    """The values that are distinguished, from `low` to `high` inclusive; those beyond become the nearer end.

    >>> Window.from_center(40, 400)
    Window(low=-160.0, high=240.0)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (np.isfinite([self.low, self.high]).all() and self.low < self.high):
            raise UsageError(f"window: expected a low below a high, got {self.low} and {self.high}")

    @classmethod
    def from_center(cls, center: float, width: float) -> Window:
        """From center ± width / 2, as DICOM's LINEAR_EXACT (PS3.3 C.11.2.1.3.2)."""
        return cls(low=center - width / 2, high=center + width / 2)


WINDOWS: Final[Mapping[str, Window]] = {
    "abdomen": Window.from_center(40, 400),
    "bone": Window.from_center(400, 1800),
    "brain": Window.from_center(40, 80),
    "liver": Window.from_center(30, 150),
    "lung": Window.from_center(-600, 1500),
    "mediastinum": Window.from_center(50, 350),
}
"""Usual windows in HU, by the names that radiologists give them (center, width)."""


@dataclass(frozen=True, kw_only=True)
class Standard:
    """What is subtracted from values, and what they are divided by afterwards: their mean and deviation."""

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        if not (np.isfinite([self.mean, self.deviation]).all() and self.deviation > 0):
            raise UsageError(
                f"normalize: expected a mean and a deviation above 0, got {self.mean}/{self.deviation}"
            )


@dataclass(frozen=True, kw_only=True)
class IntensityPlan:
    """What becomes of one channel's values: clipped to the window, standardized, stored.

    >>> window, standard = Window(low=-160, high=240), Standard(mean=40, deviation=50)
    >>> plan = IntensityPlan(store="float32", window=window, standard=standard)
    >>> plan.stored(1000), plan.scale
    (4.0, (50, 40))
    """

    store: str
    window: Window | None = None
    standard: Standard | None = None

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """As `store_as`."""
        return store_as(array, self.window, self.store, self.standard)

    def stored(self, value: float) -> float:
        """One value as a record holds it."""
        return stored_value(value, self.window, self.store, self.standard)

    @property
    def scale(self) -> tuple[float, float]:
        """(slope, intercept) by which a stored number becomes a value again: value = slope · stored + intercept."""
        return value_scale(self.window, self.store, self.standard)


def named_window(name: str) -> Window:
    """The preset of that name; UsageError lists them with their figures."""
    if name not in WINDOWS:
        known = ", ".join(f"{key} ({window.low:g} to {window.high:g} HU)" for key, window in WINDOWS.items())
        raise UsageError(f"window {name!r} is not known; choose from {known}")
    return WINDOWS[name]


def value_scale(window: Window | None, store: str, standard: Standard | None = None) -> tuple[float, float]:
    """(slope, intercept) by which a stored number becomes a value again: value = slope · stored + intercept.

    >>> value_scale(Window(low=-160, high=240), "uint8")[1]
    -160
    """
    _check(window, store)
    if store == "uint8" and window is not None:
        return (window.high - window.low) / 255, window.low
    return (standard.deviation, standard.mean) if standard is not None else (1.0, 0.0)


def store_as(
    array: NDArray[Any], window: Window | None, store: str, standard: Standard | None = None
) -> NDArray[Any]:
    """The array as a record holds it.

    uint8 runs linearly from 0 at the window's low to 255 at its high. The other types keep the values, clipped to
    the window where there is one. Integers are rounded half to even. Nothing is cut silently: without a window,
    values that int16 cannot hold refuse the scan.

    Args:
        array: [depth, ...], integers, float32 or float64.
        store: one of `STORES`; uint8 needs a window.
        standard: what is subtracted and divided by after the window; float32 and bfloat16 alone.

    Returns:
        Of the dtype, bfloat16 as its bits in uint16; in memory the axes lie as the array's do, so C-contiguous where
        that is. The array itself where nothing changes.

    Raises:
        SourceError: a value is not a number, or int16 does not hold it.
    """
    _check(window, store)
    if standard is not None and store in ("uint8", "int16"):
        raise UsageError(f"store {store}: expected float32 or bfloat16 for values that are standardized")
    if array.dtype == np.int16 and store == "int16" and window is None:
        return array
    memory, put_back = in_memory_order(array)
    result = np.empty(memory.shape, {"bfloat16": np.uint16}.get(store, store))
    table = _table(array.dtype, window, store, standard)
    for index, plane in enumerate(memory):
        if table is not None:
            # "wrap" on an index that cannot be out of range spares the check and the buffer.
            bits = np.ascontiguousarray(plane).view(f"u{array.dtype.itemsize}")
            np.take(table, bits, out=result[index], mode="wrap")
        else:
            result[index] = _stored(plane, window, store, standard)
    return put_back(result)


def stored_value(value: float, window: Window | None, store: str, standard: Standard | None = None) -> float:
    """One value as a record holds it.

    >>> stored_value(-1024, Window(low=-160, high=240), "uint8")
    0.0
    """
    return float(
        as_numbers(store_as(np.array([[[value]]], np.float64), window, store, standard), store).item()
    )


def _check(window: Window | None, store: str) -> None:
    if store not in STORES:
        raise UsageError(f"store {store!r} is not known; choose from {', '.join(STORES)}")
    if store == "uint8" and window is None:
        raise UsageError("store uint8: expected a window; give one, or store int16")


def _table(
    dtype: np.dtype[Any], window: Window | None, store: str, standard: Standard | None
) -> NDArray[Any] | None:
    """What each value of a small integer type becomes, by its bits; None where that could refuse a value."""
    if dtype.kind not in "iu" or dtype.itemsize > 2 or (store == "int16" and window is None):
        return None
    values = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)
    return _stored(values, window, store, standard)


def _stored(
    values: NDArray[Any], window: Window | None, store: str, standard: Standard | None
) -> NDArray[Any]:
    wide = values.astype(np.float64)
    if not np.isfinite(wide).all():
        raise SourceError(
            "intensity", "voxels are not numbers", "an infinite value or one that is not a number"
        )
    if window is not None:
        wide = np.clip(wide, window.low, window.high)
    if standard is not None:
        wide = (wide - standard.mean) / standard.deviation
    if store == "uint8" and window is not None:
        return np.rint((wide - window.low) * 255 / (window.high - window.low)).astype(np.uint8)
    if store == "int16":
        rounded = np.rint(wide)
        if rounded.size and (rounded.min() < -32768 or rounded.max() > 32767):
            raise SourceError(
                "intensity",
                "values do not fit int16",
                f"{wide.min():g} to {wide.max():g}; give a window, or store float32",
            )
        return rounded.astype(np.int16)
    if np.abs(wide).max(initial=0) > np.finfo(np.float32).max:
        raise SourceError("intensity", "values do not fit float32", f"{wide.min():g} to {wide.max():g}")
    single = wide.astype(np.float32)
    return single if store == "float32" else to_bfloat16(single)


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of finite float32 values rounded to bfloat16, half to even.

    >>> to_bfloat16(np.array([1.0, -2.0], np.float32)).tolist() == [0x3F80, 0xC000]
    True
    """
    bits = np.ascontiguousarray(values).view(np.uint32)
    return np.asarray(
        (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    ).astype(np.uint16)


def as_numbers(stored: NDArray[Any], store: str) -> NDArray[Any]:
    """Stored voxels as numbers that NumPy can count: bfloat16 from its bits.

    >>> as_numbers(np.array([0x3F80], np.uint16), "bfloat16").tolist()
    [1.0]
    """
    if store != "bfloat16":
        return stored
    return np.asarray((stored.astype(np.uint32) << np.uint32(16)).view(np.float32))
