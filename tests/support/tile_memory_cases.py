"""Large pictures that are cut into tiles, and what that takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from PIL import Image

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.converted_record import HELD_BYTES
from halofeed.prep.convert.tile_records import TileConverter
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import LocalFiles
from halofeed.system.memory import with_margin
from halofeed.system.threads import OrderedThreads
from tests.support.memory_probe import Measured, measure

LABELS = LabelMap(entries=((1, "a"),), first_id=1)
HEIGHT, WIDTH = 4000, 6000


def _noise(height: int, width: int, bands: int, dtype: str = "uint8") -> np.ndarray:
    """Blocks of 8 x 8 pixels of one value, which no decoder writes faster than others."""
    drawn = np.random.default_rng(0).integers(1, 255, (height // 8 + 1, width // 8 + 1, bands)).astype(dtype)
    return drawn.repeat(8, 0).repeat(8, 1)[:height, :width]


def _tiff(bands: int = 3, dtype: str = "uint8", **options: Any) -> Callable[[Path, int, int], None]:
    def write(path: Path, height: int, width: int) -> None:
        more = {"photometric": "rgb" if bands == 3 and dtype == "uint8" else "minisblack"}
        if bands > 1:
            more["planarconfig"] = "contig"
        pixels = _noise(height, width, bands, dtype)
        tifffile.imwrite(path, pixels if bands > 1 else pixels[..., 0], metadata=None, **more, **options)

    return write


def _picture(kind: str) -> Callable[[Path, int, int], None]:
    def write(path: Path, height: int, width: int) -> None:
        Image.fromarray(_noise(height, width, 3)).save(path, kind, compress_level=1)

    return write


NODATA = [(42113, "s", 0, "0", True)]
FILES: dict[str, Callable[[Path, int, int], None]] = {
    "TIFF tiles": _tiff(tile=(256, 256), compression="zlib"),
    "TIFF large tiles": _tiff(tile=(1024, 1024), compression="jpeg"),
    "TIFF strips": _tiff(rowsperstrip=16, compression="lzw"),
    "TIFF gray": _tiff(bands=1, tile=(256, 256), compression="zlib"),
    "TIFF nodata": _tiff(tile=(256, 256), compression="zlib", extratags=NODATA),
    "TIFF bands": _tiff(bands=8, dtype="uint16", tile=(256, 256), compression="zlib"),
    "PNG": _picture("png"),
    "JPEG": _picture("jpeg"),
}
_COMMON = {"encoding": "raw", "height": 512, "width": 512, "tile_overlap": (64, 64)}
TILE_RECIPES: dict[str, dict[str, Any]] = {
    "tiles": _COMMON,
    "shrunk": _COMMON | {"scale": 0.25},
    "enlarged": _COMMON | {"scale": 1.5},
    "jpeg": _COMMON | {"encoding": "jpeg"},
    "packed": _COMMON | {"encoding": "packed"},
    "color planes": _COMMON | {"encoding": "yuv420"},
    "large": _COMMON | {"height": 1536, "width": 1536},
    "narrow": _COMMON | {"height": 64, "width": 4096, "tile_overlap": (0, 0)},
}


def convert_tiles(path: str, options: dict[str, Any], threads: int) -> int:
    """Cut a picture into tiles as a worker does, and return the bytes that were reserved for it."""
    recipe = Recipe(layout="csv", task="classification", fit="tiles", **options)
    converter = TileConverter(recipe=recipe, task="classification", labels=LABELS)
    reserved = [0]
    ordered = OrderedThreads(threads)
    reference = SourceExample(source=Path(path).name, key="a", labels=("a",))
    files = LocalFiles(Path(path).parent)
    held, held_bytes = [], 0
    for record in converter.stream(reference, files, reserved.append, ordered.map, threads):
        held.append(record)
        held_bytes += record.example.length
        if held_bytes > HELD_BYTES:
            held, held_bytes = [], 0
    ordered.close()
    return with_margin(max(reserved))


def measured_tiles(name: str, options: dict[str, Any], folder: Path, threads: int) -> Measured:
    """What cutting a picture takes; the result is what was reserved."""
    if name == "TIFF gray":
        # Gray pictures have no color planes.
        options = options | {"channels": 1, "encoding": options["encoding"].replace("yuv420", "packed")}
    elif name == "TIFF bands":
        options = options | {"channels": 8, "dtype": "uint16", "encoding": "raw"}
    FILES[name](folder / "large", HEIGHT, WIDTH)
    FILES[name](folder / "small", 300, 300)
    warm = (str(folder / "small"), options, threads)
    return measure(convert_tiles, str(folder / "large"), options, threads, warm=warm)
