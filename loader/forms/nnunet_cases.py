"""Cases of a folder that nnU-Net has preprocessed: CASE.b2nd, CASE_seg.b2nd and CASE.pkl, or CASE.npz and CASE.pkl.

The formats are those of nnunetv2/training/dataloading/nnunet_dataset.py: arrays [channel, axis 0, axis 1, axis 2] by
Blosc2 or NumPy, and a pickled dict whose `class_locations` has some voxels of each class.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.storage.paths import load_bytes, names_in
from halofeed.system.errors import CorruptFileError, UsageError, require_extra

_SEGMENTATION = "_seg"
_ARRAY_NAMES = ("_reconstruct", "scalar", "_frombuffer")
_ALLOWED = {
    "numpy": ("ndarray", "dtype", "int64", "int32", "float64", "float32", "bool_"),
    "numpy.core.multiarray": _ARRAY_NAMES,
    "numpy._core.multiarray": _ARRAY_NAMES,
    "numpy.core.numeric": _ARRAY_NAMES,
    "numpy._core.numeric": _ARRAY_NAMES,
    "collections": ("OrderedDict",),
}
"""What a pickled dict of numbers and arrays names; other names could run code."""


@dataclass(frozen=True, kw_only=True)
class PreprocessedCase:
    """Arrays of a case, which may be compressed and are then decompressed where they are sliced.

    Args:
        name: its identifier.
        data: [channel, axis 0, axis 1, axis 2].
        label: [channel, axis 0, axis 1, axis 2], of which -1 is outside of the scan's nonzero part.
        locations: voxels of each class or region, [voxel, 4], channel first.
    """

    name: str
    data: Any
    label: Any
    locations: dict[Any, NDArray[np.int64]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the size along the three axes."""
        return tuple(int(size) for size in self.data.shape[1:])


class PreprocessedFolder:
    """Cases of a folder, decompressed into memory when they are first used, as far as they fit.

    Args:
        folder: such as nnUNet_preprocessed/Dataset009_Spleen/nnUNetPlans_3d_fullres.
        identifiers: names of the cases; None is all of the folder.
        memory_bytes: bound for decompressed cases. Others are decompressed by chunks for each patch.

    Raises:
        UsageError: the folder has no such cases, or is not one that nnU-Net has preprocessed.
    """

    def __init__(self, folder: Path, identifiers: Sequence[str] | None, memory_bytes: int) -> None:
        names = set(names_in(folder))
        found = sorted(name.removesuffix(".pkl") for name in names if name.endswith(".pkl"))
        self.identifiers = found if identifiers is None else sorted(identifiers)
        missing = [name for name in self.identifiers if name not in found]
        if missing or not found:
            raise UsageError(
                f"{folder}: expected a folder that nnU-Net has preprocessed, such as nnUNetPlans_3d_fullres, with "
                f"CASE.b2nd, CASE_seg.b2nd and CASE.pkl; {f'no {missing[0]}.pkl' if missing else 'it has no .pkl'}"
            )
        self._folder, self._names, self._left = folder, names, memory_bytes
        self._cases: dict[str, PreprocessedCase] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> PreprocessedCase:
        case = self._cases.get(name)
        if case is not None:
            return case
        case = self._open(name)
        size = sum(int(np.prod(array.shape)) * array.dtype.itemsize for array in (case.data, case.label))
        with self._lock:
            fits = size <= self._left
            if fits and name not in self._cases:
                self._left -= size
        if fits:
            case = PreprocessedCase(
                name=name, data=case.data[:], label=case.label[:], locations=case.locations
            )
        self._cases[name] = case
        return case

    def _open(self, name: str) -> PreprocessedCase:
        data, label = self._arrays(name)
        properties = load_properties(self._folder / f"{name}.pkl")
        locations = {
            key: np.asarray(voxels, np.int64).reshape(-1, 4)
            for key, voxels in properties.get("class_locations", {}).items()
        }
        return PreprocessedCase(name=name, data=data, label=label, locations=locations)

    def _arrays(self, name: str) -> tuple[Any, Any]:
        if f"{name}.b2nd" in self._names:
            with require_extra("peers", "blosc2"):
                import blosc2
            files = [self._folder / f"{name}{part}.b2nd" for part in ("", _SEGMENTATION)]
            arrays = [
                blosc2.open(str(file), mode="r", mmap_mode="r", dparams={"nthreads": 1}) for file in files
            ]
            return arrays[0], arrays[1]
        file = self._folder / f"{name}.npz"
        stored = np.load(io.BytesIO(load_bytes(file)))
        return stored["data"], stored["seg"]


class _NumbersOnly(pickle.Unpickler):
    """Unpickler of dicts of numbers, texts and arrays, which runs no other code."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _ALLOWED.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name} is no number, text or array")
        return super().find_class(module, name)


def load_properties(file: Path) -> dict[str, Any]:
    """Return the properties of a case.

    Raises:
        CorruptFileError: the file is no pickled dict of numbers, texts and arrays.
    """
    try:
        properties = _NumbersOnly(io.BytesIO(load_bytes(file))).load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise CorruptFileError(
            f"{file}: expected the properties that nnU-Net writes, got {error}; run nnUNetv2_preprocess again"
        ) from error
    if not isinstance(properties, dict):
        raise CorruptFileError(f"{file}: expected a dict of properties, got {type(properties).__name__}")
    return properties
