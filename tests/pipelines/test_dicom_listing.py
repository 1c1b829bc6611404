"""Every DICOM file is looked at once, by whoever works, and this process sees series and not slices."""

import os
import pickle
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

import pydicom
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from halofeed.errors import SourceError
from halofeed.pipelines import convert as convert_module
from halofeed.pipelines.beam_options import RunnerChoice, choose_runner
from halofeed.pipelines.run_distributed import SeriesSearch, find_series_in_job
from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.series import open_series
from halofeed.prep.formats.dicom.series_listing import (
    SeriesListing,
    list_series,
    listing_from_bytes,
    listing_to_bytes,
)
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles
from halofeed.system.checksum import with_checksum
from tests.support.conversions import (
    all_bytes,
    bytes_of,
    convert_words,
    halofeed,
    planned,
    run_convert,
    start,
)
from tests.support.dicom_writer import draw_series
from tests.support.level_rows import levels

OPTIONS: dict[str, Any] = {"layout": "dicom", "depth": 4, "height": 6, "width": 7, "shards": 2}
TABLE = {"layout": "csv", "task": "segmentation"}
PYDICOM = Path(pydicom.data.__file__).parent / "test_files"


def with_table(source: Path) -> Path:
    rows = [f"{folder.name},\n" for folder in sorted(source.iterdir())]
    (source / "rows.csv").write_text("".join(["image,label\n", *rows]))
    return source


def found_in(source: Path, scratch: Path, spread: Callable[..., Iterator[Any]] = map) -> SeriesListing:
    search = SeriesSearch(source=str(source), policy=SeriesPolicy(salt="s"), below=(), folder=str(scratch))
    return find_series_in_job(LocalFiles(source), search, spread)["."]


@pytest.mark.parametrize("more", [{}, TABLE], ids=["folder", "table"])
def test_each_header_is_parsed_once_and_each_file_opened_once_before_its_pixels(tmp_path, monkeypatch, more):
    source = with_table(draw_series(tmp_path / "source", 3, 5))
    opened: Counter[tuple[str, str]] = Counter()
    parsed = []

    def counted(name: str) -> None:
        method = getattr(LocalFiles, name)

        def call(self: LocalFiles, path: str, *more: Any) -> bytes:
            opened[name, path] += 1
            return method(self, path, *more)

        monkeypatch.setattr(LocalFiles, name, call)

    class Walk(headers._ElementParser):
        def data_set(self, offset: int, end: int | None, depth: int) -> Any:
            parsed.extend([offset] if depth == 0 else [])
            return super().data_set(offset, end, depth)

    counted("head")
    counted("read")
    monkeypatch.setattr(headers, "_ElementParser", Walk)
    done = run_convert(source, tmp_path / "out", workers=1, **OPTIONS | more)
    assert done.manifest.splits["train"].records == 3
    files = [path for path in LocalFiles(source).sizes() if path.startswith("patient")]
    assert len(files) == len(parsed) == 15
    assert [opened["head", path] for path in files] == [1] * 15
    assert max(opened["read", path] for path in files) <= 2, "the middle slice shows what padding holds"


def test_what_comes_to_this_process_does_not_grow_with_the_slices(tmp_path):
    received = {}
    for slices in (5, 50):
        source = draw_series(tmp_path / f"source {slices}", 6, slices)
        scratch = tmp_path / f"scratch {slices}"
        seen: Counter[str] = Counter()

        def spread(function: Callable[[Any], Any], items: Iterable[Any], seen=seen) -> Iterator[Any]:
            for item in items:
                given = function(item)
                seen["bytes"] += len(pickle.dumps(item)) + len(pickle.dumps(given))
                yield given

        def find(*_: Any, source=source, scratch=scratch, spread=spread) -> dict[str, SeriesListing]:
            return {".": found_in(source, scratch, spread)}

        plan, references = planned(source, tmp_path / "out", Recipe(**OPTIONS), find)
        assert plan.totals.convertible == 6
        received[slices] = seen["bytes"], sum(map(len, references))
    for few, many in zip(received[5], received[50], strict=True):
        assert few < 20_000 and many < 1.15 * few


@pytest.mark.parametrize("source", ["drawn", "pydicom"])
def test_in_steps_the_same_is_found_as_at_once(tmp_path, source):
    folder = draw_series(tmp_path / "in", 3, 4) if source == "drawn" else PYDICOM
    at_once = list_series(LocalFiles(folder), SeriesPolicy(salt="s"))["."]
    in_steps = found_in(folder, tmp_path / "s")
    assert len(in_steps.series) >= 3 and in_steps.named == at_once.named
    some, others = ([(replace(x, error=None), str(x.error)) for x in s.apart] for s in (in_steps, at_once))
    assert some == others
    series = [replace(one, members=()) for one in at_once.series]
    assert [replace(one, stored=None) for one in in_steps.series] == series
    for one, whole in zip(in_steps.series, at_once.series, strict=True):
        assert one.stored is not None
        images = listing_from_bytes((tmp_path / "s" / one.stored[0]).read_bytes())
        assert [path for path, _ in images] == sorted(whole.members)


@pytest.mark.parametrize("more", levels({}, long=[TABLE]))
def test_another_runner_gives_the_same_bytes(tmp_path, monkeypatch, more):
    source = with_table(draw_series(tmp_path / "source", 3, 5))
    (source / "patient 1" / "report.dcm").write_bytes(b"no DICOM")
    (source / "patient 2" / "loop").symlink_to(source)
    options = OPTIONS | more
    expected = [bytes_of(source, tmp_path / f"{n} workers", workers=n, **options) for n in (1, 2)]

    def elsewhere(*given: Any) -> RunnerChoice:
        return replace(choose_runner(*given), local=False, runner=FnApiRunner(), workers=0, memory_bytes=None)

    monkeypatch.setattr(convert_module, "choose_runner", elsewhere)
    done = run_convert(source, tmp_path / "elsewhere", **options)
    assert done.manifest.rejected == {
        "read: damaged file among the slices": 1,
        "selection: link to a folder in which it lies": 1,
    }
    assert expected == [all_bytes(Path(done.folder))] * 2
    assert run_convert(source, tmp_path / "elsewhere", **options).was_there
    assert all_bytes(Path(done.folder)) == expected[0]


@pytest.mark.parametrize("number", levels(long=[signal.SIGTERM], exhaustive=[signal.SIGKILL]))
def test_a_run_that_ends_while_it_lists_leaves_nothing_and_the_next_gives_the_same_bytes(tmp_path, number):
    source, scratch = draw_series(tmp_path / "source", 15, 20), tmp_path / "scratch"
    scratch.mkdir()
    expected = bytes_of(source, tmp_path / "expected", workers=1, **OPTIONS)
    words = convert_words(source, tmp_path / "out", workers=2, **OPTIONS)
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with start(words, env=environment) as process:
        while process.poll() is None and not glob(f"{scratch}/*/*/series/headers-*"):
            time.sleep(0.002)
        process.send_signal(number)
        process.communicate()
    assert process.returncode != 0
    assert not (tmp_path / "out/set/1.0.0/manifest.json").exists()
    done = halofeed(*words, env=environment)  # whose temporary folder is the same
    assert done.returncode == 0, done.stderr
    assert not list(scratch.iterdir())
    assert all_bytes(tmp_path / "out/set/1.0.0") == expected


def test_a_file_that_has_changed_since_it_was_listed_is_not_read(tmp_path):
    source = draw_series(tmp_path / "in", 1, 3)
    files = LocalFiles(source)
    scan = open_series(files, files.sizes())
    path = next(source.rglob("*.dcm"))
    path.write_bytes(path.read_bytes().replace(b"1.2.1", b"1.2.9"))
    with pytest.raises(SourceError, match=r"file has changed since it was listed \(.*dcm"):
        scan.read()


def test_a_file_of_slices_makes_nothing_else(tmp_path):
    assert listing_from_bytes(listing_to_bytes([("a", 1.5)])) == [("a", 1.5)]
    with pytest.raises(pickle.UnpicklingError, match="system is not allowed in this pickle"):
        listing_from_bytes(with_checksum(b"cposix\nsystem\n(S'true'\ntR."))
    with pytest.raises(pickle.UnpicklingError, match="its checksum is wrong"):
        listing_from_bytes(listing_to_bytes(1.5)[:-1])
