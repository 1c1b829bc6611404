"""Data sets for Keras in one call: convert a source once into a cache folder, and open its train and validation splits.

The examples run after `import halofeed`, in a folder with class folders `photos`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from halofeed.storage.paths import scan_folder, user_cache_folder
from halofeed.system.addresses import is_remote
from halofeed.system.arguments import explains_calls, path_text, whole_number
from halofeed.system.console import print_status
from halofeed.system.errors import ChangedSourceError, UsageError

if TYPE_CHECKING:
    import tensorflow as tf

    from halofeed.api import Dataset, StrPath
    from halofeed.loader.augment import Augmentation, Combination

_OWN = ("name", "version", "split_shares", "split_lists", "folds", "dry_run", "beam_options")
"""Options of a conversion that this module chooses, or that do not lead to a train and a validation split."""
_KEY_LETTERS = 24


class _Datasets(NamedTuple):
    train: tf.data.Dataset
    validation: tf.data.Dataset
    class_names: tuple[str, ...]


class KerasDatasets(_Datasets):
    """Data sets for Keras' `fit`, and the names of the labels: `train, validation, class_names = ...`.

    Args:
        train: (image, target) in batches; each iteration is one epoch in another order.
        validation: (image, target) in batches, in stored order.
        class_names: `class_names[label]`.
        path: folder of the converted data set, for `halofeed.open`, `report` and `verify`; it is no item of the tuple.
    """

    path: str

    def __new__(cls, *datasets: Any, path: str) -> Self:
        """Return the three items with the folder beside them."""
        made = super().__new__(cls, *datasets)
        made.path = path
        return made


@explains_calls
def keras_datasets(
    source: StrPath,
    *,
    validation: float | str = 0.2,
    batch_size: int = 32,
    seed: int = 0,
    initial_epoch: int = 0,
    augment: Sequence[Augmentation | Combination] = (),
    cache: StrPath | None = None,
    **options: Any,
) -> KerasDatasets:
    """Convert a source once, and return its train and validation data for Keras, and the class names.

    The first call converts into the cache. A further call with the same options finds the result and converts nothing.
    It compares the sizes and times of the source files with those of the first call, and their contents where these
    prove nothing. If a file is new, changed or missing, it converts again and replaces the result.

    A group of the source, such as a patient, is in one of the two splits only, as for `split_shares` of
    `halofeed.convert`. Delete the cache folder to free its disk space.

    Args:
        source: folder or file of the annotations, and of the images if they are beside them; see `halofeed.convert`.
        validation: share of the records that are for validation; the source's own splits are then replaced. Or the name
            of a split of the source, such as "val": its own splits are kept, and `train` is its split of that name.
        batch_size: rows of a batch.
        seed: determines the order of the training records, and the augmentations.
        initial_epoch: number of epochs that an earlier run finished, as in Keras' `fit`: the training data begin with
            the next one. Without it, a resumed `fit` repeats the orders of the first epochs.
        augment: augmentations of `halofeed.loader.augment` for training.
        cache: folder of converted data sets; default: `halofeed/datasets` in the user's cache folder (~/.cache).
        options: options of `halofeed convert`, such as height=224, width=224, split_seed=1.

    Raises:
        UsageError: a parameter is wrong, or a split has no records; and as `halofeed.convert`.
        JobError: another process is converting the same source.

    >>> data = halofeed.keras_datasets("photos", height=16, width=24, batch_size=4, validation=0.25, cache="cache")
    >>> data.class_names, len(data.train), len(data.validation)
    (('hat', 'shirt'), 2, 1)
    """
    _check_options(options)
    first_epoch = whole_number("initial_epoch", initial_epoch, 3)
    if first_epoch < 0:
        raise UsageError(f"initial_epoch {first_epoch}: expected 0 and more")
    found = path_text("source", source)
    if isinstance(validation, str):
        split = validation
    else:
        split = "validation"
        _check_divisible(found, options)
        options["split_shares"] = _shares_of(validation)
    data = _converted(found, Path(_cache_folder(cache)), options)
    if lacking := [name for name in ("train", split) if not data.splits.get(name)]:
        there = ", ".join(f"{name} ({records:,})" for name, records in data.splits.items()) or "none"
        raise UsageError(
            f"{found}: split {lacking[0]} has no records; splits: {there}; name one of them, such as "
            'validation="val", or give a share, such as validation=0.2'
        )
    train = data.loader("train", batch_size=batch_size, seed=seed, augment=augment)
    held_out = data.loader(split, batch_size=batch_size, training=False)
    return KerasDatasets(
        train.dataset(as_supervised=True, start_step=first_epoch * train.steps_per_epoch),
        held_out.dataset(as_supervised=True),
        train.class_names,
        path=data.path,
    )


def _check_options(options: Mapping[str, Any]) -> None:
    # `halofeed.convert` has it for sources that have changed.
    if "overwrite" in options:
        raise UsageError(
            "overwrite: keras_datasets converts again when a file of the source has changed; correct the files and "
            "leave it out, or delete the cache folder"
        )
    if refused := [name for name in _OWN if name in options]:
        raise UsageError(
            f"{', '.join(refused)}: keras_datasets makes a train and a validation split in its cache; leave it out, or "
            "call halofeed.convert and data.loader(...).dataset(as_supervised=True)"
        )


def _shares_of(validation: object) -> dict[str, float]:
    """Return the shares of the two splits; raise UsageError where the share of validation is none."""
    share = validation if isinstance(validation, int | float) and not isinstance(validation, bool) else 0.0
    if not 0 < share < 1:
        raise UsageError(
            "validation: expected a share above 0 and below 1, such as validation=0.2, or the name of a split of the "
            f"source, got {validation!r}"
        )
    return {"train": 1 - share, "validation": float(share)}


def _check_divisible(source: str, options: Mapping[str, Any]) -> None:
    """Refuse to divide a folder of splits anew, by which test pictures would be trained on."""
    from halofeed.prep.annotations.contract import is_split_name

    if is_remote(source) or not os.path.isdir(source) or options.get("split_folders") == "no":
        return
    with scan_folder(source) as entries:
        folders = sorted(one.name for one in entries if one.is_dir() and not one.name.startswith("."))
    if folders and all(map(is_split_name, folders)):
        # A split that is trained on validates nothing.
        others = [name for name in folders if not name.lower().startswith("tr")]
        named = next((name for name in others if name.lower().startswith("val")), "".join(others[:1]))
        fix = f'pass validation="{named}", or ' if named else ""
        raise UsageError(
            f"{source} has the splits {', '.join(folders)}, and a share would divide all of them anew; {fix}name one "
            'of the folders as the source, or pass split_folders="no"'
        )


def _cache_folder(cache: StrPath | None) -> StrPath:
    if cache is not None:
        return path_text("cache", cache)
    folder = user_cache_folder("datasets")
    if folder is None:
        raise UsageError('cache: this user has no home folder; name a folder, such as cache="converted"')
    return folder


def _converted(source: str, cache: Path, options: Mapping[str, Any]) -> Dataset:
    """Return the data set of a source in the cache, converted only if it is not there or the source has changed."""
    from halofeed import __version__
    from halofeed.api import Dataset, conversion_parameters, run_conversion
    from halofeed.keywords import check_keywords

    place = source if is_remote(source) else os.path.realpath(source)
    asked = json.dumps([place, check_keywords("convert", options), __version__], default=repr, sort_keys=True)
    out = cache / hashlib.sha256(asked.encode()).hexdigest()[:_KEY_LETTERS]
    given = conversion_parameters(source, out, **options)
    told = {
        "caller": "halofeed.keras_datasets",
        "again": "call keras_datasets again, which converts a source that has changed",
    }
    try:
        done, _ = run_conversion(given, **told)
    except ChangedSourceError:
        _tell(options, f"{source} has changed since it was converted; converting it again")
        done, _ = run_conversion({**given, "overwrite": True}, **told)
    if done.was_there:
        _tell(options, f"{source} is already converted: {done.folder}")
    else:
        _tell(options, f"{source} was converted in {done.summary.elapsed_seconds:,.1f} s: {done.folder}")
    return Dataset(done.folder)


def _tell(options: Mapping[str, Any], text: str) -> None:
    if not options.get("quiet"):
        print_status(f"halofeed.keras_datasets: {text}")
