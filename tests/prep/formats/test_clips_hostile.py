"""Hostile and broken clips take no memory, open no other file, write nothing to the terminal and end no process."""

import os
import random
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from halofeed.errors import SourceError
from halofeed.prep.formats.clip.clip_formats import open_clip
from halofeed.prep.formats.clip.opened_clip import FrameOptions
from halofeed.prep.sources.files import LocalFiles
from halofeed.system.memory import MEBIBYTE, with_margin
from tests.support.level_rows import others
from tests.support.memory_cases import png_chunk
from tests.support.memory_probe import measure
from tests.support.numbered_clips import (
    VIDEOS,
    box,
    with_index_first,
    write_animation,
    write_frames,
    write_video,
)

ROOT = Path(__file__).resolve().parents[3]
SIDE = 100_000
LARGE = (720, 1280)


def read_whole(folder: str, name: str) -> tuple[int, int]:
    """What a clip says that reading takes, after it was read: (held bytes, bytes of a frame)."""
    clip = open_clip(LocalFiles(folder), name)
    for _ in clip.read(range(clip.frames)):
        pass
    return clip.held_bytes, clip.frame_bytes


def element(identifier: str, payload: bytes) -> bytes:
    """An element of a Matroska file, its id in hexadecimal digits."""
    return bytes.fromhex(identifier) + (len(payload) | 1 << 28).to_bytes(4, "big") + payload


def webm_of_size(side: int) -> bytes:
    """A WebM file of one frame, which is no frame, of side x side pixels."""
    sides = element("b0", side.to_bytes(3, "big")) + element("ba", side.to_bytes(3, "big"))
    track = element("d7", b"\1") + element("83", b"\1") + element("86", b"V_VP8") + element("e0", sides)
    cluster = element("e7", b"\0") + element("a3", b"\x81\0\0\x80" + bytes(30))
    tracks = element("1654ae6b", element("ae", track))
    header = element("1a45dfa3", element("4282", b"webm"))
    return header + element("18538067", tracks + element("1f43b675", cluster))


def header_bombs(folder: Path) -> dict[str, bytes]:
    """Files whose headers claim up to 100,000 x 100,000 pixels."""
    mp4 = bytearray(write_video(folder / "w.mp4", "mp4v"))
    struct.pack_into(">HH", mp4, box(mp4, b"stsd")[0] + 8 + 8 + 32, 65535, 65535)
    avi = bytearray(write_video(folder / "w.avi", "MJPG"))
    struct.pack_into("<ii", avi, avi.index(b"strf") + 12, SIDE, -SIDE)
    gif = bytearray(write_animation(folder / "w.gif", range(3)))
    struct.pack_into("<HH", gif, 6, 65535, 65535)
    png = write_animation(folder / "w.png", range(3))
    head = struct.pack(">II", SIDE, SIDE) + png[24:29]
    webp = bytearray(write_animation(folder / "w.webp", range(3)))
    webp[24:30] = b"\xff\xff\xff" * 2
    return {
        "mp4": bytes(mp4),
        "avi": bytes(avi),
        "webm": webm_of_size(SIDE),
        "gif": bytes(gif),
        "png": png[:8] + png_chunk(b"IHDR", head) + png[33:],
        "webp": bytes(webp),
    }


def test_headers_of_huge_frames_are_refused_before_anything_is_made(tmp_path):
    for name, data in header_bombs(tmp_path).items():
        (tmp_path / "bomb").write_bytes(data)
        with pytest.raises(SourceError) as caught:
            open_clip(LocalFiles(tmp_path), "bomb")
        assert caught.value.reason == "more pixels than allowed", name
        measured = measure(read_whole, str(tmp_path), "bomb", warm=(str(tmp_path), "w.mp4"))
        assert "more pixels than allowed" in measured.result and measured.peak_bytes < 4 * MEBIBYTE, name


KINDS = [*VIDEOS, ("gif", ""), ("webp", ""), ("png", "")]


@pytest.mark.parametrize(("extension", "codec"), others(KINDS, [VIDEOS[0], ("gif", "")]))
def test_what_reading_takes_is_said_before(tmp_path, extension, codec):
    random, small = np.random.default_rng(7), "small.avi" if codec else f"small.{extension}"
    if codec:
        drawn = cv2.resize(random.integers(0, 256, (45, 80, 3)).astype(np.uint8), LARGE[::-1])
        write_frames(tmp_path / f"w.{extension}", codec, [np.roll(drawn, number, 1) for number in range(6)])
        write_video(tmp_path / small, "MJPG")
    else:
        noise = random.integers(0, 256, (4, *LARGE, 4)).astype(np.uint8)
        first, *more = (Image.fromarray(frame) for frame in noise)
        first.save(tmp_path / f"w.{extension}", save_all=True, append_images=more, duration=40)
        write_animation(tmp_path / small, range(3))
    measured = measure(read_whole, str(tmp_path), f"w.{extension}", warm=(str(tmp_path), small))
    assert measured.peak_bytes <= with_margin(sum(measured.result))


@pytest.mark.parametrize("extension", ["mp4", "avi", "webm", "gif"])
def test_a_clip_that_may_not_take_its_memory_is_refused_undecoded(tmp_path, monkeypatch, extension):
    if extension == "gif":
        write_animation(tmp_path / "w.gif", range(3))
    else:
        write_video(tmp_path / f"w.{extension}", {"mp4": "mp4v", "avi": "MJPG", "webm": "VP80"}[extension])
    monkeypatch.setattr(cv2, "VideoCapture", None)
    asked = []

    def reserve(byte_count):
        asked.append(byte_count)
        if len(asked) == 2:
            raise SourceError("decode", "takes too much memory")

    with pytest.raises(SourceError, match="takes too much memory"):
        open_clip(LocalFiles(tmp_path), f"w.{extension}", options=FrameOptions(reserve=reserve))
    assert asked[1] > asked[0] >= (tmp_path / f"w.{extension}").stat().st_size


@pytest.mark.parametrize(
    "data",
    [
        b"#EXTM3U\n#EXTINF:1,\n{secret}\n",
        b"ffconcat version 1.0\nfile {secret}\n",
        b"#EXTftyp\n#EXTINF:1,\n{secret}\n",
        b"\0\0\0\x10ftypisom\0\0\0\0#EXTM3U\n#EXTINF:1,\n{secret}\n",
        b"RIFF\xff\xff\0\0AVI #EXTM3U\n{secret}\n",
        b"\x1a\x45\xdf\xa3#EXTM3U\n{secret}\n",
        b"<?xml version='1.0'?><MPD><BaseURL>{secret}</BaseURL></MPD>",
    ],
)
def test_nothing_that_names_other_files_comes_to_ffmpeg(tmp_path, monkeypatch, data):
    write_video(tmp_path / "secret.mp4", "mp4v")
    monkeypatch.setattr(cv2, "VideoCapture", None)
    for name in ("list.mp4", "frame%03d.avi", "concat:a|b.webm"):
        (tmp_path / name).write_bytes(data.replace(b"{secret}", os.fsencode(tmp_path / "secret.mp4")))
        with pytest.raises(SourceError):
            open_clip(LocalFiles(tmp_path), name)


def test_names_that_mean_something_to_ffmpeg_are_names(tmp_path):
    data = write_video(tmp_path / "w.mp4", "mp4v", 3)
    for name in ("frame%03d.mp4", "concat:a|b.mp4", "-i.mp4", "http:x.mp4"):
        (tmp_path / name).write_bytes(data)
        assert open_clip(LocalFiles(tmp_path), name).frames == 3


def test_one_thread_decodes_and_several_clips_at_once_give_the_same_bytes(tmp_path):
    for extension, codec in VIDEOS:
        write_video(tmp_path / f"{codec}.{extension}", codec)
    names = [f"{codec}.{extension}" for extension, codec in VIDEOS]

    def digest(name):
        clip = open_clip(LocalFiles(tmp_path), name)
        return [frame.tobytes() for frame in clip.read(range(clip.frames))]

    alone = [digest(name) for name in names]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(digest, names * 3)) == alone * 3


def test_decoding_starts_no_thread(tmp_path):
    write_video(tmp_path / "w.mp4", "mp4v")
    program = (
        "import os, sys\n"
        "from halofeed.prep.formats.clip.clip_formats import open_clip\n"
        "from halofeed.prep.sources.files import LocalFiles\n"
        "import cv2\n"
        "cv2.setNumThreads(1)\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "frames = open_clip(LocalFiles(sys.argv[1]), 'w.mp4').read(range(9))\n"
        "print([len(os.listdir('/proc/self/task')) - before for _ in frames])\n"
    )
    assert run_python(program, str(tmp_path)).stdout.strip() == str([0] * 9)


def run_python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENCV")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT
    )


FUZZ = r"""
import os, re, sys
from halofeed.prep.formats.clip.clip_formats import open_clip
from halofeed.prep.sources.files import LocalFiles
from halofeed.errors import SourceError
files, counts = LocalFiles(sys.argv[1]), [0, 0]
for name in sorted(os.listdir(sys.argv[1])):
    print(name, file=open(sys.argv[2], 'w'))
    try:
        clip = open_clip(files, name)
        for frame in clip.read(range(clip.frames)):
            assert frame.shape == (clip.height, clip.width, 3)
        counts[0] += 1
    except SourceError as error:
        assert error.stage == 'decode' and error.reason and error.detail, name
        counts[1] += 1
peak = re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())  # ru_maxrss counts the parent too
print(*counts, int(peak[1]) >> 10)
"""


def test_damaged_files_are_read_or_refused_without_a_word_in_bounded_memory(tmp_path):
    (tmp_path / "damaged").mkdir()
    sources = [write_video(tmp_path / f"{codec}.{extension}", codec, 8) for extension, codec in VIDEOS]
    sources.append(with_index_first(sources[0]))
    sources += [write_animation(tmp_path / f"w.{kind}", range(5)) for kind in ("gif", "webp", "png")]
    draw = random.Random(11)
    for number, data in enumerate(sources):
        for change in range(30):
            damaged = bytearray(data)
            for _ in range(draw.randint(1, 4)):
                at = draw.randrange(min(len(data), 1500 if change % 2 else len(data)))
                if change % 3:
                    damaged[at] ^= 1 << draw.randrange(8)
                else:
                    damaged[at : at + 8] = draw.randbytes(8)
            (tmp_path / "damaged" / f"{number:02d}_{change:02d}").write_bytes(damaged)
    done = run_python(FUZZ, str(tmp_path / "damaged"), str(tmp_path / "at"))
    assert done.returncode == 0, (done.stderr, (tmp_path / "at").read_text())
    assert done.stderr == ""
    read, refused, peak_mebibytes = map(int, done.stdout.split())
    assert read + refused == 30 * len(sources) and min(read, refused) > 60
    assert peak_mebibytes < 1024
