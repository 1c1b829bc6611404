"""Remote store: a data set's files in an object store or on a web server, read in byte ranges.

Close ranges are merged into one request, and large ones are split:

    needed       ▇▇  ▇▇▇ ▇      ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇
    requested    └─ one ──┘     └─ one ──┘└─ another ──┘

Each request has a timeout, is retried with growing delays if that may help, and returns exactly the requested number of
bytes. The index's checksums verify these bytes at every transfer.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from halofeed.loader.store.dataset_store import (
    PIECE_BYTES,
    HeldFile,
    Item,
    Piece,
    RemoteShard,
    Result,
    Span,
    check_size,
)
from halofeed.schemas.file_layout import MANIFEST
from halofeed.schemas.limits import INDEX_BYTES, MANIFEST_BYTES
from halofeed.schemas.manifest import Manifest, Shard
from halofeed.schemas.shard_file import CURE
from halofeed.storage.choose import reader_of
from halofeed.storage.retry import LONGEST_PAUSE_SECONDS, Fault, retry
from halofeed.storage.web import RefusedRedirectError
from halofeed.system.addresses import Address, printable_cause, redacted
from halofeed.system.errors import CorruptFileError, HalofeedError, StoreError, UsageError
from halofeed.system.wording import plural

GAP_BYTES = 128 << 10
"""Unneeded bytes between two ranges that cost less than another request."""
_MIN_REQUEST_BYTES = 1 << 20


def merge_spans(spans: Iterable[Span], concurrent: int) -> list[Span]:
    """Return the ranges to request: close spans merged, large ones split.

    Args:
        spans: the needed bytes, in the order in which they are needed.
        concurrent: number of concurrent requests, over which the bytes are spread.

    Returns:
        Ranges of at most `PIECE_BYTES` that cover all spans without overlap, those needed first at the front.

    >>> merge_spans([("b", 5, 9), ("a", 300_000, 300_010), ("a", 0, 10), ("a", 20, 40)], 4)
    [('b', 5, 9), ('a', 300000, 300010), ('a', 0, 40)]
    """
    order = sorted(
        (name, start, stop, rank) for rank, (name, start, stop) in enumerate(spans) if start < stop
    )
    each = sum(stop - start for _, start, stop, _ in order) // max(1, concurrent)
    most = min(PIECE_BYTES, max(_MIN_REQUEST_BYTES, each))
    found: list[tuple[int, Span]] = []
    for name, start, stop, rank in order:
        if found and (joined := _join(found[-1][1], (name, start, stop), most)):
            found[-1] = min(found[-1][0], rank), joined
            continue
        if found and found[-1][1][0] == name:
            start = max(start, found[-1][1][2])  # bytes that the last range has are not requested twice
        found += [(rank, (name, at, min(at + PIECE_BYTES, stop))) for at in range(start, stop, PIECE_BYTES)]
    return [span for _, span in sorted(found, key=lambda one: one[0])]


def _join(last: Span, span: Span, most: int) -> Span | None:
    """Return one range for two that are close, the later one last; None where that does not save a request."""
    name, start, stop = last
    end = max(stop, span[2])
    is_close = span[0] == name and span[1] <= stop + GAP_BYTES
    return (name, start, end) if is_close and end - start <= most else None


class RequestedPart(NamedTuple):
    """Bytes `start` to before `stop` of a file, which are here or being fetched."""

    start: int
    stop: int
    bytes: Future[bytes | bytearray]


class FetchWindow:
    """Parts that were requested together, by file and offset."""

    def __init__(self) -> None:
        self._parts: dict[str, list[RequestedPart]] = {}

    def add(self, name: str, part: RequestedPart) -> None:
        """Add a part."""
        bisect.insort(self._parts.setdefault(name, []), part, key=lambda one: one.start)

    def find(self, name: str, offset: int) -> RequestedPart | None:
        """Return the part that contains the byte at `offset`."""
        parts = self._parts.get(name, ())
        at = bisect.bisect_right(parts, offset, key=lambda one: one.start) - 1
        return parts[at] if at >= 0 and offset < parts[at].stop else None

    def refetch(
        self, name: str, start: int, stop: int, request: Callable[[str, int, int], RequestedPart]
    ) -> None:
        """Request the parts again that contain any of these bytes."""
        if name in self._parts:
            self._parts[name] = [
                part if part.stop <= start or part.start >= stop else request(name, part.start, part.stop)
                for part in self._parts[name]
            ]

    def cancel(self) -> None:
        """Cancel the requests that have not begun."""
        for parts in self._parts.values():
            for part in parts:
                part.bytes.cancel()


RANGE_ATTEMPTS = 5
REQUEST_SECONDS = 30.0
"""Timeout of a request, plus one second per MiB requested."""
PIECES_AHEAD = 16
"""Concurrent requests while a complete shard is read."""
_MAX_PREFETCHED = 4


class RemoteStore:
    """The files below an address; see `halofeed.loader.store.dataset_store.Store`.

    Memory: the stored bytes of the batch that is being made, and of the next one if batches are read in order.

    Args:
        address: address of the version's folder, such as s3://bucket/cards/1.0.0.
        concurrent_reads: number of concurrent requests.
    """

    fetches = has_windows = is_prefetching = True
    is_checked = False
    attempts = RANGE_ATTEMPTS

    def __init__(self, address: Address, concurrent_reads: int) -> None:
        if concurrent_reads < 1:
            raise UsageError(f"concurrent_reads: expected 1 or more, got {concurrent_reads}")
        self._address, self.place = address, str(address)
        self.threads = self._concurrent = concurrent_reads
        self.retries = 0
        self._process: _Process | None = None
        self._lock = threading.Lock()

    def manifest(self) -> Manifest:
        name = f"{self.place}/{MANIFEST}"
        size = self.size(MANIFEST)
        if size is None:
            raise UsageError(
                f"{name}: there is none; name the folder that `halofeed convert` wrote, <out>/<name>/<version>, "
                "once the conversion has finished"
            )
        if size > MANIFEST_BYTES:
            raise UsageError(f"{name}: expected at most {MANIFEST_BYTES:,} bytes, found {size:,}")
        return Manifest.from_json(bytes(self._get(MANIFEST, 0, size)), name)

    def check_sizes(self, shards: Sequence[Shard]) -> None:
        expected = {shard.file: shard.bytes for shard in shards}
        expected |= {shard.index: shard.index_bytes for shard in shards}
        sizes = self._sizes(list(expected))
        for name, size in expected.items():
            check_size(f"{self.place}/{name}", sizes.get(name), size)

    def read(self, name: str, size: int) -> bytes:
        return bytes(self._get(name, 0, min(size, INDEX_BYTES)))

    def pieces(self, shard: Shard) -> Iterator[Piece]:
        requested: deque[RequestedPart] = deque()
        try:
            for start in range(0, shard.bytes, PIECE_BYTES):
                requested.append(self._request(shard.file, start, min(start + PIECE_BYTES, shard.bytes)))
                if len(requested) == PIECES_AHEAD:
                    yield self.wait_for(shard.file, requested.popleft())
            while requested:
                yield self.wait_for(shard.file, requested.popleft())
        finally:
            for part in requested:
                part.bytes.cancel()

    def source(self, shard: Shard) -> RemoteShard:
        return RemoteShard(lambda: RemoteFile(self, shard))

    def for_each(self, act: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        if len(items) < 2:
            return [act(item) for item in items]
        # Separate threads, because `act` may wait for the threads that make requests.
        with ThreadPoolExecutor(min(self._concurrent, len(items)), "halofeed-each") as executor:
            return list(executor.map(act, items))

    def prefetch(self, key: bytes, spans: Callable[[], list[Span]]) -> None:
        process = self._here()
        if key in process.prefetched:
            return
        needed = spans()
        with process.lock:
            if key not in process.prefetched:
                self.request_spans(window := FetchWindow(), needed)
                process.prefetched[key] = window
            # Batches that were announced and never read, after a jump to another step.
            while len(process.prefetched) > _MAX_PREFETCHED:
                process.prefetched.popitem(last=False)[1].cancel()

    @contextlib.contextmanager
    def window(self, key: bytes, spans: Callable[[], list[Span]]) -> Iterator[None]:
        process = self._here()
        with process.lock:
            window = process.prefetched.pop(key, None)
        if window is None:
            window = FetchWindow()
            self.request_spans(window, spans())
        with process.lock:
            process.windows = (*process.windows, window)
        try:
            yield
        finally:
            with process.lock:
                process.windows = tuple(other for other in process.windows if other is not window)
            window.cancel()

    def invalidate(self, name: str, start: int, stop: int) -> None:
        self.count_retry()
        for window in self._here().windows:
            window.refetch(name, start, stop, self._request)

    def request_spans(self, window: FetchWindow, spans: Sequence[Span]) -> None:
        """Request the spans' bytes, and add the parts to the window."""
        for name, start, stop in merge_spans(spans, self._concurrent):
            window.add(name, self._request(name, start, stop))

    def find(self, name: str, offset: int) -> RequestedPart | None:
        """Return the requested part of a file that contains the byte at `offset`."""
        for window in self._here().windows:
            if (part := window.find(name, offset)) is not None:
                return part
        return None

    def wait_for(self, name: str, part: RequestedPart) -> bytes | bytearray:
        """Return a part's bytes; StoreError if no request is answered within the time of all its attempts."""
        process, most = self._here(), _timeout_seconds(PIECE_BYTES) + LONGEST_PAUSE_SECONDS
        while True:
            answered = process.answered
            try:
                return part.bytes.result(most)
            except CancelledError:
                # The window that requested it was closed before the request began.
                part = self._request(name, part.start, part.stop)
            except TimeoutError:
                # Earlier requests are served first, but some file systems ignore timeouts.
                if process.answered == answered:
                    raise StoreError(
                        f"{self.place}/{name}: no answer within {most:,.0f} s, of bytes {part.start:,} to "
                        f"{part.stop:,} or others; check whether the store can be reached, and run again"
                    ) from None

    def count_retry(self) -> None:
        """Increment `retries`."""
        with self._lock:
            self.retries += 1

    def _request(self, name: str, start: int, stop: int) -> RequestedPart:
        executor = self._here().executor
        return RequestedPart(start, stop, executor.submit(self._get, name, start, stop))

    def _get(self, name: str, start: int, stop: int) -> bytes | bytearray:
        """Return bytes of a file, and retry if necessary.

        Raises:
            StoreError: the store refuses or does not answer; CorruptFileError: the file is missing or too short.
        """
        place, process = f"{self.place}/{name}", self._here()
        what = f"bytes {start:,} to {stop:,}"

        def request() -> bytes | bytearray:
            data = process.request(name, start, stop)
            if len(data) < stop - start:
                raise ConnectionError(f"it was cut off after {plural(len(data), 'byte')}")
            return data

        try:
            data = retry(request, process.files.fault_of, RANGE_ATTEMPTS, before_retry=self.count_retry)
        except Exception as error:
            fault = process.files.fault_of(error)
            if fault is Fault.ABSENT:
                raise CorruptFileError(f"{place}: it is missing; {CURE}") from None
            problem = _described(error)
            if fault is not Fault.TRANSIENT:
                raise StoreError(
                    f"{place}: {what} are refused: {problem}{_cure_of(error, fault)}"
                ) from printable_cause(error)
            size = None
            with contextlib.suppress(HalofeedError):
                size = self.size(name)
            # A server cuts a range at the end of the file, like a connection that breaks off.
            if size is not None and size < stop:
                raise CorruptFileError(
                    f"{place}: it ends at byte {size:,}, and {what} belong to it: it was shortened; {CURE}"
                ) from None
            raise StoreError(
                f"{place}: {what} could not be had in {RANGE_ATTEMPTS} attempts; the last one: {problem}; see "
                "whether the store can be reached, and run again"
            ) from None
        if len(data) > stop - start:
            raise StoreError(
                f"{place}: {plural(len(data), 'byte')} came where {what} were asked for: the server does "
                "not give ranges; "
                "use one that does, or copy the data set to local disk"
            )
        return data

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist, or the server does not say it."""
        return self._retried(name, lambda process: process.size(name))

    def listed(self) -> Mapping[str, int | None] | None:
        """Return the size in bytes of every file by name, None for a folder; None if the store cannot list files."""
        return self._retried("", lambda process: process.sizes())

    def _retried(self, name: str, act: Callable[[_Process], Result | None]) -> Result | None:
        """Return what a request returns, and retry if necessary; None if the file is missing.

        Raises:
            StoreError: the store refuses or does not answer.
        """
        process = self._here()
        try:
            return retry(
                lambda: act(process), process.files.fault_of, RANGE_ATTEMPTS, before_retry=self.count_retry
            )
        except HalofeedError:
            raise
        except Exception as error:
            fault = process.files.fault_of(error)
            if fault in (Fault.ABSENT, Fault.BUCKET):
                return None
            raise StoreError(
                f"{self.place}/{name}: cannot be reached: {_described(error)}{_cure_of(error, fault)}"
            ) from printable_cause(error)

    def _sizes(self, names: Sequence[str]) -> dict[str, int]:
        """Return the sizes of those files that exist, from one listing if the store can list."""
        listed = self.listed()
        # One listing instead of two requests per shard.
        if listed is not None:
            found: Iterable[tuple[str, int | None]] = ((name, listed.get(name)) for name in names)
        else:
            found = zip(names, self.for_each(self.size, names), strict=True)
        return {name: size for name, size in found if size is not None}

    def _here(self) -> _Process:
        """Return this process' connections and threads, which do not survive a fork."""
        process = self._process
        if process is None or process.number != os.getpid():
            if process is not None:
                self._lock = threading.Lock()  # a thread of the parent process may hold it
            with self._lock:
                process = self._process
                if process is None or process.number != os.getpid():
                    process = self._process = _Process(self._address, self._concurrent)
        return process

    def __getstate__(self) -> Mapping[str, Any]:
        raise TypeError("a store is made again in each process")


class _Process:
    """Connections and threads of one process, and their requested windows."""

    def __init__(self, place: Address, concurrent_reads: int) -> None:
        self.number = os.getpid()
        self.files = reader_of(place)
        self.executor = ThreadPoolExecutor(concurrent_reads, "halofeed-store")
        self._slots = threading.BoundedSemaphore(concurrent_reads)
        self.answered = 0
        self.lock = threading.Lock()
        self.windows: tuple[FetchWindow, ...] = ()
        self.prefetched: OrderedDict[bytes, FetchWindow] = OrderedDict()

    def request(self, name: str, start: int, stop: int) -> bytes | bytearray:
        """Request bytes of a file once."""
        try:
            seconds = _timeout_seconds(stop - start)
            with self._slots:
                return self.files.read_once(name, start, stop, seconds)
        finally:
            self.answered += 1

    def size(self, name: str) -> int | None:
        """Request the size of one file once."""
        try:
            with self._slots:
                found = self.files.stat_once(name)
            return None if found is None else found.size
        finally:
            self.answered += 1

    def sizes(self) -> dict[str, int | None] | None:
        """Return the sizes of all files in the folder, None for a folder; None if the store cannot list files."""
        if not self.files.lists_folders:
            return None
        with self._slots:
            entries = sorted(self.files.entries(deep=False), key=lambda entry: entry.path)
            return {name: size for name, size, _ in entries}


class RemoteFile(HeldFile):
    """A shard that is read by requests, or from prefetched parts.

    Its size was compared with the manifest's when the store was opened, and each record is compared with the index.
    """

    is_transferred = True

    __slots__ = ("_file", "_own", "_store")

    def __init__(self, store: RemoteStore, shard: Shard) -> None:
        super().__init__(f"{store.place}/{shard.file}", shard.bytes)
        self._store, self._file = store, shard.file
        self._own: FetchWindow | None = None

    def begin(self, first: int, spans: Callable[[], Sequence[Span]]) -> None:
        """Request a record's bytes, which begin at `first`, unless they were requested with others."""
        if self._find(first) is None:
            self.expect([(start, stop) for _, start, stop in spans()])

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Request byte ranges concurrently; this object keeps them."""
        self._own = self._own or FetchWindow()
        missing = [(self._file, *one) for one in ranges if not self._is_requested(*one)]
        self._store.request_spans(self._own, missing)

    def read_into(self, buffers: Sequence[Any], offset: int, size: int) -> None:
        for buffer in buffers:
            out = memoryview(buffer).cast("B")
            done = 0
            while done < len(out):
                part = self._find(offset + done)
                if part is None:
                    self.expect([(offset + done, offset + len(out))])
                    continue
                begin = offset + done - part.start
                piece = memoryview(self._store.wait_for(self._file, part))[begin : begin + len(out) - done]
                out[done : done + len(piece)] = piece
                done += len(piece)
            offset += len(out)

    def as_array(self) -> None:
        """Return None, because the bytes are not contiguous in memory."""

    def _find(self, offset: int) -> RequestedPart | None:
        own = self._own.find(self._file, offset) if self._own is not None else None
        return own or self._store.find(self._file, offset)

    def _is_requested(self, start: int, stop: int) -> bool:
        while start < stop:
            part = self._find(start)
            if part is None:
                return False
            start = part.stop
        return True


def _timeout_seconds(size: int) -> float:
    """Return the timeout of a request for `size` bytes."""
    return REQUEST_SECONDS + size / (1 << 20)


def _described(error: Exception) -> str:
    """Return an error as text."""
    return redacted(f"{type(error).__name__}: {error}".rstrip(": "))


def _cure_of(error: Exception, fault: Fault) -> str:
    """Return what to do about an error of a store; "" where the error says it."""
    if isinstance(error, RefusedRedirectError | HalofeedError):
        return ""
    # OpenSSL's error for an answer in plain HTTP.
    if "WRONG_VERSION_NUMBER" in str(error):
        return "; its server has no TLS: write http://"
    if fault is Fault.CREDENTIALS:
        return "; see whether the credentials are valid and allow it (docs/stores.md), and run again"
    return "; see whether the address is right and its server can be reached, and run again"
