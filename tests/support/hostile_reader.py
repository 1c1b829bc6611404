"""Everything that halofeed reads a foreign data set with, in a process of little memory and with a time limit.

python -m tests.support.hostile_reader SOUND SCRATCH KINDS FIRST COUNT reads so many hostile copies of each data set
below SOUND and prints a JSON line for each that ended in anything but an answer or an error of halofeed's own.
"""

import contextlib
import functools
import io
import json
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from halofeed.errors import HalofeedError
from halofeed.inspection.describe_dataset import describe_dataset, describe_record
from halofeed.inspection.html.report import write_report
from halofeed.inspection.serve.record_columns import RecordQuery
from halofeed.inspection.serve.served_set import ServedSet
from halofeed.inspection.verify import verify
from halofeed.loader import Loader
from halofeed.schemas.manifest import read_manifest
from tests.support.hostile_writer import make_hostile
from tests.support.pages import SCRIPT

SECONDS = 120
CPU_SECONDS = 10
MEMORY = 2 << 30
"""Beyond what the process takes before it reads anything."""


class TooLong(BaseException):
    """The time is up."""


def stop(*_: object) -> NoReturn:
    raise TooLong


def load(folder: Path) -> None:
    """Batches of every split, once plain and once with all that can be asked for."""
    manifest = read_manifest(folder)
    for split in list(manifest.splits)[:4]:
        optional = [field.name for field in manifest.fields if field.optional]
        for include in ([], optional):
            with contextlib.suppress(HalofeedError):
                loader = Loader(folder, split=split, batch_size=2, include=include, training=False)
                for step in range(min(4, loader.steps or 0)):
                    with contextlib.suppress(HalofeedError):
                        loader.batch(step)


def records(folder: Path) -> None:
    """The first records of every split, described."""
    for name in list(read_manifest(folder).splits)[:4]:
        for number in range(3):
            with contextlib.suppress(HalofeedError):
                describe_record(folder, f"{name}:{number}")


def plain_report(folder: Path, sources: Path | None = None) -> None:
    """A report, which must run nothing but our script."""
    written = write_report(folder, folder.parent / "report.html", None if sources is None else str(sources))
    text = written.read_text("utf-8").replace(f"<script>{SCRIPT}</script>", "", 1).lower()
    assert "<script" not in text, "the report holds a script"


def served(folder: Path) -> None:
    """Every kind of page that a server sends."""
    pages = ServedSet(folder)
    pages.prepare(threading.Event())
    for query in (RecordQuery(), RecordQuery(text="a", split=0), RecordQuery(label=1)):
        text = pages.records(query, 1).replace(f"<script>{SCRIPT}</script>", "", 1).lower()
        assert "<script" not in text, "a served page holds a script"
    for number in range(min(3, len(pages))):
        for send in (pages.record, lambda number: pages.picture(number, mask=True)):
            with contextlib.suppress(HalofeedError):
                send(number)


READERS: dict[str, Callable[[Path], Any]] = {"manifest": read_manifest, "inspect": describe_dataset}
READERS |= {"loader": load}
READERS |= {"verify": lambda folder: str(verify(folder)), "record": records, "report": plain_report}
READERS |= {"serve": served}


def failures(folder: Path, sources: Path) -> list[str]:
    """What each reader ended with that is no answer and no error of halofeed's own."""
    found = []
    for name, read in {**READERS, "sources": functools.partial(plain_report, sources=sources)}.items():
        signal.alarm(SECONDS)
        began = time.process_time()
        try:
            read(folder)
        except HalofeedError:
            pass
        except TooLong:
            found.append(f"{name}: longer than {SECONDS} s")
        except BaseException as error:
            trace = traceback.extract_tb(error.__traceback__)[-1]
            found.append(f"{name}: {type(error).__name__}: {error!s:.200} at {trace.filename}:{trace.lineno}")
        finally:
            signal.alarm(0)
        if (took := time.process_time() - began) > CPU_SECONDS:
            found.append(f"{name}: took {took:.1f} s of the processor")
    return found


def limit_memory() -> None:
    """From now on the process has little more memory than it has taken so far."""
    with open("/proc/self/status", encoding="ascii") as status:
        taken = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))


def main(sound: str, scratch: str, kinds: str, first: str, count: str) -> None:
    """Read `count` hostile copies of each data set and of each kind (with commas between), from the seed `first` on."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, stop)
    folders = sorted(Path(sound).glob("*/*/1.0.0"))
    assert folders, sound
    for folder in folders:
        wrong = failures(folder, Path(sound) / "sources" / "coco" / "images")
        assert not wrong, (folder, wrong)
    limit_memory()
    for seed in range(int(first), int(first) + int(count)):
        for folder in folders:
            for kind in kinds.split(","):
                copy = Path(scratch) / "set" / "1.0.0"
                copy.parent.mkdir(parents=True)
                said = make_hostile(folder, copy, kind, seed)
                with contextlib.redirect_stderr(io.StringIO()):
                    wrong = failures(copy, Path(sound) / "sources" / "coco" / "images")
                if wrong:
                    told = {"kind": kind, "seed": seed, "said": said, "wrong": wrong}
                    print(json.dumps({"set": folder.parts[-3], **told}))
                shutil.rmtree(copy.parent.parent)
    print(json.dumps({"read": len(folders) * int(count)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
