"""Times of `halofeed report --serve` over many small records: until the first page, and of pages and searches.

    python benchmarks/serve.py --records 100000

The server runs in a process of its own, as a user starts it. A page is requested as a browser does: the page, then its
48 pictures on four connections. "while reading" is measured before the names and classes of all records are known.
"""

from __future__ import annotations

import argparse
import http.client
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.dataset_writer import draw_examples, write_dataset

_CONNECTIONS = 4
_ROUNDS = 12


class Browser:
    """A client that keeps its connections open."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._root = parts.path
        host = parts.netloc
        self._open = [http.client.HTTPConnection(host) for _ in range(_CONNECTIONS)]
        self._threads = ThreadPoolExecutor(_CONNECTIONS)

    def get(self, place: str, connection: int = 0) -> bytes:
        """Return the content at a place below the server's token."""
        one = self._open[connection]
        one.request("GET", self._root + place)
        answer = one.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{place}: status {answer.status}: {content[:200]!r}")
        return content

    def page(self, place: str) -> tuple[float, float, int]:
        """Request a page and its pictures: seconds of the page, seconds of both, and the number of pictures."""
        begin = time.perf_counter()
        text = self.get(place).decode()
        after_page = time.perf_counter()
        pictures = re.findall(r'src="((?:thumbnail|mask)/\d+)"', text)
        parts = [pictures[at::_CONNECTIONS] for at in range(_CONNECTIONS)]
        list(self._threads.map(lambda one: [self.get(name, one[0]) for name in one[1]], enumerate(parts)))
        return after_page - begin, time.perf_counter() - begin, len(pictures)


def main() -> None:
    """Write a data set, serve it, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--data", type=Path, help="serve this data set; default: a drawn one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        data = given.data or _draw(Path(scratch) / "drawn" / "1.0.0", given.records)
        begin = time.perf_counter()
        command = [sys.executable, "-m", "halofeed", "report", str(data), "--serve"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                address = line.split(" open ")[1].split(" ")[0]
                browser = Browser(address)
                listening = time.perf_counter() - begin
                browser.get("")
                print(
                    f"listening after {listening:.2f} s, first page after {time.perf_counter() - begin:.2f} s"
                )
                _measure(browser, "while reading")
                while b"still running" in browser.get(""):
                    time.sleep(1)
                print(f"all names, classes and suspects known after {time.perf_counter() - begin:.1f} s")
                # The server has closed the connections that were not used meanwhile.
                _measure(Browser(address), "after reading")
            finally:
                process.terminate()
                process.wait()


def _draw(folder: Path, records: int) -> Path:
    counts = {"train": records - records // 10, "test": records // 10}
    examples = draw_examples("detection", counts, shape=(32, 48, 3))
    return write_dataset(folder, examples, task="detection", shards=8)


def _measure(browser: Browser, when: str) -> None:
    last = int(re.findall(r"of ([\d,]+)\s*</form>", browser.get("").decode())[0].replace(",", ""))
    pages = [f"records?page={1 + at * (last - 1) // (_ROUNDS - 1)}" for at in range(_ROUNDS)]
    searches = {"pages": pages}
    searches["search of a name"] = [f"records?text=picture+{at}" for at in range(_ROUNDS)]
    searches["class and name"] = [f"records?class=5&text={at}.jpg" for at in range(_ROUNDS)]
    for name, places in searches.items():
        times = [browser.page(place) for place in places]
        page, both = (sorted(one[at] * 1000 for one in times) for at in (0, 1))
        print(
            f"{when}, {name}: page {statistics.median(page):.0f} ms (most {page[-1]:.0f}), "
            f"with {times[0][2]} pictures {statistics.median(both):.0f} ms (most {both[-1]:.0f})"
        )


if __name__ == "__main__":
    main()
