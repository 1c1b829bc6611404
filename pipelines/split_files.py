"""Splits that options name: shares, lists of files, and the folds of nnU-Net, read before the source is listed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from halofeed.pipelines.job import JobOptions
from halofeed.prep.annotations.splits import SplitOptions, read_fold
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.file_layout import check_split
from halofeed.storage.choose import read_option_file
from halofeed.system.addresses import address_of
from halofeed.system.errors import AnnotationsError, UsageError
from halofeed.system.memory import machine_memory


def read_split_options(options: JobOptions, recipe: Recipe) -> SplitOptions:
    """Return how the user divides the source, with the contents of the named files.

    Raises:
        UsageError: a file cannot be read, or two options exclude each other.
    """
    return SplitOptions(
        shares=recipe.shares(),
        lists=_read_split_lists(options),
        cases=_read_fold(options),
        seed=recipe.split_seed,
        group_pattern=recipe.group_pattern,
        group_column=recipe.group_column,
        folds=recipe.folds,
    )


def _read_split_lists(options: JobOptions) -> dict[str, str]:
    """Return the text of each split's list in --split-lists."""
    lists = {}
    for part in options.split_lists:
        name, _, path = part.partition("=")
        if not path:
            raise UsageError(f"--split-lists {part!r}: expected name=file, e.g. train=train.txt")
        if name in lists:
            raise UsageError(f"--split-lists {part}: {name} comes twice; name each split once, with one file")
        try:
            lists[name] = named_file("--split-lists", path)[1].decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError(f"--split-lists {_shown(path)}: expected UTF-8 text: {error}") from error
    return lists


def _read_fold(options: JobOptions) -> dict[str, tuple[str, ...]]:
    """Return the cases of each split in the selected fold of nnU-Net's splits_final.json."""
    path, fold = options.nnunet_splits, options.nnunet_fold
    if path is None:
        if fold is not None:
            raise UsageError("--nnunet-fold has no effect without --nnunet-splits; add that, or leave it out")
        return {}
    try:
        document = json.loads(named_file("--nnunet-splits", path)[1])
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"--nnunet-splits {_shown(path)}: not readable as JSON: {error}") from error
    try:
        return read_fold(document, fold)
    except UsageError as error:
        raise UsageError(f"--nnunet-splits {_shown(path)}: {error}") from error


def named_file(flag: str, path: str) -> tuple[str, bytes]:
    """Return the name and the bytes of a file that an option names, local or remote."""
    return os.path.basename(_shown(path)), read_option_file(flag, path, machine_memory())


def _shown(path: str) -> str:
    """Return a path or an address for messages, without the secrets of an address."""
    return str(address_of(path) or path)


def check_split_names(names: Iterable[str], *, named_by_option: bool) -> None:
    """Refuse names of splits that are invalid in file names, or differ only in upper and lower case."""
    try:
        by_folded: dict[str, str] = {}
        for name in sorted(names):
            other = by_folded.setdefault(check_split(name).casefold(), name)
            if other != name:
                raise UsageError(
                    f"splits {other!r} and {name!r} differ only in upper and lower case, so their files would be one "
                    "on some file systems; rename one"
                )
    except UsageError as error:
        if named_by_option:
            raise
        raise AnnotationsError(str(error)) from error
