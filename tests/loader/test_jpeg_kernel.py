"""Damaged JPEG files are decoded by the kernel without a read or a write outside the given memory."""

import io
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halofeed.loader.jpeg_intervals import SOS, interval_ends, read_layout, segments
from halofeed.loader.jpeg_tables import _DHT, _DQT, _add_codes, _add_quantization
from halofeed.prep.voxels.encode import encode_jpeg
from halofeed.schemas.native import kernel

HERE, NATIVE = Path(__file__).parent, Path(kernel.__file__).parent
SANITIZED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")


def case(file):
    """A file with its tables, as `main` of fuzz_jpeg.c reads it."""
    view = memoryview(file)
    layout = read_layout(view)
    ends = interval_ends(view, layout)
    codes, quantization, scan = {}, {}, b""
    for marker, at, end in segments(view):
        if marker == _DHT:
            assert _add_codes(file[at:end], codes)
        elif marker == _DQT:
            assert _add_quantization(file[at:end], quantization)
        elif marker == SOS:
            scan = file[at:end]
    head = [len(file), *layout.size, scan[0], layout.unit[0] == 16, layout.interval, layout.start, len(ends)]
    parts = [np.array(head, "<i8").tobytes(), ends.astype("<i8").tobytes()]
    parts += [quantization[min(number, max(quantization))].tobytes() for number in range(scan[0])]
    for number in scan[2:-3:2]:
        for counts, symbols in (codes[number >> 4], codes[16 | number & 15]):
            parts += [counts, symbols.ljust(256, b"\0"), np.array(len(symbols), "<i8").tobytes()]
    return b"".join([*parts, file])


def cases():
    rng = np.random.default_rng(0)
    stream = io.BytesIO()
    pixels = rng.integers(0, 256, (20, 37, 3)).astype(np.uint8)
    options = {"subsampling": "4:4:4", "restart_marker_rows": 1, "optimize": True, "quality": 80}
    Image.fromarray(pixels).save(stream, "JPEG", **options)
    ours = [(40, 160, 3), (33, 70, 1)]
    files = [encode_jpeg(rng.integers(0, 256, shape).astype(np.uint8), 95) for shape in ours]
    return b"".join(map(case, [*files, stream.getvalue()]))


def fuzz(folder, count, seed):
    program = folder / "fuzz"
    command = [
        "gcc",
        *SANITIZED,
        "-Wall",
        "-Wextra",
        f"-I{NATIVE}",
        str(HERE / "fuzz_jpeg.c"),
        "-o",
        str(program),
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in found.stderr:
        pytest.skip(found.stderr)
    assert (found.returncode, found.stderr) == (0, "")
    done = subprocess.run([program, str(count), str(seed)], input=cases(), capture_output=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"done\n", b"", 0)


@needs_compiler
@pytest.mark.long
def test_ten_thousand_damaged_files_are_read_inside_and_written_inside(tmp_path):
    fuzz(tmp_path, 3_400, 1)


@needs_compiler
@pytest.mark.exhaustive
def test_a_million_damaged_files_are_read_inside_and_written_inside(tmp_path):
    fuzz(tmp_path, 340_000, 2)
