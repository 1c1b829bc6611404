"""The server of records: every record of a data set is found, and only the browser of its user gets an answer."""

import http.client
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlsplit

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import halofeed
from halofeed.cli import main
from halofeed.errors import UsageError
from halofeed.inspection.record_cards import SEARCHED_KEYS, facts_of
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.serve.record_columns import RecordColumns, RecordQuery
from halofeed.inspection.serve.record_server import RecordServer, hosts_of
from halofeed.inspection.serve.served_set import PER_PAGE, ServedSet, number_in, parse_query
from tests.inspection.test_report import change, make
from tests.inspection.test_report_records import pairs_and_one, plant
from tests.inspection.test_scan_report import make as make_scans
from tests.support.dataset_writer import Drawn, draw_examples, write_dataset
from tests.support.pages import Page, load_in_browser, run_probe

Answer = tuple[int, dict[str, str], bytes]


class Client:
    """A client of one server, which runs in a thread."""

    def __init__(self, server: RecordServer) -> None:
        self.server = server
        self.root = urlsplit(server.address).path
        self.port = server.server_address[1]

    def request(self, target: str, method: str = "GET", host: str | None = None, body: bytes = b"") -> Answer:
        """The status, headers and content of an answer to a raw target, which is not normalized."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(method, target, skip_host=host is not None)
            if host:
                connection.putheader("Host", host)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def page(self, place: str = "") -> str:
        status, _, content = self.request(self.root + place)
        assert status == 200, content
        return content.decode()


Serve = Callable[[Path], Client]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A function that serves a data set; all names are read when it returns."""
    running: list[tuple[RecordServer, threading.Thread]] = []

    def start(folder: Path) -> Client:
        served = ServedSet(folder)
        server = RecordServer(served)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        running.append((server, thread))
        server.wait_until_read()
        return Client(server)

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


def shown(page: str) -> list[str]:
    return re.findall(r"<code>(\w+:\d+)</code>", page)


def test_every_record_is_on_one_page_with_its_picture(tmp_path: Path, serve: Serve) -> None:
    examples = draw_examples("detection", {"train": 100, "test": 30})
    client = serve(write_dataset(tmp_path / "d" / "1", examples, task="detection"))
    pages = [client.page(f"records?page={number}") for number in (1, 2, 3)]
    assert [len(shown(page)) for page in pages] == [PER_PAGE, PER_PAGE, 130 - 2 * PER_PAGE]
    found = [place for page in pages for place in shown(page)]
    assert sorted(found) == sorted([f"train:{n}" for n in range(100)] + [f"test:{n}" for n in range(30)])
    assert 'rel="prev"' not in pages[0] and 'rel="next"' in pages[1] and 'rel="next"' not in pages[2]
    assert shown(client.page("records?page=99")) == shown(pages[2]), "the last page there is"
    assert shown(client.page("")) == shown(pages[0])
    for name in re.findall(r'src="(thumbnail/\d+)"', pages[2])[:3]:
        status, headers, content = client.request(client.root + name)
        assert status == 200 and headers["Content-Type"] == "image/png" and content[1:4] == b"PNG"
    Page(pages[1])


def test_a_search_finds_what_a_slow_search_finds(tmp_path: Path, serve: Serve, monkeypatch) -> None:
    plant(monkeypatch, pairs_and_one)
    examples = draw_examples("detection", {"train": 40, "test": 20})
    folder = write_dataset(tmp_path / "d" / "1", examples, task="detection")
    client = serve(folder)
    reviewed = ReviewedSet(folder)
    by_name = {example.key: example for example in examples}
    records = [(place := reviewed.place(n), by_name[place.source]) for n in range(60)]
    first, second = reviewed.manifest.splits
    assert "9 suspects" in client.page()
    queries: dict[str, Callable[[Any, Drawn], bool]] = {
        "text=Picture+1": lambda place, example: "picture 1" in example.key,
        "class=5": lambda place, example: 5 in example.classes,
        "split=1": lambda place, example: place.split == second,
        "finding=0": lambda place, example: place in (records[0][0], records[59][0]),
        "finding=1": lambda place, example: place == records[3][0],
        "size=0": lambda place, example: True,
        "size=3": lambda place, example: False,
        "class=5&text=jpg&split=0": lambda place, example: (
            5 in example.classes and "jpg" in example.key and place.split == first
        ),
    }
    for query, fits in queries.items():
        expected = [f"{place.split}:{place.number}" for place, example in records if fits(place, example)]
        page = client.page(f"records?{query}")
        assert shown(page) == expected[:PER_PAGE], query
        assert f"{len(expected)} record" in page


def test_a_record_has_a_page_with_its_suspects_and_its_description(tmp_path, serve, monkeypatch):
    plant(monkeypatch, pairs_and_one)
    client = serve(make(tmp_path))
    page = client.page("record/0")
    words = Page(page).words()
    assert "planted copies: 0 of 64 bits differ; with" in words and "(train:13)" in words
    assert "record test:0" in words or "record train:0" in words
    assert 'href="1" rel="next"' in page and 'rel="prev"' not in page


def test_a_page_says_what_could_not_be_searched(tmp_path: Path, serve: Serve, monkeypatch) -> None:
    plant(monkeypatch, lambda reviewed: iter(()))
    words = Page(serve(make(tmp_path)).page()).words()
    assert "No suspects. Not searched: copies, because the data set has no signatures" in words


def test_a_volume_has_its_slices_and_a_mask(tmp_path: Path, serve: Serve) -> None:
    client = serve(make_scans(tmp_path))
    page = client.page("record/0")
    assert 'type="range"' in page and 'class="masks"' in client.page()
    kinds = [client.request(f"{client.root}{kind}/0") for kind in ("thumbnail", "mask")]
    assert [status for status, _, _ in kinds] == [200, 200]
    assert kinds[1][1]["Content-Type"] == "image/png"


def test_only_the_token_opens_a_page_and_only_under_the_servers_own_name(tmp_path, serve):
    client = serve(make(tmp_path))
    token = client.root.strip("/")
    assert len(token) >= 32 and token != serve(make(tmp_path / "b")).root.strip("/")
    for target in ("/", "/records", f"/{token[:-1]}/", f"/{token}x/", f"/{token.upper()}/", "//", "/%00/"):
        status, headers, content = client.request(target)
        assert status == 403 and b"train" not in content, target
        assert token not in str(headers) and token.encode() not in content
    own = f"127.0.0.1:{client.port}"
    assert client.request(client.root, host=own)[0] == 200
    assert client.request(client.root, host=f"localhost:{client.port}")[0] == 200
    for host in ("example.org", f"example.org:{client.port}", "127.0.0.1", "", f"{own}.example.org"):
        status, _, content = client.request(client.root, host=host)
        assert status == 421 and b"train" not in content, host


def test_pictures_with_a_ratio_of_their_own_are_fitted_into_their_frames(tmp_path: Path) -> None:
    folder = make_scans(tmp_path, spacing_mm=(2.0, 0.5, 1.0))
    served = ServedSet(folder)
    page = served.records(RecordQuery(), 1)
    frames = re.findall(r'<a class="(picture[^"]*)"', page)
    assert len(frames) == 6 and all("fitted" in frame.split() for frame in frames)
    assert ".picture.fitted img { object-fit: contain; }" in page
    shapes = {
        mask: cv2.imdecode(np.frombuffer(served.picture(0, mask=mask)[1], np.uint8), 0).shape
        for mask in (False, True)
    }
    assert shapes[False] == shapes[True], "the classes lie over the picture"
    assert (
        "fitted"
        not in re.findall(r'class="(picture[^"]*)"', ServedSet(make(tmp_path)).records(RecordQuery(), 1))[0]
    )


def test_a_picture_and_its_mask_are_drawn_once_for_requests_at_the_same_time(tmp_path: Path) -> None:
    served = ServedSet(make_scans(tmp_path))
    drawn: list[int] = []
    begun, go_on = threading.Semaphore(0), threading.Event()
    draw = served._drawn

    def draw_slowly(drawer: Any, number: int, *args: Any, **more: Any) -> Any:
        drawn.append(number)
        begun.release()
        assert go_on.wait(30)
        return draw(drawer, number, *args, **more)

    served._drawn = draw_slowly  # type: ignore[method-assign]
    with ThreadPoolExecutor(4) as pool:
        first = [pool.submit(served.picture, 0, mask=mask) for mask in (False, True)]
        assert begun.acquire(timeout=30)
        # Another record does not wait for this one.
        other = pool.submit(served.picture, 1, mask=False)
        assert begun.acquire(timeout=30)
        go_on.set()
        assert first[0].result()[1] != first[1].result()[1] and other.result()
    assert sorted(drawn) == [0, 1]


def test_silent_connections_take_few_threads_and_a_short_time(tmp_path, serve, monkeypatch):
    monkeypatch.setattr("halofeed.inspection.serve.record_server._CONNECTIONS", 3)
    monkeypatch.setattr("halofeed.inspection.serve.record_server._RecordHandler.timeout", 1)
    others = answering_threads()
    client = serve(make(tmp_path))
    known = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
    known.request("GET", client.root)
    assert known.getresponse().read()
    silent = [socket.create_connection(("127.0.0.1", client.port), timeout=30) for _ in range(12)]
    assert silent[-1].recv(1) == b"", "there are too many"
    assert len(answering_threads() - others) <= 3
    for one in silent:
        with one:
            assert one.recv(1) == b"", "closed without an answer"
    known.request("GET", client.root)
    assert known.getresponse().status == 200, "a browser that sent the token may be silent for longer"
    known.close()
    for thread in answering_threads() - others:
        thread.join(30)
    again = [http.client.HTTPConnection("127.0.0.1", client.port, timeout=30) for _ in range(3)]
    for one in again:
        one.request("GET", client.root)
        assert one.getresponse().status == 200, "all places are free again"
    for one in again:
        one.close()


def answering_threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if "process_request_thread" in one.name}


def test_a_browser_leaves_port_80_away_and_no_other() -> None:
    assert {"127.0.0.1", "localhost", "localhost:80"} <= hosts_of(80)
    assert hosts_of(8080) == {"127.0.0.1:8080", "localhost:8080"}


@pytest.mark.parametrize("key", ["image/object/class/label", "image/class/label"])
def test_classes_of_another_type_than_integers_are_left_out(tmp_path: Path, serve: Serve, key: str) -> None:
    task = "detection" if "object" in key else "classification"

    def alter(example: Drawn, features: dict[str, Any]) -> dict[str, Any]:
        return {**features, key: np.asarray(features[key], np.float32)}

    client = serve(make(tmp_path, task, alter=alter))
    page = client.page("records?text=jpg")
    assert shown(page) and "read so far" not in page and "still running" not in page
    assert client.request(client.root + "nothing")[0] == 404


def test_any_error_is_answered_in_words_and_the_server_goes_on(tmp_path, serve, monkeypatch):
    def fail(*args: Any) -> Any:
        raise ZeroDivisionError("planted")

    plant(monkeypatch, fail)
    monkeypatch.setattr(RecordColumns, "read", fail)
    client = serve(make(tmp_path))
    words = Page(client.page()).words()
    assert "The search for suspects failed: ZeroDivisionError: planted" in words
    assert "Not all records can be searched: ZeroDivisionError: planted" in words
    monkeypatch.setattr(ServedSet, "record", fail)
    status, headers, content = client.request(client.root + "record/0")
    assert (status, content) == (500, b"ZeroDivisionError: planted\n")
    assert headers["Content-Type"].startswith("text/plain")
    assert client.page()


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_no_method_but_get_is_answered(tmp_path: Path, serve: Serve, method: str) -> None:
    client = serve(make(tmp_path))
    status, headers, _ = client.request(client.root, method, body=b"x=1")
    assert status == 405 and headers["Allow"] == "GET"
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_answers_are_for_this_page_alone(tmp_path: Path, serve: Serve) -> None:
    client = serve(make(tmp_path))
    for place in ("", "record/0", "thumbnail/0", "nothing"):
        _, headers, _ = client.request(client.root + place)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; img-src 'self' data:;")
        assert "frame-ancestors 'none'" in policy and "'unsafe-inline'; script-src 'sha256-" in policy
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers


WRONG_PLACES = ["record/18", "record/-1", "record/1e3", "record/٣", "record/", "record", "thumbnail/../0"]
WRONG_PLACES += ["../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "record/0/../1", "mask/99999999999999999999"]
WRONG_PLACES += ["file:///etc/passwd", "records/", "thumbnail/0%00", "record/0x0", "nothing/0"]


@pytest.mark.parametrize("place", WRONG_PLACES)
def test_places_that_name_no_record_are_not_found(tmp_path: Path, serve: Serve, place: str) -> None:
    client = serve(make(tmp_path))
    target = client.root + quote_plus(place, safe="/.%:-")
    assert client.request(target)[0] == 404


@pytest.mark.parametrize(
    "query",
    [
        "page=0", "page=-1", "page=x", "page=" + "9" * 50, "class=x&split=99&size=250&finding=7",
        "text=" + "a" * 5000, "text=%ff%00%1b%3Cscript%3E", "class=-9223372036854775809", "=&&;=",
    ],
)  # fmt: skip
def test_odd_fields_are_ignored_or_find_nothing(tmp_path: Path, serve: Serve, query: str) -> None:
    client = serve(make(tmp_path))
    page = client.page(f"records?{query}")
    assert "Records" in page and "<script>alert" not in page
    Page(page)
    many = "&".join(f"x{n}=1" for n in range(30))
    assert client.request(f"{client.root}records?{many}")[0] == 400


def test_names_are_never_taken_for_html(tmp_path: Path, serve: Serve) -> None:
    evil = '"><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m'

    def alter(example: Drawn, features: dict[str, Any]) -> dict[str, Any]:
        return {**features, "image/filename": evil.encode() + b"\xff"}

    folder = make(tmp_path, alter=alter)
    change(folder, labels={1: evil, 2: "</style>", 5: '" onload="'})
    client = serve(folder)
    for place in ("", "record/0", "records?text=" + quote_plus(evil)):
        source = client.page(place)
        page = Page(source)
        assert len(page.all("script")) == 1
        assert not [one for _, one in page.elements if {"onload", "onerror"} & one.keys()]
    assert evil.replace("\x1b", "\\x1b") in page.words()
    assert shown(client.page("records?text=" + quote_plus("ALERT(1)")))


def test_a_damaged_record_is_named_and_the_server_goes_on(tmp_path: Path, serve: Serve) -> None:
    folder = make(tmp_path)
    shard = folder / "tiny-train.tfrecord-00000-of-00002"
    data = bytearray(shard.read_bytes())
    data[len(data) - 30] ^= 1
    shard.write_bytes(data)
    client = serve(folder)
    statuses = [client.request(f"{client.root}thumbnail/{number}")[0] for number in range(18)]
    assert statuses.count(500) == 1 and statuses.count(200) == 17
    _, headers, content = client.request(f"{client.root}record/{statuses.index(500)}")
    assert b"tiny-train" in content and headers["Content-Type"].startswith("text/plain")
    assert client.page()


def test_records_are_served_before_the_columns_are_read(tmp_path: Path) -> None:
    served = ServedSet(make(tmp_path))
    page = served.records(RecordQuery(), 1)
    assert len(shown(page)) == 18 and "still running" in page
    page = served.records(RecordQuery(text="jpg"), 1)
    assert "0 records found in the first 0 of 18, which were read so far" in page
    served.prepare(threading.Event())
    assert "read so far" not in served.records(RecordQuery(text="jpg"), 1)
    stopped = threading.Event()
    stopped.set()
    other = ServedSet(make(tmp_path / "b"))
    other.prepare(stopped)
    assert other.columns.known == 0


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> RecordColumns:
    folder = make(tmp_path_factory.mktemp("columns"))
    found = RecordColumns(ReviewedSet(folder))
    found.read(threading.Event(), lambda: None)
    return found


maybe = st.none() | st.integers(0, 7)


@given(st.sampled_from(["", "1", "PICTURE", ".jpg", "zz"]), maybe, maybe, maybe, maybe)
def test_columns_find_the_records_that_fit_every_field(columns, text, split, label, finding, size):
    query = RecordQuery(text=text, split=split, label=label, finding=finding, size=size)
    findings = {3: (0, 2), 17: (1,)}
    reviewed = columns._reviewed
    expected = []
    for number in range(len(reviewed)):
        facts = facts_of(reviewed.small_features(number, SEARCHED_KEYS))
        fits = text.lower() in facts.source.lower()
        fits &= split is None or list(reviewed.manifest.splits).index(reviewed.place(number).split) == split
        fits &= label is None or label in facts.labels
        fits &= finding is None or finding in findings.get(number, ())
        fits &= size is None or facts.size_range == size
        expected += [number] * fits
    assert columns.find(query, findings).tolist() == expected


@given(st.text())
def test_a_number_of_a_form_is_a_small_one_or_none(text: str) -> None:
    found = number_in(text)
    assert found is None or (0 <= found < 10**10 and text.isascii() and int(text) == found)
    assert parse_query({"text": text, "class": text}).label == found


def test_wrong_use_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path)
    for more, words in (
        (["--serve", "--output", "a.html"], "--serve writes no file"),
        (["--serve", "--run", "runs/a"], "--serve shows no label faults"),
        (["--port", "8000"], "only --serve has a port"),
        (["--serve", "--port", "70000"], "expected 0 to 65535"),
    ):
        assert main(["report", str(folder), *more]) == 2
        assert words in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--serve"]) == 2
    with RecordServer(ServedSet(folder)) as taken:
        assert main(["report", str(folder), "--serve", "--port", str(taken.server_address[1])]) == 2
    assert "leave --port away to take a free one" in capsys.readouterr().err
    with pytest.raises(UsageError, match="in a terminal"):
        halofeed.report(folder, serve=True)


def test_the_command_serves_until_a_signal_and_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "halofeed", "report", str(make(tmp_path)), "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            address = urlsplit(process.stdout.readline().split(" open ")[1].split(" ")[0])
            connection = http.client.HTTPConnection(address.netloc, timeout=30)
            connection.request("GET", address.path)
            assert len(shown(connection.getresponse().read().decode())) == 18
            connection.close()
            # Not SIGINT, which a job that a shell started in the background ignores.
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            assert "halofeed report: stopped (SIGTERM)" in process.stderr.read()
        finally:
            process.kill()


@pytest.mark.long
def test_a_browser_shows_served_pages_and_no_other_site_reads_them(tmp_path: Path, serve: Serve) -> None:
    client = serve(make_scans(tmp_path))
    for place in ("", "record/0"):
        document, log = load_in_browser(client.server.address + place, tmp_path)
        assert "CONSOLE" not in log, log
        assert "<h1>" in document
    slider = re.findall(r'<input type="range"[^>]*>', document)[0]
    assert "aria-valuetext" in slider and "hidden" not in slider, "the script ran"
    image = f'<img src="{client.server.address}thumbnail/0">'
    script = """<script>addEventListener("load", () => {
      document.body.dataset.found = JSON.stringify([{width: document.images[0].naturalWidth}]);
    });</script>"""
    (tmp_path / "probe.html").write_text(f"<!doctype html><body>{image}{script}")
    (found,), _ = run_probe((tmp_path / "probe.html").as_uri(), tmp_path)
    assert found == {"width": 0}, "a page of another origin gets no picture, even with the token"
