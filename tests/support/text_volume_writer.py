"""NRRD and MetaImage files for tests: written field by field, so that a test bends what it wants."""

import bz2
import gzip
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

NRRD_TYPES = {"i1": "signed char", "u1": "uint8", "i2": "short", "u2": "ushort", "i4": "int"}
NRRD_TYPES |= {"u4": "uint32", "i8": "long long int", "u8": "uint64", "f4": "float", "f8": "double"}
META_TYPES = {"i1": "MET_CHAR", "u1": "MET_UCHAR", "i2": "MET_SHORT", "u2": "MET_USHORT", "i4": "MET_INT"}
META_TYPES |= {"u4": "MET_UINT", "i8": "MET_LONG_LONG", "u8": "MET_ULONG_LONG", "f4": "MET_FLOAT"}
META_TYPES |= {"f8": "MET_DOUBLE"}


def _text(stored: NDArray[Any]) -> bytes:
    return " ".join(repr(value) for value in stored.ravel("F").tolist()).encode() + b"\n"


def nrrd_parts(stored: NDArray[Any], encoding="raw", order="<", **fields: str | None) -> tuple[bytes, bytes]:
    """A header with its empty line, and the voxels of an array indexed as the axes stand in the file.

    Args:
        fields: by name, with _ for blanks; they overwrite, or remove where they are None.
    """
    swapped = stored.astype(stored.dtype.newbyteorder(order)).tobytes("F")
    data = {
        "raw": lambda: swapped,
        "gzip": lambda: gzip.compress(swapped, 1),
        "bzip2": lambda: bz2.compress(swapped, 1),
        "hex": lambda: swapped.hex(" ", 20).encode(),
        "ascii": lambda: _text(stored),
    }[encoding]()
    directions = ["(2,0,0)", "(0,0,-3)", "(0,1.5,0)"]
    written: dict[str, str | None] = {"type": NRRD_TYPES[stored.dtype.str[1:]], "dimension": str(stored.ndim)}
    written |= {"space": "left-posterior-superior", "space dimension": None}
    written["sizes"] = " ".join(map(str, stored.shape))
    written["space directions"] = " ".join([*directions, *["none"] * (stored.ndim - 3)])
    written |= {
        "endian": "little" if order == "<" else "big",
        "encoding": encoding,
        "space origin": "(-40,50,60)",
    }
    written |= {name.replace("_", " "): value for name, value in fields.items()}
    lines = [f"{name}: {value}" for name, value in written.items() if value is not None]
    return "\n".join(["NRRD0004", "# for a test", *lines, "key:=value", "", ""]).encode(), data


def write_nrrd(stored: NDArray[Any], encoding: str = "raw", order: str = "<", **fields: str | None) -> bytes:
    return b"".join(nrrd_parts(stored, encoding, order, **fields))


def meta_parts(stored: NDArray[Any], encoding="raw", order="<", parts=1, **fields) -> tuple[bytes, bytes]:
    """The same of MetaImage; of several parts a voxel the array's first axis is theirs."""
    swapped = stored.astype(stored.dtype.newbyteorder(order)).tobytes("F")
    data = {
        "raw": lambda: swapped,
        "zlib": lambda: zlib.compress(swapped, 1),
        "gzip": lambda: gzip.compress(swapped, 1),
        "ascii": lambda: _text(stored),
    }[encoding]()
    lengths = stored.shape if parts == 1 else stored.shape[1:]
    matrix = np.eye(len(lengths))
    matrix[:3, :3] = [[1, 0, 0], [0, 0, -1], [0, 1, 0]]
    packed = encoding in ("zlib", "gzip")
    written: dict[str, str | None] = {"ObjectType": "Image", "NDims": str(len(lengths))}
    written |= {"BinaryData": str(encoding != "ascii"), "BinaryDataByteOrderMSB": str(order == ">")}
    written |= {"CompressedData": str(packed), "CompressedDataSize": str(len(data)) if packed else None}
    written["TransformMatrix"] = " ".join(f"{value:g}" for value in matrix.ravel())
    written["Offset"] = " ".join(["-40", "50", "60", "0"][: len(lengths)])
    written["ElementSpacing"] = " ".join(["2", "3", "1.5", "1"][: len(lengths)])
    written["DimSize"] = " ".join(map(str, lengths))
    written["ElementNumberOfChannels"] = str(parts) if parts > 1 else None
    written["ElementType"] = META_TYPES[stored.dtype.str[1:]]
    file = fields.pop("ElementDataFile", "LOCAL")
    written |= fields
    written["ElementDataFile"] = file
    lines = [f"{name} = {value}" for name, value in written.items() if value is not None]
    return "\n".join([*lines, ""]).encode(), data


def write_meta(stored: NDArray[Any], encoding="raw", order="<", parts=1, **fields: str | None) -> bytes:
    return b"".join(meta_parts(stored, encoding, order, parts, **fields))


AFFINE = np.array([[-2.0, 0, 0, 40], [0, 0, -1.5, -50], [0, -3.0, 0, 60], [0, 0, 0, 1]])
"""Of both, from (i, j, k) to right, anterior, superior."""
