"""What a conversion says that it did is what a slow count of the source and of the output folder finds."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

import halofeed
from halofeed import conversion
from halofeed.pipelines.beam_pipeline import NAMESPACE, WriteShards, build_pipeline
from halofeed.pipelines.convert import Conversion, convert
from halofeed.pipelines.counted_files import CountedFiles
from halofeed.pipelines.heartbeat import start_heartbeat
from halofeed.pipelines.job import JobOptions
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.summary import run_lines
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles
from tests.support.conversions import (
    convert_words,
    draw_folders,
    halofeed_here,
    planned,
    rejected_entries,
    run_convert,
    shard_job,
)

SOURCE = {"images": 24, "broken": 2}
FAR = "--runner=tests.support.far_runner.FarRunner"
RECIPE = Recipe(layout="folders", height=16, width=24, shards=4)


def bytes_of(folder: str | Path, *patterns: str) -> int:
    """The bytes of the files that match, as the system tells them."""
    return sum(path.stat().st_size for pattern in patterns for path in Path(folder).glob(pattern))


def output_bytes(folder: str | Path) -> int:
    """The bytes of all shards and indexes."""
    return bytes_of(folder, "*.tfrecord-*", "_index-*")


def lose(done: Conversion, *numbers: int) -> int:
    """Make a conversion one that was interrupted before these shards were finished; return their bytes."""
    folder = Path(done.folder)
    (folder / "manifest.json").unlink()
    (split,) = done.manifest.splits.values()
    lost = 0
    for number in numbers:
        for name in (split.shards[number].file, split.shards[number].index):
            lost += (folder / name).stat().st_size
            (folder / name).unlink()
    return lost


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_counts_of_a_run_are_those_of_the_folders(source: Path, tmp_path: Path, workers: int) -> None:
    options = {"layout": "folders", "shards": 4, "workers": workers}
    done = run_convert(source, tmp_path, **options)
    found = done.summary
    assert found.bytes_read == bytes_of(source, "*/*.jpg") and found.bytes_written == output_bytes(
        done.folder
    )
    assert (found.records, found.shards, found.shards_kept, found.shards_written) == (22, 4, 0, 4)
    reasons = Counter(f"{entry['stage']}: {entry['reason']}" for entry in rejected_entries(done.folder))
    assert found.rejected == reasons and reasons.total() == 2
    assert found.elapsed_seconds > 0
    assert found.records_per_second == pytest.approx(22 / found.elapsed_seconds)


def test_the_time_of_a_run_counts_the_detection_of_the_layout(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detect = conversion._detect_layout

    def slow(*arguments: Any) -> str:
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 10_000)
        return detect(*arguments)

    clock = time.monotonic
    monkeypatch.setattr(conversion, "_detect_layout", slow)
    summary = halofeed.convert(source, tmp_path, name="set", height=16, width=24).summary
    assert 10_000 < summary.elapsed_seconds < 11_000


def test_a_resumed_run_counts_what_it_wrote_and_all_that_it_read(source: Path, tmp_path: Path) -> None:
    options = {"layout": "folders", "shards": 4}
    first = run_convert(source, tmp_path, **options)
    lost = lose(first, 1, 2)
    again = run_convert(source, tmp_path, **options).summary
    (split,) = first.manifest.splits.values()
    assert again.records == split.shards[1].records + split.shards[2].records
    assert (again.shards_kept, again.bytes_written) == (2, lost)
    assert again.bytes_read == bytes_of(source, "*/*.jpg"), "kept shards are compared with their inputs"
    found = run_convert(source, tmp_path, **options)
    assert found.was_there and found.summary.shards_kept == 4 and found.summary.bytes_written == 0
    assert found.summary.bytes_read in (0, bytes_of(source, "*/*.jpg")), "0 where stamps prove the sources"


def test_a_shard_without_its_index_is_not_one_of_an_earlier_run(source: Path, tmp_path: Path) -> None:
    options = {"layout": "folders", "shards": 4}
    first = run_convert(source, tmp_path, **options)
    lose(first)
    next(Path(first.folder).glob("_index-00003*")).unlink()
    assert run_convert(source, tmp_path, **options).summary.shards_kept == 3


def test_a_replaced_version_keeps_the_shards_whose_inputs_are_unchanged(tmp_path: Path) -> None:
    source = draw_folders(tmp_path / "src", 12)
    options = {"layout": "folders", "shards": 3}
    run_convert(source, tmp_path / "out", **options)
    (source / "hat/0000.jpg").write_bytes((source / "hat/0002.jpg").read_bytes())
    done = run_convert(source, tmp_path / "out", overwrite=True, **options)
    assert done.summary.shards_kept == 2
    assert 0 < done.summary.bytes_written < output_bytes(done.folder)


def test_a_job_on_another_runner_counts_as_a_local_one_also_if_it_repeats_everything(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    local = run_convert(source, tmp_path / "here", layout="folders", shards=4).summary
    for times in ("1", "2"):
        monkeypatch.setenv("FAR_TIMES", times)
        job = JobOptions(source=str(source), out=str(tmp_path / times), name="set")
        far = convert(job, RECIPE, [FAR])
        assert vars(far.summary) | {"elapsed_seconds": 0} == vars(local) | {"elapsed_seconds": 0}
    lost = lose(far, 0)
    capsys.readouterr()
    again = convert(job, RECIPE, [FAR]).summary
    assert (again.shards_kept, again.bytes_written) == (3, lost)
    assert "3 of 4 shards exist from an earlier run" in capsys.readouterr().err
    assert not list(Path(far.folder).glob(".incomplete*")), "the job's own counts are deleted"


def counters(source: Path, folder: Path, *options: str) -> dict[str, int]:
    """The counters of a job that Beam's runner of this process ran."""
    plan, _ = planned(source, folder, RECIPE)
    job = shard_job(RECIPE, plan, source, folder, heartbeat_path=start_heartbeat(OutputFolder(str(folder))))
    pipeline = beam.Pipeline(FnApiRunner(), PipelineOptions(list(options)))
    build_pipeline(pipeline, job, 1)
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(beam.metrics.MetricsFilter().with_namespace(NAMESPACE))["counters"]
    return {one.key.metric.name: one.committed for one in found}


def test_counters_of_a_beam_job_are_the_counts_of_the_folders(source: Path, tmp_path: Path) -> None:
    found = counters(source, tmp_path / "set")
    (reason,) = {f"{entry['stage']}: {entry['reason']}" for entry in rejected_entries(tmp_path / "set")}
    assert found == {
        "shards written": 4,
        "records": 22,
        "rejected": 2,
        f"rejected: {reason}": 2,
        "bytes read": bytes_of(source, "*/*.jpg"),
        "bytes written": output_bytes(tmp_path / "set"),
    }
    again = counters(source, tmp_path / "set")
    found["shards kept"] = found.pop("shards written")
    assert again == found | {"bytes written": 0}


def test_a_retried_bundle_counts_records_and_rejects_once(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beam's runner of this process retries nothing, so the job is run again, as an engine does after a lost worker."""
    written, fails = WriteShards.process, [True]

    def losing(step: WriteShards, element: tuple[str, Iterable[bytes]]) -> Iterator[tuple[int, str]]:
        yield from written(step, element)
        if element[0] == "train/2" and fails:
            raise RuntimeError("worker 2 was lost")

    monkeypatch.setattr(WriteShards, "process", losing)
    with pytest.raises(Exception, match="worker 2 was lost"):
        counters(source, tmp_path / "set")
    fails.clear()
    finished = len(list((tmp_path / "set").glob("_index-*")))
    found = counters(source, tmp_path / "set")
    assert (found["records"], found["rejected"], found["shards kept"]) == (22, 2, finished) and finished > 0
    assert found.get("shards written", 0) == 4 - finished


READS: dict[str, Callable[[CountedFiles, str], int]] = {
    "read": lambda files, path: len(files.read(path)),
    "head": lambda files, path: len(files.head(path, 100)),
    "a head beyond the end": lambda files, path: len(files.head(path, 1 << 20)),
    "a range": lambda files, path: len(files.read_range(path, 7, 19)),
    "a stream": lambda files, path: read_stream(files, path),
    "ranges": lambda files, path: read_ranges(files, path),
}


def read_stream(files: CountedFiles, path: str) -> int:
    with closing(files.open(path)) as stream:
        return sum(map(len, iter(partial(stream.read, 50), b"")))


def read_ranges(files: CountedFiles, path: str) -> int:
    with closing(files.open_ranges(path)) as ranges:
        return len(ranges.read(3, 50)) + len(ranges.read(0, 1 << 20))


@pytest.mark.parametrize("way", READS)
def test_bytes_are_counted_in_every_way_of_reading_and_from_all_threads(source: Path, way: str) -> None:
    files, lengths = CountedFiles(LocalFiles(source)), []
    paths = sorted(str(path.relative_to(source)) for path in source.glob("*/*.jpg"))

    def read() -> None:
        lengths.extend(READS[way](files, path) for path in paths)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lengths) == 4 * len(paths) and files.bytes_read == sum(lengths) > 0


def test_the_command_and_the_function_say_the_same(source: Path, tmp_path: Path) -> None:
    said = halofeed_here(*convert_words(source, tmp_path / "command", shards=4)).stdout
    data = halofeed.convert(
        source, tmp_path / "function", name="set", layout="folders", height=16, width=24, shards=4
    )

    def without_time(text: str) -> str:
        return re.sub(r"[\d.,]+ (s|records/s)\b", r"? \1", text)

    (line,) = [line for line in said.splitlines() if " records/s, " in line]
    assert without_time(line) == without_time(run_lines(data.summary)[0])
    assert f"{data.summary.shards} shards" in said and data.summary.rejected == data.rejected
    assert re.search(rf"{data.summary.records} records", said)


def test_a_resumed_command_says_how_many_shards_it_kept(source: Path, tmp_path: Path) -> None:
    words = convert_words(source, tmp_path, shards=4)
    assert "resumed, " not in halofeed_here(*words).stdout
    lose(run_convert(source, tmp_path, layout="folders", shards=4), 3)
    assert "\n  resumed, 3 of 4 shards kept\n" in halofeed_here(*words).stdout
