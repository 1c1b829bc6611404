"""Conversion of one input within the available memory: read, hash, convert, and turn failures into rejects."""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from halofeed.pipelines.output_folder import OutputFolder
from halofeed.prep.convert.converted_record import HELD_BYTES, Record
from halofeed.prep.convert.converters import Converter, StreamingConverter
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import CHANGED_FILE, SourceFiles, Stamp
from halofeed.system.addresses import is_remote
from halofeed.system.errors import HalofeedError, JobError, SourceError, install_command
from halofeed.system.memory import (
    MemoryBudget,
    RetryWhenMemoryFree,
    Share,
    is_out_of_memory,
    retry_when_memory_free,
)
from halofeed.system.resource_errors import resource_error
from halofeed.system.threads import OrderedThreads

_ATTEMPTS, _PAUSE_SECONDS = 4, 0.1
"""Attempts for an input that changes during its conversion, and the shortest pause between them."""

_HASHED_BYTES = 4 << 20
_OWN_FAULT = "halofeed fails at it"
"""Reason of a reject for an error that no reader of the format raises on purpose."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one input: its records, or the reason for its rejection; and the SHA-256 of its content.

    `is_part` marks records after which more of the same input follow.
    """

    reference: SourceExample
    content: str
    result: tuple[Record, ...] | SourceError
    is_part: bool = False


_HASHES_OF_FRAMES: dict[tuple[str, str, Stamp | None], str] = {}
"""SHA-256 of files of several frames by their root, path and stamp."""
_KEPT_HASHES = 4096


class _HashedFiles:
    """Source files that are hashed at their first read, and not read where they need too much memory."""

    def __init__(self, files: SourceFiles, share: Share) -> None:
        self._files, self._share = files, share
        self._hashes: dict[str, str] = {}
        self.root, self.sizes, self.size, self.faults = files.root, files.sizes, files.size, files.faults
        self.refusal, self.files_in, self.has_folder = files.refusal, files.files_in, files.has_folder
        self.open, self.head, self.stamp = files.open, files.head, files.stamp
        self.read_range, self.open_ranges = files.read_range, files.open_ranges

    def read(self, path: str) -> bytes:
        if is_remote(self.root):  # where a size requires listing the complete folder
            data = self._files.head(path, self._share.limit_bytes + 1)
            self._share.reserve(len(data))
        else:
            self._share.reserve(self._files.size(path) or 0)
            data = self._files.read(path)
        if path not in self._hashes:
            self._hashes[path] = hashlib.sha256(data).hexdigest()
        return data

    def content_of(self, reference: SourceExample) -> str:
        """Return the SHA-256 of a reference's file, or of the hashes of its files; "" where one cannot be read."""
        try:
            for path in reference.paths:
                if path not in self._hashes:
                    is_frame = reference.video_frame is not None or reference.frame is not None
                    self._hashes[path] = self._hash_of_frames(path) if is_frame else self._hash(path)
        except (SourceError, OSError):
            return ""
        hashes = [self._hashes[path] for path in reference.paths]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()

    def _hash_of_frames(self, path: str) -> str:
        """Return the SHA-256 of a file of frames, computed once for all of them while its stamp is the same."""
        key = (self.root, path, self.stamp(path))
        # Without a stamp, a change would not be seen.
        found = None if key[2] is None else _HASHES_OF_FRAMES.get(key)
        if found is None:
            found = self._hash(path)
            if len(_HASHES_OF_FRAMES) >= _KEPT_HASHES:
                _HASHES_OF_FRAMES.clear()
            _HASHES_OF_FRAMES[key] = found
        return found

    def _hash(self, path: str) -> str:
        """Return the SHA-256 of a file that was not read completely; it may be larger than the memory."""
        digest = hashlib.sha256()
        with closing(self._files.open(path)) as stream:
            while block := stream.read(_HASHED_BYTES):
                digest.update(block)
        return digest.hexdigest()


def convert_input(
    reference: SourceExample,
    sources: SourceFiles,
    converter: Converter,
    budget: MemoryBudget,
    series_folder: str | None,
) -> Outcome:
    """Convert one input when enough memory is free.

    Args:
        series_folder: folder of the lists of DICOM slices, as in `ShardJob`.

    Raises:
        JobError: the system failed, or an option fits no input; an error of the input itself is in the outcome.
    """
    complete = with_members(reference, series_folder)
    outcome = retry_when_memory_free(budget, lambda share: _convert_now(complete, sources, converter, share))
    return replace(outcome, reference=reference)


def with_members(reference: SourceExample, series_folder: str | None) -> SourceExample:
    """Return the reference with the files and slices of its series, which may be listed in a file."""
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
    """Convert files that do not change in the meantime.

    Raises:
        JobError: they changed at every attempt.
    """
    changed = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS * 2**attempt)
        before = _stamps(reference, sources)
        outcome = _convert_once(reference, sources, converter, share)
        is_changed = isinstance(outcome.result, SourceError) and outcome.result.reason == CHANGED_FILE
        after = _stamps(reference, sources)
        changed = next((path for path in before if before[path] != after[path]), "")
        if is_changed:
            changed = changed or reference.source
            break
        if not changed:
            return outcome
        del outcome
    raise _changed_error(changed)


def _stamps(reference: SourceExample, sources: SourceFiles) -> dict[str, Stamp | None]:
    return {path: sources.stamp(path) for path in reference.paths}


def _convert_once(
    reference: SourceExample, sources: SourceFiles, converter: Converter, share: Share
) -> Outcome:
    files, is_own_fault = _HashedFiles(sources, share), False
    result: tuple[Record, ...] | SourceError
    try:
        result = converter.records(reference, files, share.reserve_with_margin)
    except SourceError as error:
        # Without the traceback, which would keep images in memory until the shard is written.
        result = SourceError(error.stage, error.reason, error.detail)
    except HalofeedError as error:
        raise JobError(f"{reference.source}: {error}") from error
    except Exception as error:
        result = _reject(error, reference, share)
        is_own_fault = result.reason == _OWN_FAULT
    # Where this machine or this version was the reason, "" makes the fingerprint differ, and the next run rebuilds the
    # shard.
    content = "" if share.lacked or is_own_fault else files.content_of(reference)
    return Outcome(reference=reference, content=content, result=result)


class IncompleteInputError(Exception):
    """An input failed after some of its records were given; these must not be used.

    Args:
        outcome: the outcome of the input, an error.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reference.source)
        self.outcome = outcome


def stream_input(
    reference: SourceExample,
    sources: SourceFiles,
    converter: StreamingConverter,
    budget: MemoryBudget,
    threads: OrderedThreads,
) -> Iterator[Outcome]:
    """Yield the outcome of one input in parts, the last one with its content; others are marked as parts.

    An input with few records has one part. So most damaged files are found before anything of them is written.

    Raises:
        IncompleteInputError: the input failed after its first part.
        JobError: as `convert_input`, and where the files changed in the meantime.
    """
    share = budget.share()
    files, before = _HashedFiles(sources, share), _stamps(reference, sources)
    held: list[Record] = []
    held_bytes, error, given = 0, None, False
    try:
        for record in _stream_records(reference, files, converter, share, threads):
            held.append(record)
            held_bytes += record.example.length
            if held_bytes > HELD_BYTES:
                yield Outcome(reference=reference, content="", result=tuple(held), is_part=True)
                held, held_bytes, given = [], 0, True
    except SourceError as one:
        error = SourceError(one.stage, one.reason, one.detail)
    finally:
        share.free()
    after = _stamps(reference, sources)
    changed = next((path for path in before if before[path] != after[path]), "")
    if changed or (error is not None and error.reason == CHANGED_FILE):
        raise _changed_error(changed or reference.source)
    lasting = error is None or not (share.lacked or error.reason == _OWN_FAULT)
    content = files.content_of(reference) if lasting else ""
    outcome = Outcome(reference=reference, content=content, result=error or tuple(held))
    if error is not None and given:
        raise IncompleteInputError(outcome)
    yield outcome


def _stream_records(
    reference: SourceExample,
    files: SourceFiles,
    converter: StreamingConverter,
    share: Share,
    threads: OrderedThreads,
) -> Iterator[Record]:
    """Yield the records of an input; raise SourceError for every fault of the input."""
    try:
        yield from converter.stream(reference, files, share.reserve_with_margin, threads.map, threads.count)
    except RetryWhenMemoryFree as error:
        # Inputs that are streamed come one at a time, so there is nothing to wait for.
        raise share.lack("has less left; take fewer --workers") from error
    except SourceError:
        raise
    except HalofeedError as error:
        raise JobError(f"{reference.source}: {error}") from error
    except Exception as error:
        raise _stream_reject(error, reference, share) from error


def _stream_reject(error: Exception, reference: SourceExample, share: Share) -> SourceError:
    try:
        return _reject(error, reference, share)
    except RetryWhenMemoryFree:
        return share.lack("has less left; take fewer --workers")


def _changed_error(path: str) -> JobError:
    return JobError(
        f"{path}: was changed while it was converted; run the same command again once nothing writes to it. What is "
        "finished is kept"
    )


def _reject(error: Exception, reference: SourceExample, share: Share) -> SourceError:
    """Return the reject for an error that no reader expects.

    Raises:
        JobError: the system, or a missing library, fails for all inputs alike.
        RetryWhenMemoryFree: there may be enough memory once other inputs are done.
    """
    if is_out_of_memory(error):
        return share.alone_or_never()
    # Crafted or damaged files nest structures, or hold numbers beyond what Python's and NumPy's types take.
    if isinstance(error, RecursionError | OverflowError):
        what = "nesting" if isinstance(error, RecursionError) else "numbers"
        return SourceError("decode", "file is damaged", f"its {what} go beyond all bounds")
    if isinstance(error, ModuleNotFoundError):
        raise JobError(
            f"{reference.source}: {error.name} is not installed; {install_command('convert')}"
        ) from error
    if isinstance(error, OSError) or resource_error(error):
        raise JobError(f"{reference.source}: {type(error).__name__}: {error}") from error
    # One odd file must not end a job of days; the reject asks for a report.
    return SourceError(
        "decode", _OWN_FAULT, f"{type(error).__name__}: {error}; please report it to halofeed with the file"
    )


def input_content(reference: SourceExample, sources: SourceFiles, share: Share) -> str:
    """Return the SHA-256 of an input's content, as indexes have it; "" where a file cannot be read."""
    return _HashedFiles(sources, share).content_of(reference)


def contents_of(
    references: Sequence[SourceExample],
    sources: SourceFiles,
    budget: MemoryBudget,
    threads: OrderedThreads,
    series_folder: str | None,
) -> dict[str, str]:
    """Return the SHA-256 of each reference's content by its source."""

    def content_now(reference: SourceExample) -> str:
        complete = with_members(reference, series_folder)
        return retry_when_memory_free(budget, lambda share: input_content(complete, sources, share))

    digests = threads.map(content_now, references)
    return {one.source: digest for one, digest in zip(references, digests, strict=True)}
