"""Splits of images without a label, which are for prediction only, beside images with labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from halofeed.prep.sources.example import SourceExample
from halofeed.storage.spill import SpillList

UNLABELED_SPLIT = "unlabeled"
"""Split of images without a label for which the source names no split of such images."""
_TRAIN = "train"
"""Split of images for which the source names none; see `SourceExample`."""
Assign = Callable[[Iterable[SourceExample]], Iterator[SourceExample]]
"""Function that assigns splits, such as `halofeed.prep.annotations.splits.assign_splits` with its options."""


def assign_unlabeled_apart(
    examples: Iterable[SourceExample], assign: Assign, *, by_shares: bool
) -> Iterator[SourceExample]:
    """Yield examples of a segmentation set with their splits, those without a label in separate splits.

    The record of an image without a label has zeros as label. In a split with labeled records, a loss or a metric that
    does not use `labelled` would take these zeros for background. Whether an image has a label decides, not the name
    of its folder:

    - An image without a label keeps a split that the source or a list names (such as imagesTs: test) if no image of it
      has a label. All others are in the split "unlabeled".
    - Shares divide the images with labels only, so that the number of labeled images is what shares say.
    - If no image has a label, the complete set is for prediction, and all keep their splits.

    Args:
        examples: examples with the splits of the source.
        assign: function that assigns splits by options.
        by_shares: whether it divides the images by shares.

    >>> listed = [SourceExample(source=name, key=name, mask=mask) for name, mask in (("a", "m"), ("b", None))]
    >>> [one.split for one in assign_unlabeled_apart(listed, iter, by_shares=False)]
    ['train', 'unlabeled']
    """
    listed: SpillList[SourceExample] = SpillList()
    labeled_splits: set[str] = set()
    has_unlabeled = False
    # Shares are assigned below, to a part of the images.
    for example in examples if by_shares else assign(examples):
        listed.add(example)
        has_unlabeled |= is_unlabeled(example)
        if example.problem is None and example.is_labelled:
            labeled_splits.add(example.split)
    # All images have a label, or none has one: there is nothing to keep apart.
    if not has_unlabeled or not labeled_splits:
        yield from assign(listed) if by_shares else listed
        return
    others: Iterable[SourceExample] = listed
    if by_shares:
        labeled_splits.clear()
        for example in assign(one for one in listed if not is_unlabeled(one)):
            labeled_splits.add(example.split)
            yield example
        others = filter(is_unlabeled, listed)
    yield from _move_unlabeled(others, labeled_splits)


def _move_unlabeled(examples: Iterable[SourceExample], labeled_splits: set[str]) -> Iterator[SourceExample]:
    """Yield the examples; one without a label keeps its split only if that has a name and no labeled image."""
    own = UNLABELED_SPLIT
    while own in labeled_splits:
        own += "_too"
    for example in examples:
        is_apart = not is_unlabeled(example) or example.split not in (_TRAIN, *labeled_splits)
        yield example if is_apart else replace(example, split=own)


def is_unlabeled(example: SourceExample) -> bool:
    """Return whether an example of a segmentation set can be converted and has no label."""
    return example.problem is None and not example.is_labelled
