"""Measure loading beside other loaders and this host's ceilings, on the same data, in one run.

    pip install --constraint requirements.lock '.[all,peers]'
    python benchmarks/loading.py
    python benchmarks/loading.py --quick --only raw

MosaicML Streaming allows NumPy before 2.2 only. To include it, install '.[all,peers,mosaic]' without the constraint
into a separate environment.

Every loader shuffles over all records and gives whole batches in this process's memory. The data are converted by
`halofeed convert`, and written from that by each loader's own writer; they are in the page cache. "packed" are the same
records, converted with --encoding packed. Each loader runs in a separate process, which waits while the others are
measured. A figure is the median of the rounds. Each round begins with a new iterator and some batches that are not
counted; the loaders take turns. GB count what is shown of the records' pixels, whatever a loader makes of them.
"of memcpy" is beside one thread's copy of as many bytes into warm memory, "of decoding" beside decoding alone on all
cores; "bare windows" is what the copies of crops and flips take alone, on all cores. Pictures are photographs where
there are some (`--photographs`), else drawn. Peers' JPEG files are decoded by simplejpeg, as ours, but tf.data's by
TensorFlow; "differs by" says by how many of 255 levels pixels differ.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import far_step
import from_disk
import gather
import numpy as np
import volumes
from peers import DECODE, FAST, MEMCPY, OURS, PACKED, PACKED_FIRST, PEERS, WINDOWS, Peer
from peers.common import CASES, Case, serve

HERE = Path(__file__).resolve().parents[1]
PATIENCE_SECONDS = 180


# The data -------------------------------------------------------------------------------------------------


def make_source(data: str, count: int, folder: Path, photographs: Path) -> None:
    """Make and convert so many examples, and lay them out for the peers to write their own of."""
    drawn = folder / "drawn"
    if data == "blocks":
        # A drawn scan: its noise is like a scanner's, so that packed records have a size like those of scans.
        gather.draw_scans(drawn, gather.BLOCK, count, volumes.draw_volume(gather.BLOCK))
    else:
        gather.draw_or_link(drawn, count, photographs)
    options = "blocks" if data == "blocks" else "photographs"
    kinds = {"set": "jpeg"} if data == "photographs" else {"set": "raw", "packed": "packed"}
    for name, encoding in kinds.items():
        out = folder / f"converted-{encoding}"
        gather.convert_one(options, drawn, out, HERE, encoding=encoding)
        (folder / name).symlink_to(out / options / "1.0.0")
    shutil.rmtree(drawn)
    export(data, folder)


def export(data: str, folder: Path) -> None:
    """The converted records as `peers.common.Source` reads them."""
    from halofeed.loader import Loader

    loader = Loader(folder / "set", batch_size=1)
    count = loader.num_records
    if data == "photographs":
        ends = [0]
        with (folder / "jpeg.bin").open("wb") as stream:
            for number in range(count):
                features = loader.stored(number).features(frozenset(["image/encoded"]))
                stream.write(features["image/encoded"][0])
                ends.append(stream.tell())
        np.save(folder / "jpeg_ends.npy", np.array(ends))
        return
    arrays = {}
    for key in ("image", "label") if data == "blocks" else ("image",):
        spec = loader.row_spec[key]
        path = folder / f"{key}.npy"
        arrays[key] = np.lib.format.open_memmap(path, "w+", spec.dtype, (count, *spec.shape))
    for number in range(count):
        record = loader.records[number]
        for key, array in arrays.items():
            array[number] = record[key]


# The processes --------------------------------------------------------------------------------------------


class Worker:
    """A peer's processes for one case, stopped between rounds; `error` says why it gives nothing more."""

    def __init__(self, peer: Peer, case_name: str, source: Path, scratch: Path) -> None:
        self.error, self.reason, self.difference = "", "", 0
        self.rates: list[float] = []
        self.setting: dict[str, Any] = {}
        log = scratch / f"{peer.module}.log"
        arguments = [peer.module, case_name, str(source), str(scratch / peer.module)]
        arguments += [",".join(peer.packages), str(peer.warm_batches)]
        with log.open("a") as stream:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--serve", *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, text=True, bufsize=1,
                env={**gather.environment(HERE), "OMP_NUM_THREADS": "1"}, start_new_session=True,
            )  # fmt: skip
        self.versions = self._answer(10 * PATIENCE_SECONDS).get("versions", {})

    def round(self, setting: dict[str, Any], seconds: float) -> float:
        """Rows a second of one round; 0 where the process is gone."""
        if self.error:
            return 0.0
        try:
            os.killpg(self._process.pid, signal.SIGCONT)
            print(json.dumps({"setting": setting, "seconds": seconds}), file=self._process.stdin, flush=True)
        except (BrokenPipeError, ProcessLookupError):
            self.error = "the process ended"
            return 0.0
        answer = self._answer(PATIENCE_SECONDS)
        if not self.error:
            os.killpg(self._process.pid, signal.SIGSTOP)
        self.difference = max(self.difference, answer.get("difference", 0))
        self.reason = answer.get("reason", self.reason)
        return float(answer.get("rows", 0.0))

    def end(self) -> None:
        """End the process and those that it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
        self._process.wait()

    def _answer(self, seconds: float) -> dict[str, Any]:
        answers = self._process.stdout
        assert answers is not None
        ready, _, _ = select.select([answers], [], [], seconds)
        line = answers.readline() if ready else ""
        answer: dict[str, Any] = json.loads(line) if line else {}
        if not answer:
            code = self._process.poll()
            self.error = f"no answer in {seconds} s" if not ready else f"the process ended ({code})"
        self.error = answer.get("error", self.error)
        if self.error:
            self.end()
        return answer


# The table ------------------------------------------------------------------------------------------------


def measure(case_name: str, names: list[str], source: Path, scratch: Path, given: Any) -> dict[str, Worker]:
    """Each peer's rates of all rounds, in turn, with the best of its settings."""
    workers: dict[str, Worker] = {}
    try:
        for name in names:
            print(f"  {case_name}: {name}", file=sys.stderr, flush=True)
            peer = PEERS[name]
            worker = workers[name] = Worker(peer, case_name, source, scratch)
            trials = [worker.round(setting, given.seconds / 2) for setting in peer.settings]
            worker.setting = peer.settings[int(np.argmax(trials))]
        for number in range(given.rounds):
            for name in names[:: 1 if number % 2 else -1]:
                worker = workers[name]
                worker.rates.append(worker.round(worker.setting, given.seconds))
    finally:
        for worker in workers.values():
            worker.end()
    for worker in workers.values():
        if not worker.error and statistics.median(worker.rates) == 0:
            worker.error = worker.reason
    return workers


def print_case(case: Case, workers: dict[str, Worker], count: int) -> None:
    """The case's part of the table."""
    unit = 1.0 if case.is_encoded else case.row_bytes / 1e9
    head = "images/s" if case.is_encoded else "GB/s"
    rates = {
        name: statistics.median(worker.rates) * unit for name, worker in workers.items() if not worker.error
    }
    ceiling, ours = rates.get(DECODE if case.is_encoded else MEMCPY), rates.get(OURS)
    print(f"\n{case.title}; batches of {case.batch_size}, {count:,} records")
    print(f"{'':<33}{head:>9} {'of decoding' if case.is_encoded else 'of memcpy':>12} {'ours is':>9}")
    for name, worker in workers.items():
        if worker.error:
            print(f"{name:<33}{'-':>9}  {worker.error[:160]}")
            continue
        line = f"{name:<33}{rates[name]:>9.2f}" if unit < 1 else f"{name:<33}{rates[name]:>9,.0f}"
        line += f" {rates[name] / ceiling:>12.2f}" if ceiling else f" {'':>12}"
        is_peer = PEERS[name].module != "ceilings" and not PEERS[name].is_ours
        line += f" {ours / rates[name]:>8.2f}x" if ours and is_peer else f" {'':>9}"
        setting = ", ".join(f"{key} {value}" for key, value in worker.setting.items() if key != "way")
        if worker.difference:
            setting += f"{', ' if setting else ''}differs by {worker.difference}"
        print(f"{line}  {setting}".rstrip())


def print_peers(versions: dict[str, dict[str, str]]) -> None:
    """Which versions were measured, and how each was called."""
    print(f"\nPython {sys.version.split()[0]}, {os.cpu_count()} cores")
    for name, found in versions.items():
        said = ", ".join(f"{package} {version}" for package, version in found.items())
        print(f"{name}: {PEERS[name].command}; {said}")


def chosen(case_name: str, only: str) -> list[str]:
    """The rows of a case: all but those of another kind."""
    case = CASES[case_name]
    special = {
        MEMCPY: not case.is_encoded,
        WINDOWS: bool(case.crop),
        DECODE: case.is_encoded,
        FAST: case.is_encoded,
        PACKED: not case.is_encoded,
        PACKED_FIRST: not case.is_encoded,
    }
    wanted = [name for name in PEERS if not only or only in name or name in special or name == OURS]
    return [name for name in wanted if special.get(name, True)]


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=[*CASES, "resume"], action="append", help="cases; all unless said")
    parser.add_argument("--peers", default="", help="only loaders whose names hold this, beside halofeed's")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round, at least")
    parser.add_argument("--pictures", type=int, default=1280, help="raw ones and JPEG files")
    parser.add_argument("--volumes", type=int, default=128)
    parser.add_argument(
        "--photographs",
        type=Path,
        default=gather.PHOTOGRAPH_FOLDER,
        help="folder of photographs; pictures are drawn where there are none",
    )
    parser.add_argument(
        "--larger-than-memory",
        type=float,
        metavar="GB",
        help="so much raw data from the disk too; 1.3 of memory",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a quarter of the data, half of the time",
    )
    parser.add_argument("--scratch", type=Path, help="folder for the files, some 18 GB; --quick 5 GB")
    given = parser.parse_args()
    if given.quick:
        given.pictures, given.volumes, given.seconds = 320, 64, 1.0
    versions: dict[str, dict[str, str]] = {}
    cases = [name for name in CASES if name in (given.only or CASES)]
    for data in dict.fromkeys(CASES[name].data for name in cases):
        count = given.volumes if data == "blocks" else given.pictures
        with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
            source = Path(scratch) / "source"
            source.mkdir()
            make_source(data, count, source, given.photographs)
            for name in (name for name in cases if CASES[name].data == data):
                workers = measure(name, chosen(name, given.peers), source, Path(scratch), given)
                print_case(CASES[name], workers, count)
                versions |= {row: worker.versions for row, worker in workers.items() if worker.versions}
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        if not given.only or "resume" in given.only:
            print(f"\n{far_step.report(Path(scratch), given.rounds)}")
        if given.larger_than_memory:
            print(f"\n{from_disk.report(Path(scratch), given.larger_than_memory, given.rounds, 5.0)}")
    print_peers(versions)


if __name__ == "__main__":
    main()
