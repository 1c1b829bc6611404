"""Reading a hostile data set or run ends in an answer or a HalofeedError, soon and in little memory.

Everything that reads a data set (manifest, verify, inspect, report, loader) is tried on sound data sets of each kind
of which one thing is changed and every checksum is right again, in a process with a limit of memory and of time.
"""

import io
import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halofeed.errors import CorruptFileError
from halofeed.inspection.html.run_report import write_run_report
from tests.support.hostile_sets import write_sound_sets
from tests.support.hostile_writer import KINDS
from tests.support.level_rows import levels
from tests.support.run_writer import write_run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound")
    write_sound_sets(root)
    return root


def read(sound: Path, scratch: Path, kinds: str, first: int, count: int) -> list[dict[str, Any]]:
    """What went wrong with so many hostile copies of each data set."""
    command = [sys.executable, "-m", "tests.support.hostile_reader", sound, scratch, kinds, first, count]
    more = {"capture_output": True, "text": True, "check": False, "cwd": Path(__file__).parents[2]}
    done = subprocess.run(list(map(str, command)), **more)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and lines and lines[-1]["read"] >= count, done.stderr[-3000:]
    return lines[:-1]


@pytest.mark.parametrize(("first", "count"), levels(long=[(0, 4)], exhaustive=[(4, 20)]))
def test_what_strangers_made_is_read_or_refused_in_words(sound, tmp_path, first, count):
    assert read(sound, tmp_path / "scratch", ",".join(KINDS), first, count) == []


CONTENTS = ["[" * 200_000, "1" * 5000, '{"step": 1' + "0" * 400 + "}", "[" + "1," * 4_500_000 + "1]"]
PLACED: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "zero": lambda place: place.symlink_to("/dev/zero"),
    "itself": lambda place: place.symlink_to(place.name),
}
PLACED |= {text[:12]: lambda place, text=text: place.write_text(f"{text}\n") for text in CONTENTS}


@pytest.mark.parametrize("file", ["run.json", "log.jsonl", "evaluations.jsonl", "examples/examples.json"])
@pytest.mark.parametrize("what", PLACED)
def test_what_is_no_file_or_no_document_that_a_reader_bears_is_refused_at_once(tmp_path, file, what):
    place = write_run(tmp_path / "run", "detection") / file
    place.unlink()
    PLACED[what](place)
    with pytest.raises(CorruptFileError, match=place.name):
        write_run_report(tmp_path / "run")


@pytest.mark.parametrize("facts", [{"kind": "x"}, {"kind": ["clip"]}, {"kind": "clip"}, {"image_shape": [9]}])
def test_images_of_no_kind_that_is_known_are_refused(tmp_path: Path, facts: dict[str, Any]) -> None:
    file = write_run(tmp_path / "run", "detection") / "run.json"
    document = json.loads(file.read_text())
    document["facts"] |= facts
    file.write_text(json.dumps(document))
    with pytest.raises(CorruptFileError, match=r"run\.json: expected a config, and facts"):
        write_run_report(tmp_path / "run")


def header(shape: str, dtype: str) -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    "array",
    [
        header("(1000000, 1000000, 3)", "|u1"),
        header("(4611686018427387904,)", "<f8"),
        header("(2,)", "|O"),
        header("(2, 2, 3)", "|u1") + bytes(3),
        b"nothing",
        b"",
    ],
    ids=["a terabyte", "2**62", "objects", "cut off", "no array", "empty"],
)
def test_arrays_take_no_more_memory_than_they_have_bytes(tmp_path: Path, array: bytes) -> None:
    folder = write_run(tmp_path / "run", "detection")
    place = min((folder / "examples").glob("*.npz"))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as members:
        members.writestr("image.npy", array)
    place.write_bytes(packed.getvalue())
    with pytest.raises(CorruptFileError, match=place.name):
        write_run_report(folder)


def test_arrays_that_unpack_to_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halofeed.inspection.html.run_gallery.ARRAY_BYTES", 1000)
    folder = write_run(tmp_path / "run", "detection")
    with pytest.raises(CorruptFileError, match="at most 1,000 are read"):
        write_run_report(folder)
