"""Remote store: a data set's files in an object store or on a web server, read in byte ranges through fsspec.

Close ranges are merged into one request, and large ones are split:

    needed       ▇▇  ▇▇▇ ▇      ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇
    requested    └─ one ──┘     └─ one ──┘└─ another ──┘

Each request has a timeout, is retried with growing delays if that may help, and returns exactly the requested number of
bytes. The index's checksums verify these bytes at every transfer.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import os
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import urljoin

from halofeed.errors import CorruptFileError, HalofeedError, StoreError, UsageError, require_extra
from halofeed.loader.store.base import PIECE_BYTES, HeldFile, Item, Piece, RemoteShard, Result, Span
from halofeed.loader.store.web import RangeReader, RefusedRedirectError, WebError, check_redirect
from halofeed.schemas.files import MANIFEST
from halofeed.schemas.limits import INDEX_BYTES, MANIFEST_BYTES
from halofeed.schemas.manifest import Manifest, Shard
from halofeed.schemas.shard_file import CURE
from halofeed.system.addresses import NO_USER, Address, printable_cause, redacted
from halofeed.system.retry import LONGEST_PAUSE_SECONDS, is_final, retry
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
        if found:
            first, (last_name, last_start, last_stop) = found[-1]
            if (
                name == last_name
                and start <= last_stop + GAP_BYTES
                and max(stop, last_stop) - last_start <= most
            ):
                found[-1] = min(first, rank), (name, last_start, max(stop, last_stop))
                continue
            if name == last_name:
                start = max(start, last_stop)
        for begin in range(start, stop, PIECE_BYTES):
            found.append((rank, (name, begin, min(begin + PIECE_BYTES, stop))))
    return [span for _, span in sorted(found, key=lambda one: one[0])]


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
_WEB, _S3, _GCS = ("http", "https"), ("s3", "s3a"), ("gs", "gcs")
_SIGNED_SECONDS = 3600
_UNSIGNED = (400, 401, 403)
"""A store's answers to an address whose signature it does not accept."""
_PACKAGES = ("fsspec", "s3fs", "gcsfs", "aiohttp", "adlfs", "aiobotocore")


class RemoteStore:
    """The files below an address; see `halofeed.loader.store.base.Store`.

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
        if address.has_user and address.scheme in (*_S3, *_GCS):
            raise UsageError(f"{address}: {NO_USER}")
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
            if (found := sizes.get(name)) is None:
                raise CorruptFileError(
                    f"{self.place}/{name}: it is missing, and the manifest names it; {CURE}"
                )
            if found != size:
                raise CorruptFileError(
                    f"{self.place}/{name}: expected {size:,} bytes, found {found:,}; {CURE}"
                )

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
            data = retry(request, _is_transient, RANGE_ATTEMPTS, before_retry=self.count_retry)
        except Exception as error:
            if _is_absent(error):
                raise CorruptFileError(f"{place}: it is missing; {CURE}") from None
            cause = _cause_of(error)
            problem = _described(cause)
            if _is_final(cause):
                raise StoreError(
                    f"{place}: {what} are refused: {problem}{_cure_of(cause)}"
                ) from printable_cause(cause)
            size = None
            with contextlib.suppress(HalofeedError):
                size = self.size(name)
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
        """Return the size of a file in bytes; None if it does not exist."""
        try:
            return self._retried(name, lambda process: process.size(name))
        except FileNotFoundError:
            return None

    def listed(self) -> Mapping[str, int] | None:
        """Return the size in bytes of every file by name; None if the store cannot list files."""
        return self._retried("", lambda process: process.sizes())

    def _sizes(self, names: Sequence[str]) -> dict[str, int]:
        """Return the sizes of those files that exist, from one listing if the store can list."""
        listed = self.listed()
        if listed is not None:
            return {name: listed[name] for name in names if name in listed}
        found = zip(names, self.for_each(self.size, names), strict=True)
        return {name: size for name, size in found if size is not None}

    def _retried(self, name: str, act: Callable[[_Process], Result]) -> Result:
        """Call `act`, and retry if necessary; FileNotFoundError if a file is missing, otherwise StoreError."""
        process = self._here()
        try:
            return retry(lambda: act(process), _is_transient, RANGE_ATTEMPTS, before_retry=self.count_retry)
        except Exception as error:
            if _is_absent(error):
                raise
            cause = _cause_of(error)
            raise StoreError(
                f"{self.place}/{name}: cannot be reached: {_described(cause)}{_cure_of(cause)}"
            ) from printable_cause(cause)

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
        self.number, self._place = os.getpid(), place
        self._is_web, self._signs = place.scheme in _WEB, place.scheme in _S3
        with require_extra("remote", *_PACKAGES):
            try:
                import fsspec

                self._files, self._path = fsspec.core.url_to_fs(
                    place.full, **_options(place, concurrent_reads)
                )
            except ImportError as error:
                # fsspec's message names the package to install.
                raise ModuleNotFoundError(str(error), name=_missing(error)) from error
            except (
                TypeError,
                ValueError,
            ) as error:  # TypeError: a file system that needs settings of its own
                raise UsageError(
                    f"{place}: {error}; expected a local folder, gs://, s3://, http:// or https://"
                ) from printable_cause(error)
        logging.getLogger("fsspec.http").addFilter(_hide_secrets)
        self._files.invalidate_cache()
        if hasattr(self._files, "retries"):
            self._files.retries = 1  # `RemoteStore` retries
        self._path = self._path.rstrip("/")
        self._is_plain = self._is_web and not (
            self._files.client_kwargs or self._files.kwargs or place.has_secrets
        )
        if self._is_web:
            _follow_allowed_redirects(self._files, place.redirects)
        self._web = RangeReader(place.redirects)
        self._signed: dict[str, tuple[str, float]] = {}
        self.executor = ThreadPoolExecutor(concurrent_reads, "halofeed-store")
        self._slots = threading.BoundedSemaphore(concurrent_reads)
        self.answered = 0
        self.lock = threading.Lock()
        self.windows: tuple[FetchWindow, ...] = ()
        self.prefetched: OrderedDict[bytes, FetchWindow] = OrderedDict()

    def request(self, name: str, start: int, stop: int) -> bytes | bytearray:
        """Request bytes of a file once."""
        path = self._below(name)
        if (address := self._address(name, path)) is not None:
            try:
                with self._slots:
                    return self._web.get(address, start, stop, _timeout_seconds(stop - start))
            except WebError as error:
                is_moved = isinstance(error, RefusedRedirectError)  # for example a bucket of another region
                if self._is_web or not (is_moved or error.status in _UNSIGNED):
                    raise
                self._signs = False  # the bucket requires more than a signature
            finally:
                self.answered += 1
        return bytes(self._call("cat_file", path, stop - start, start=start, end=stop))

    def _below(self, name: str) -> str:
        """Return the file system's name of a file."""
        return (self._place / name).full if self._is_web else f"{self._path}/{name}"

    def _address(self, name: str, path: str) -> str | None:
        """Return the address for plain requests; None if only fsspec, with the user's settings, can read the file."""
        if self._is_web:
            return path if self._is_plain else None
        if not self._signs:
            return None
        address, until = self._signed.get(name, ("", 0.0))
        if time.monotonic() > until:
            try:
                address = str(self._files.sign(path, expiration=_SIGNED_SECONDS))
            except Exception:
                self._signs = False
                return None
            self._signed[name] = address, time.monotonic() + _SIGNED_SECONDS / 2
        return address

    def size(self, name: str) -> int | None:
        """Return the size of one file in bytes; FileNotFoundError if it does not exist."""
        size = self._call("info", self._below(name), 0).get("size")
        return None if size is None else int(size)

    def sizes(self) -> dict[str, int] | None:
        """Return the sizes of all files in the folder; None if the store cannot list files."""
        if self._is_web:
            return None
        try:
            entries = self._call("ls", self._path, 0, detail=True)
        except FileNotFoundError:
            return {}
        return {entry["name"].rpartition("/")[2]: int(entry["size"] or 0) for entry in entries}

    def _call(self, method: str, path: str, size: int, **options: Any) -> Any:
        try:
            with self._slots:
                if not self._files.async_impl:
                    return getattr(self._files, method)(path, **options)
                from fsspec.asyn import sync

                call = getattr(self._files, f"_{method}")
                return sync(self._files.loop, call, path, timeout=_timeout_seconds(size), **options)
        finally:
            self.answered += 1


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


def _options(place: Address, concurrent_reads: int) -> dict[str, Any]:
    """Return the file system's options, in addition to the user's settings of fsspec."""
    if place.scheme in _S3:
        wait = {"connect_timeout": REQUEST_SECONDS, "read_timeout": REQUEST_SECONDS}
        once = {"retries": {"total_max_attempts": 1}, "max_pool_connections": concurrent_reads}
        return {"config_kwargs": {**wait, **once}}
    # The web's file system is modified below, so it must not be shared with other users of fsspec.
    return {"skip_instance_cache": True} if place.scheme in _WEB else {}


def _hide_secrets(record: logging.LogRecord) -> bool:
    """Remove secrets of addresses from fsspec's log messages."""
    lines = [record.getMessage()]
    if record.exc_info:
        lines += traceback.format_exception(record.exc_info[1])
    record.msg, record.args, record.exc_info = redacted("\n".join(lines).strip()), None, None
    return True


def _follow_allowed_redirects(files: Any, redirects: Sequence[str]) -> None:
    """Make fsspec follow only those web redirects that `check_redirect` permits."""
    import aiohttp

    async def check(session: object, context: object, redirect: Any) -> None:
        response = redirect.response
        target = response.headers.get("Location") or response.headers.get("URI", "")
        check_redirect(response.status, str(response.url), urljoin(str(response.url), target), redirects)

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(check)
    files.client_kwargs = {
        **files.client_kwargs,
        "trace_configs": [*files.client_kwargs.get("trace_configs", ()), trace],
    }


def _missing(error: ImportError) -> str:
    """Return the name of the package that is not installed."""
    return error.name or next((name for name in _PACKAGES if name in str(error).lower()), "fsspec")


def _timeout_seconds(size: int) -> float:
    """Return the timeout of a request for `size` bytes."""
    return REQUEST_SECONDS + size / (1 << 20)


def _is_absent(error: Exception) -> bool:
    """Return whether a file does not exist; fsspec also reports unreachable web servers as missing files."""
    cause = error.__cause__
    return (
        isinstance(error, FileNotFoundError) and getattr(cause, "status", 404 if cause is None else 0) == 404
    )


def _cause_of(error: Exception) -> Exception:
    """Return the real error: fsspec reports a web server that refuses or does not answer as a missing file."""
    cause = error.__cause__
    return cause if isinstance(error, FileNotFoundError) and isinstance(cause, Exception) else error


def _described(error: Exception) -> str:
    """Return an error as text."""
    return redacted(f"{type(error).__name__}: {error}".rstrip(": "))


def _cure_of(error: Exception) -> str:
    """Return what to do about an error of a store; "" where the error says it."""
    if isinstance(error, RefusedRedirectError | HalofeedError):
        return ""
    if "WRONG_VERSION_NUMBER" in str(error):
        return "; its server has no TLS: write http://"
    if isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403):
        return "; see whether the credentials are valid and allow it (docs/stores.md), and run again"
    return "; see whether the address is right and its server can be reached, and run again"


def _is_transient(error: Exception) -> bool:
    """Return whether another attempt may succeed."""
    return not _is_absent(error) and not _is_final(_cause_of(error))


def _is_final(error: Exception) -> bool:
    """Return whether a retry cannot succeed: missing permission, or a request that the store always refuses."""
    if isinstance(error, RefusedRedirectError):
        return True
    status = getattr(error, "status", None) or vars(error).get("code")
    if isinstance(status, int):
        return is_final(status)
    return isinstance(error, PermissionError | HalofeedError)
