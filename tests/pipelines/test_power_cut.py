"""Is what was committed still there after a power cut, and does the same command go on where it was not?

Copies of a mounted ext4 device, taken while a conversion writes to it and after, stand for the disk as a power cut
leaves it: what the kernel had not written yet is not in them.
"""

import contextlib
import filecmp
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from halofeed.inspection.verify import verify
from halofeed.pipelines import output_folder
from halofeed.storage import atomic_files
from tests.support.conversions import all_bytes, convert_words, draw_folders, run_convert, start
from tests.support.level_rows import levels

OPTIONS = {"layout": "folders", "shards": 4}


def test_the_manifest_is_named_after_all_it_names_is_on_the_disk(tmp_path, monkeypatch):
    """The order of the system's calls, as strace would show it."""
    draw_folders(tmp_path / "src", 10)
    story: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        story.append(("sync", os.path.realpath(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def note_replace(source: str, target: str) -> None:
        story.append(("rename", os.path.realpath(source)))
        replace(source, target)
        story.append(("as", os.path.realpath(target)))

    monkeypatch.setattr(atomic_files.os, "fsync", note_fsync)
    monkeypatch.setattr(output_folder.os, "replace", note_replace)
    folder = Path(run_convert(tmp_path / "src", tmp_path / "a/b/out", **OPTIONS).folder).resolve()
    committed = story.index(("as", str(folder / "manifest.json")))
    for path in folder.iterdir():
        if path.name != "manifest.json":
            assert story.index(("as", str(path))) < story.index(("sync", str(path))) < committed, path
    assert story[committed - 2] == ("sync", story[committed - 1][1])  # the manifest, under its temporary name
    assert ("sync", str(folder)) in story[:committed]
    assert story[committed + 1] == ("sync", str(folder))
    made = [folder.parents[level] for level in range(4)]
    assert all(("sync", str(above)) in story[:committed] for above in [*made, tmp_path.resolve()])


def run(*words: object) -> None:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{words}: {done.stderr.strip()}")


@contextlib.contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    run("mount", "-o", "loop", image, folder)
    try:
        yield folder
    finally:
        run("umount", folder)


@pytest.fixture
def disk(tmp_path) -> Iterator[tuple[Path, Path]]:
    """An ext4 file system in a file, and where it is mounted."""
    image = tmp_path / "disk.img"
    try:
        with image.open("wb") as file:
            file.truncate(96 << 20)
        run("mkfs.ext4", "-q", image)
        with mounted(image, tmp_path / "disk") as folder:
            yield image, folder
    except OSError as error:
        pytest.skip(f"needs to mount a file system of its own: {error}")


def cut_power(process: subprocess.Popen[str], image: Path, copy: Path) -> None:
    """Copy the device as it is at one moment: while the process stands still, and twice the same."""
    if process.poll() is None:
        process.send_signal(signal.SIGSTOP)
    shutil.copy(image, copy)
    while filecmp.clear_cache() or not filecmp.cmp(image, copy, shallow=False):
        shutil.copy(image, copy)
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)


def begin(source: Path, out: Path, *more: str, **changed: object) -> subprocess.Popen[str]:
    options = {"shards": 4, "height": 160, "width": 160, "workers": 1, **changed}
    return start([*convert_words(source, out, **options), *more], stdout=None, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("cuts", levels(long=[3], exhaustive=[12]))
def test_copies_of_the_device_hold_a_whole_version_or_go_on(tmp_path, disk, cuts):
    image, folder = disk
    draw_folders(tmp_path / "src", 40, side=200)
    # Each cut falls at another moment of a conversion, the last ones after it has ended.
    for number in range(cuts):
        out = folder / f"out{number}"
        process = begin(tmp_path / "src", out)
        if number % 3 == 2:
            while not (out / "set/1.0.0/features.json").exists() and process.poll() is None:
                time.sleep(0.001)
        else:
            assert process.wait() == 0
            time.sleep(number)
        cut_power(process, image, tmp_path / "cut.img")
        ended = process.wait() == 0 and number % 3 != 2
        with mounted(tmp_path / "cut.img", tmp_path / "cut") as cut:
            version = cut / f"out{number}/set/1.0.0"
            if ended or (version / "manifest.json").exists():
                report = verify(version)
                assert report.ok, report
            options = {**OPTIONS, "height": 160, "width": 160}
            run_convert(tmp_path / "src", cut / f"out{number}", **options)
            assert all_bytes(version) == all_bytes(out / "set/1.0.0")
        shutil.rmtree(out)


@pytest.mark.exhaustive
def test_a_power_cut_while_a_version_is_replaced_leaves_one_of_the_two(tmp_path, disk):
    image, folder = disk
    draw_folders(tmp_path / "src", 40, side=200)
    assert begin(tmp_path / "src", folder / "out").wait() == 0
    before = all_bytes(folder / "out/set/1.0.0")
    for number in range(6):
        process = begin(tmp_path / "src", folder / "out", "--overwrite", height=161 + number)
        time.sleep(0.8 + 0.3 * number)
        cut_power(process, image, tmp_path / "cut.img")
        assert process.wait() == 0
        after = all_bytes(folder / "out/set/1.0.0")
        with mounted(tmp_path / "cut.img", tmp_path / "cut") as cut:
            version = cut / "out/set/1.0.0"
            assert verify(version).ok
            assert all_bytes(version) in (before, after)
        before = after
