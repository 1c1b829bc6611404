"""How is one input read, hashed and converted within the memory that there is, and what does its failure cost?"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from halofeed.errors import HalofeedError, JobError, SourceError
from halofeed.pipelines.storage import OutputFolder, is_remote
from halofeed.prep.convert.record import Record
from halofeed.prep.convert.table import Converter
from halofeed.prep.sources.files import CHANGED, SourceFiles, Stamp
from halofeed.prep.sources.reference import SourceExample
from halofeed.system.memory import MemoryBudget, Share, lacks_memory, with_room
from halofeed.system.resource_errors import resource_error
from halofeed.system.threads import OrderedThreads

_ATTEMPTS, _PAUSE_SECONDS = 4, 0.1
"""How often an input is converted that changes meanwhile, and the shortest pause before the next time."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one input: its records, or the reason why there are none; and its content's SHA-256."""

    reference: SourceExample
    content: str
    result: tuple[Record, ...] | SourceError


class _HashedFiles:
    """Source files of which each is hashed when it is first read, and none is read that takes too much memory."""

    def __init__(self, files: SourceFiles, share: Share) -> None:
        self._files, self._share = files, share
        self._hashes: dict[str, str] = {}
        self.root, self.sizes, self.size, self.faults = files.root, files.sizes, files.size, files.faults
        self.refusal, self.files_in, self.has_folder = files.refusal, files.files_in, files.has_folder
        self.open, self.head, self.stamp = files.open, files.head, files.stamp

    def read(self, path: str) -> bytes:
        if is_remote(self.root):  # where asking for a file's size lists the whole folder
            data = self._files.head(path, self._share.limit_bytes + 1)
            self._share.need(len(data))
        else:
            self._share.need(self._files.size(path) or 0)
            data = self._files.read(path)
        if path not in self._hashes:
            self._hashes[path] = hashlib.sha256(data).hexdigest()
        return data

    def content_of(self, reference: SourceExample) -> str:
        """The SHA-256 of a reference's file, or of the list of its files and theirs; "" where one cannot be read."""
        try:
            for path in reference.paths:
                if path not in self._hashes:
                    self.read(path)
        except SourceError:
            return ""
        hashes = [self._hashes[path] for path in reference.paths]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def convert_input(
    reference: SourceExample,
    sources: SourceFiles,
    converter: Converter,
    budget: MemoryBudget,
    series_folder: str | None,
) -> Outcome:
    """Convert one input as soon as there is room for it.

    Args:
        series_folder: as of a `ShardJob`.

    Raises:
        JobError: the system failed, or an option fits no input; what is wrong with the input is the outcome's.
    """
    whole = _with_members(reference, series_folder)
    outcome = with_room(budget, lambda share: _convert_now(whole, sources, converter, share))
    return replace(outcome, reference=reference)


def _with_members(reference: SourceExample, series_folder: str | None) -> SourceExample:
    """The reference with the files of its series, where those are listed elsewhere, and what is known of them."""
    if reference.stored is None or series_folder is None:
        return reference
    from halofeed.prep.formats.dicom.series_listing import ListingRecords, listing_from_bytes

    output, name = OutputFolder(series_folder), reference.stored[0]
    try:
        slices = ListingRecords(images=listing_from_bytes(output.read(name)))
    except pickle.UnpicklingError as error:
        raise JobError(f"{output.path(name)}: {error}; run the same command again") from error
    return replace(reference, members=slices.members, slices=slices)


def _convert_now(
    reference: SourceExample, sources: SourceFiles, converter: Converter, share: Share
) -> Outcome:
    """The outcome of files that stayed the same from the first look at them to the last.

    Raises:
        JobError: they did not, whichever time.
    """
    changed = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS * 2**attempt)
        before = _stamps(reference, sources)
        outcome = _convert_once(reference, sources, converter, share)
        is_listed_otherwise = isinstance(outcome.result, SourceError) and outcome.result.reason == CHANGED
        after = _stamps(reference, sources)
        changed = next((path for path in before if before[path] != after[path]), "")
        if is_listed_otherwise:
            changed = changed or reference.source
            break
        if not changed:
            return outcome
        del outcome
    raise JobError(
        f"{changed}: was changed while it was converted; run the same command again once nothing writes to it. What is "
        "finished is kept"
    )


def _stamps(reference: SourceExample, sources: SourceFiles) -> dict[str, Stamp | None]:
    return {path: sources.stamp(path) for path in reference.paths}


def _convert_once(
    reference: SourceExample, sources: SourceFiles, converter: Converter, share: Share
) -> Outcome:
    files, rebuilt = _HashedFiles(sources, share), False
    result: tuple[Record, ...] | SourceError
    try:
        result = converter.records(reference, files, share.need)
    except HalofeedError as error:
        if not isinstance(error, SourceError):
            raise JobError(f"{reference.source}: {error}") from error
        result = error
    except Exception as error:
        if lacks_memory(error):
            result = share.alone_or_never()
        elif isinstance(error, RecursionError | OverflowError):
            what = "nesting" if isinstance(error, RecursionError) else "numbers"
            result = SourceError("decode", "file is damaged", f"its {what} go beyond all bounds")
        elif isinstance(error, OSError) or resource_error(error):
            raise JobError(f"{reference.source}: {type(error).__name__}: {error}") from error
        else:
            detail = f"{type(error).__name__}: {error}; please report it to halofeed with the file"
            result, rebuilt = SourceError("decode", "halofeed fails at it", detail), True
    if isinstance(result, SourceError):
        # Else the pictures of the calls that it came through would be held until it is written.
        result = SourceError(result.stage, result.reason, result.detail)
    # Where this machine or this version was the reason, the shard counts as made of something else, and the next run
    # rebuilds it.
    content = "" if share.lacked or rebuilt else files.content_of(reference)
    return Outcome(reference=reference, content=content, result=result)


def contents_of(
    references: Sequence[SourceExample],
    sources: SourceFiles,
    budget: MemoryBudget,
    threads: OrderedThreads,
    series_folder: str | None,
) -> dict[str, str]:
    """The SHA-256 of each reference's content, by its source."""

    def content_of(reference: SourceExample) -> str:
        whole = _with_members(reference, series_folder)
        return with_room(budget, lambda share: _HashedFiles(sources, share).content_of(whole))

    digests = threads.map(content_of, references)
    return {one.source: digest for one, digest in zip(references, digests, strict=True)}
