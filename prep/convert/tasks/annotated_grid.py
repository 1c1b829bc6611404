"""On which grid were a picture's annotations drawn: as its file stores the pixels, or as they are displayed?"""

from __future__ import annotations

from halofeed.prep.formats.picture import DecodedImage
from halofeed.prep.geometry.resize import displayed_size
from halofeed.schemas.errors import SourceError

_UNPROVEN = (
    "has an EXIF orientation, and nothing shows whether it was annotated as stored or as displayed: taken as stored; "
    "say --annotation-grid stored or displayed"
)
_CONTRADICTED = "declared size shows another grid than --annotation-grid says"


def annotated_orientation(
    declared: tuple[int, int] | None, image: DecodedImage, grid: str | None
) -> tuple[int, str | None]:
    """The orientation that lies between the annotations and the displayed picture, and a warning where it is a guess.

    Annotations mostly refer to the pixels as the file stores them, and then follow its EXIF orientation. Some tools
    annotate the picture as displayed; the size that they declare gives them away.

    Args:
        declared: the (height, width) that the annotations claim; None where they claim none.
        grid: "stored" or "displayed" where the user, or the other pictures, say it.
    """
    stored = image.stored_size
    displayed = displayed_size(image.orientation, stored)
    if declared is not None and declared not in (stored, displayed):
        detail = f"annotations say {declared[1]}x{declared[0]}, the picture is {stored[1]}x{stored[0]}"
        raise SourceError("annotation", "declared size is not the picture's", detail)
    if image.orientation == 1:
        return 1, None
    proven = None
    if declared is not None and stored != displayed:
        proven = "stored" if declared == stored else "displayed"
    turns = {"stored": image.orientation, "displayed": 1}
    if grid is not None:
        return turns[grid], _CONTRADICTED if proven not in (None, grid) else None
    return turns[proven or "stored"], None if proven else _UNPROVEN


def label_orientation(size: tuple[int, int], image: DecodedImage, grid: str | None) -> tuple[int, str | None]:
    """The same for a label image of this (height, width), whose size is a fact that no option overrules."""
    stored = image.stored_size
    displayed = displayed_size(image.orientation, stored)
    if size == displayed != stored:
        return 1, None
    if size == stored != displayed or size not in (stored, displayed):
        return image.orientation, None
    return annotated_orientation(size, image, grid)
