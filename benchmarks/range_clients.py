"""Compare HTTP clients for the byte ranges of many threads, and clients of Google Cloud Storage, in one run.

    pip install 'halofeed[test]'
    python benchmarks/range_clients.py
    python benchmarks/range_clients.py --gcs

A server in a separate process gives ranges of zeros on loopback to 32 threads. "ours" is `storage/web.py` (http.client
with kept connections), "urllib3" reads into memory as it does, and "urllib3 read" lets the library join the parts. With
`--gcs` fake-gcs-server, which is built at the first time, serves `storage/gcs.py` and google-cloud-storage instead.
Columns: microseconds of processor time of the client and of elapsed time for each request, as medians of the rounds,
and their ratios to "ours" within a round.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
THREADS, SECONDS = 32, 60.0
Read = Callable[[int, int], int]
"""Read a number of bytes from an offset; return how many came."""


def serve() -> None:
    """Serve ranges of 64 MiB; print the port."""
    data = memoryview(bytes(64 << 20))

    def answer(client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        while True:
            while b"\r\n\r\n" not in received:
                if not (more := client.recv(1 << 16)):
                    return
                received += more
            head, _, received = received.partition(b"\r\n\r\n")
            asked = re.search(rb"bytes=(\d+)-(\d+)", head)
            assert asked is not None
            start, stop = int(asked[1]), int(asked[2]) + 1
            lines = ["HTTP/1.1 206 Partial Content", "Content-Type: application/octet-stream", 'ETag: "1"']
            lines += [
                f"Content-Range: bytes {start}-{stop - 1}/{len(data)}",
                f"Content-Length: {stop - start}",
            ]
            client.sendall("\r\n".join([*lines, "", ""]).encode())
            client.sendall(data[start:stop])

    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listener.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


def compare(what: str, ways: Mapping[str, Read], size: int, count: int, rounds: int) -> None:
    """Print the figures of each way for one size."""
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in range(rounds):
            for way in random.sample(list(ways), len(ways)):
                processor, began = time.process_time(), time.perf_counter()
                for got in threads.map(
                    lambda number, read=ways[way]: read(number * 1000, size), range(count)
                ):
                    assert got == size
                elapsed = time.perf_counter() - began
                taken[way].append(((time.process_time() - processor) / count, elapsed / count))
    for way, figures in taken.items():
        columns = [statistics.median(one[column] for one in figures) * 1e6 for column in (0, 1)]
        ratios = [
            statistics.median(
                one[column] / ours[column] for one, ours in zip(figures, taken["ours"], strict=True)
            )
            for column in (0, 1)
        ]
        print(
            f"{what:5} {size >> 10:6} KiB {way:14} {columns[0]:8.0f} us of processor {columns[1]:8.0f} us   "
            f"{ratios[0]:.2f} {ratios[1]:.2f}",
            flush=True,
        )


def web(rounds: int) -> None:
    """Compare http.client and urllib3."""
    import urllib3

    from halofeed.storage.web import RangeReader

    pool = urllib3.PoolManager(maxsize=2 * THREADS, retries=False)
    ours = RangeReader()

    def request(start: int, size: int) -> urllib3.BaseHTTPResponse:
        headers = {"Range": f"bytes={start}-{start + size - 1}", "Accept-Encoding": "identity"}
        limit = urllib3.Timeout(total=SECONDS)
        return pool.request("GET", url, headers=headers, preload_content=False, redirect=False, timeout=limit)

    def into_memory(start: int, size: int) -> int:
        response, data = request(start, size), memoryview(bytearray(size))
        while data and (count := response._fp.readinto(data)):  # type: ignore[attr-defined]
            data = data[count:]
        response.release_conn()
        return size - len(data)

    def joined(start: int, size: int) -> int:
        response = request(start, size)
        size = len(response.read())
        response.release_conn()
        return size

    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/cards.tfrecord-00001-of-00010?X-Amz-Signature=1"
        ways: dict[str, Read] = {
            "ours": lambda start, size: len(ours.get(url, start, start + size, SECONDS)),
            "urllib3": into_memory,
            "urllib3 read": joined,
        }
        try:
            for size, count in ((16 << 10, 1500), (128 << 10, 1000), (1 << 20, 300), (8 << 20, 40)):
                compare("web", ways, size, count, rounds)
        finally:
            server.kill()


def gcs(rounds: int) -> None:
    """Compare our client with google-cloud-storage."""
    import requests
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    from halofeed.storage.gcs import GcsObjects
    from tests.support.engines import gcs as engine

    with tempfile.TemporaryDirectory() as home:
        os.environ.update(engine.start(Path(home)))
        try:
            ours = GcsObjects().at("gs://bucket")
            options = {"api_endpoint": os.environ["STORAGE_EMULATOR_HOST"]}
            client = storage.Client("test", AnonymousCredentials(), client_options=options)
            client._http.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=2 * THREADS))
            bucket = client.bucket("bucket")
            ours.write("large", bytes(16 << 20))

            def read(start: int, size: int) -> int:
                span = {"start": start, "end": start + size - 1}
                blob = bucket.blob("large")
                return len(blob.download_as_bytes(**span, raw_download=True, checksum=None, retry=None))

            def write(number: int, size: int) -> int:
                bucket.blob(f"small/{number}").upload_from_string(bytes(size), retry=None, checksum="crc32c")
                return size

            def write_ours(number: int, size: int) -> int:
                ours.write(f"small/{number}", bytes(size))
                return size

            reads: dict[str, Read] = {
                "ours": lambda start, size: len(ours.read("large", start, start + size)),
                "library": read,
            }
            for size, count in ((16 << 10, 300), (128 << 10, 200), (1 << 20, 100)):
                compare("read", reads, size, count, rounds)
            compare("write", {"ours": write_ours, "library": write}, 64 << 10, 150, rounds)
        finally:
            engine.stop(Path(home))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--gcs", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
    (gcs if options.gcs else web)(options.rounds)


if __name__ == "__main__":
    main()
