"""Refusal before any picture is read, where declared sizes prove that most objects become too small to be seen."""

from __future__ import annotations

from halofeed.prep.convert.loss_findings import refusing_finding
from halofeed.prep.convert.loss_measures import add_objects
from halofeed.prep.convert.object_features import corners_of_boxes
from halofeed.prep.convert.picture_records import plan_of
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.options.tiles import cuts_pictures
from halofeed.prep.sources.example import SourceExample
from halofeed.schemas.ledger import LedgerCounter
from halofeed.schemas.statistics import Statistics
from halofeed.system.errors import JobError


def add_declared_objects(ledger: LedgerCounter, reference: SourceExample, recipe: Recipe) -> None:
    """Add the sizes that the objects of a picture will have in its record, if the annotations declare its size.

    Objects of pictures without a declared size are counted and not measured, so that the share of small ones is never
    too large.
    """
    boxes, size = reference.boxes or (), reference.declared_size
    if not boxes or recipe.resize == "none":  # nothing becomes smaller
        return
    # Boxes in shares of the sides have no size in pixels yet, and drawn ones none at all.
    if size is None or reference.normalized or reference.drawings:
        ledger.count("objects", len(boxes))
        return
    ledger.extend("declared_sides", min(size), max(size))
    height, width = _scale(recipe, size)
    if min(height, width) > 1 / 2:  # no side is halved, so no object counts as shrunk
        ledger.count("objects", len(boxes))
        return
    limits = [*size, *size]
    stored = corners_of_boxes(boxes).clip(0, limits) * [height, width, height, width]
    add_objects(ledger, boxes, stored, (height, width), reference.source)


def _scale(recipe: Recipe, size: tuple[int, int]) -> tuple[float, float]:
    """Return the stored pixels of a source pixel along the height and the width."""
    if not cuts_pictures(recipe):
        return plan_of(recipe, size).scale
    # The ground sample distance of a file is in its header, which is not read yet.
    factor = 1.0 if recipe.gsd_m else recipe.scale
    return factor, factor


def check_declared_sizes(recipe: Recipe, ledger: LedgerCounter) -> None:
    """Refuse a conversion that would make most objects smaller than two pixels.

    Raises:
        JobError: the message has the numbers, an example and a fix, as after the conversion.
    """
    if recipe.limit or "drop" in (recipe.boxes_crowd, recipe.boxes_difficult):
        return  # other objects may be stored than those counted here
    _, largest = ledger.ranges.get("declared_sides", (0, 0))
    statistics = Statistics(
        ledger=ledger.ledger(), source_sizes={f"{int(largest)}x{int(largest)}": 1} if largest else None
    )
    finding = refusing_finding(statistics, recipe.to_json(), "detection", recipe.rules.kind.name)
    if finding is not None:
        raise JobError(
            f"{finding.text}; {finding.fix}. The sizes in the annotations show it. "
            "Nothing was committed. --on-loss warn converts the pictures as they are"
        )
