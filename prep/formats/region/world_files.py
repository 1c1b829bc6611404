"""World files: the position on a map of pictures whose own format states none, and the .prj file with its system."""

from __future__ import annotations

import math
from posixpath import splitext

from halofeed.prep.formats.region.region_reader import Georeference
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError

_MAX_BYTES = 1 << 16
"""A world file has six lines, and WKT some thousand letters."""


def world_georeference(files: SourceFiles, path: str) -> Georeference | None:
    """Return the position that the world file of a picture states; None without such a file.

    Names are those of ESRI: the first and the last letter of the extension and a w (a.tif: a.tfw), the extension and a
    w (a.tifw), or wld. The six lines are a, d, b, e and the map position of the center of the upper left pixel (ESRI,
    "World files for raster datasets").

    Raises:
        SourceError: the file does not hold six numbers.
    """
    stem, extension = splitext(path)
    letters = extension[1:].lower()
    names = [f"{letters[:1]}{letters[-1:]}w", f"{letters}w", "wld"]
    found = next((f"{stem}.{name}" for name in names if files.size(f"{stem}.{name}") is not None), None)
    if found is None:
        return None
    try:
        a, d, b, e, x, y = map(float, files.head(found, _MAX_BYTES).split())
    except ValueError as error:
        raise SourceError("read", "world file does not hold six numbers", found) from error
    if not all(map(math.isfinite, (a, b, d, e, x, y))) or a * e == b * d:
        raise SourceError("read", "world file gives pixels no area", found)
    crs = ""
    if files.size(f"{stem}.prj") is not None:
        crs = files.head(f"{stem}.prj", _MAX_BYTES).decode("utf-8", "replace").strip("\ufeff \r\n\t")
    # The numbers are those of a center, and positions here begin at the corner of the pixel.
    return Georeference(to_map=(a, b, x - (a + b) / 2, d, e, y - (d + e) / 2), crs=crs)
