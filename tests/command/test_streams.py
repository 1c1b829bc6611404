"""What a command does whose standard streams are closed, full or read by nobody, or that has too little memory."""

import itertools
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from halofeed.errors import HalofeedError
from halofeed.system.resource_errors import check_least_memory
from tests.support.commands import convert, left_of, light_entries
from tests.support.conversions import all_bytes, convert_words, draw_folders, halofeed_here, run_convert
from tests.support.level_rows import levels

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
CLOSED = ["<&-", ">&-", "2>&-"]
COMBINATIONS = [" ".join(chosen) for count in (1, 2, 3) for chosen in itertools.combinations(CLOSED, count)]
LEVELS = {"2>&-": (), COMBINATIONS[-1]: pytest.mark.long}
EACH = [pytest.param(chosen, marks=LEVELS.get(chosen, pytest.mark.exhaustive)) for chosen in COMBINATIONS]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("source")
    draw_folders(root, 24, broken=1)
    # A damaged TIFF, of which libtiff itself speaks to descriptor 2.
    (root / "hat/odd.tif").write_bytes(b"II*\0\x08\0\0\0\xff\xff" + bytes(range(200)))
    return root


def shell(words: Sequence[str], redirections: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a shell with these redirections."""
    temporary.mkdir(exist_ok=True)
    line = f'exec "$@" {redirections}'
    command = ["bash", "-c", line, "bash", sys.executable, "-m", "halofeed", *words]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


@pytest.mark.parametrize("redirections", EACH)
def test_a_conversion_with_closed_streams_gives_the_same_bytes(source, data, tmp_path, redirections):
    done = shell(convert(source, tmp_path / "out", 2), redirections, tmp_path / "tmp")
    assert done.returncode == 0 and done.stderr == ""
    assert (done.stdout == "") == (">&-" in redirections.split())
    assert all_bytes(tmp_path / "out/set/1.0.0") == all_bytes(data)
    assert left_of(tmp_path / "tmp", tmp_path / "out") == []


@pytest.mark.parametrize("redirections", levels(long=COMBINATIONS[-1:], exhaustive=COMBINATIONS[1:3]))
def test_without_streams_the_exit_status_still_tells(data, tmp_path, redirections):
    for entry, words in light_entries(data, tmp_path).items():
        assert shell(words, redirections, tmp_path / "tmp").returncode == 0, entry
    failed = shell(["verify", str(tmp_path / "nowhere")], redirections, tmp_path / "tmp")
    assert failed.returncode == 1 or failed.returncode == 2
    assert shell(["verify"], redirections, tmp_path / "tmp").returncode == 2


def test_no_library_writes_into_a_file_that_took_the_number_of_a_closed_stream(tmp_path):
    """With descriptor 2 closed, the next file that is opened would be 2, and a library's message would go there."""
    program = (
        "import os, sys\n"
        "from halofeed.standard_streams import open_closed_streams\n"
        "open_closed_streams()\n"
        "number = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "os.write(2, b'a message'); print('text', file=sys.stderr); print(sys.stdin.read(), 'text')\n"
        "sys.exit(0 if number > 2 and os.get_inheritable(2) else 1)"
    )
    for redirections in COMBINATIONS:
        command = ["bash", "-c", f'exec "$@" {redirections}', "bash", sys.executable, "-c", program]
        done = subprocess.run([*command, str(tmp_path / "file")], stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == 0, redirections
        assert (tmp_path / "file").read_bytes() == b""


@FULL
@pytest.mark.long
def test_full_output_is_an_error_and_what_is_converted_stays(source, data, tmp_path):
    done = shell(convert(source, tmp_path / "out", 2), "> /dev/full", tmp_path / "tmp")
    assert done.returncode == 1
    assert done.stderr == (
        "halofeed convert: standard output: No space left on device; all files are complete\n"
    )
    assert all_bytes(tmp_path / "out/set/1.0.0") == all_bytes(data)
    assert left_of(tmp_path / "tmp", tmp_path / "out") == []
    again = halofeed_here(*convert(source, tmp_path / "out", 2))
    assert again.returncode == 0 and "already converted" in again.stdout


@FULL
@pytest.mark.long
@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.exhaustive)])
def test_full_output_is_an_error_of_every_command(data, tmp_path, monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    for entry, words in light_entries(data, tmp_path).items():
        done = shell(words, "> /dev/full", tmp_path / "tmp")
        assert done.returncode == 1, entry
        assert len(done.stderr.splitlines()) == 1 and "No space left on device" in done.stderr, done.stderr
        assert done.stderr.startswith("halofeed: " if entry == "help" else f"halofeed {words[0]}: "), entry
    assert (tmp_path / "report.html").stat().st_size > 1000


@FULL
@pytest.mark.long
def test_errors_that_cannot_be_told_cost_nothing(source, data, tmp_path):
    done = shell(convert(source, tmp_path / "out", 2), "2> /dev/full", tmp_path / "tmp")
    assert done.returncode == 0 and "93 records" not in done.stdout and "converted" in done.stdout
    assert all_bytes(tmp_path / "out/set/1.0.0") == all_bytes(data)
    assert shell(["verify", str(tmp_path / "no")], "> /dev/full 2>&1", tmp_path / "tmp").returncode in (1, 2)


@pytest.mark.long
def test_a_reader_that_leaves_ends_a_command_as_a_pipe_does(source, data, tmp_path):
    """In silence, and with another status than that of damaged data."""
    for words in (*light_entries(data, tmp_path).values(), convert(source, tmp_path / "out", 2)):
        done = shell(words, "> >(exec true)", tmp_path / "tmp")
        assert done.returncode in (0, 141) and done.stderr == "", words
    assert all_bytes(tmp_path / "out/set/1.0.0") == all_bytes(data)


def test_a_pipe_without_a_reader_is_no_damage(data):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "halofeed", "verify", str(data)]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert done.returncode == 141 and done.stderr == b""


def limited(words: Sequence[object], option: str, limit_mib: int) -> subprocess.CompletedProcess[str]:
    """Run the command line where the shell has set a limit, such as -v, of so many MiB."""
    shell = ["sh", "-c", 'ulimit "$0" "$1" && shift && exec "$@"', option, limit_mib << 10]
    command = map(str, [*shell, sys.executable, "-m", "halofeed", *words])
    return subprocess.run(list(command), capture_output=True, text=True, check=False)


# From below what NumPy alone takes to above what the job needs, libraries that crash where memory ends in between.
@pytest.mark.parametrize(
    ("option", "limits_mib", "workers"),
    levels(
        ("-v", (580,), 2),
        long=[("-v", (390, 780, 880), 1), ("-d", (190, 290, 390), 2)],
        exhaustive=[("-v", (390, 580, 780, 840, 880), 2), ("-d", (190, 290, 390), 1)],
    ),
)
def test_a_conversion_ends_in_one_line(source, tmp_path, option, limits_mib, workers):
    for limit_mib in limits_mib:
        words = convert_words(source, tmp_path / str(limit_mib), workers=workers, shards=2)
        done = limited(words, option, limit_mib)
        if done.returncode:
            assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, (limit_mib, done.stderr)
            assert "too little memory" in done.stderr or "no further thread" in done.stderr
            assert f"ulimit {option}" in done.stderr and "raise the limit" in done.stderr


def test_what_has_just_enough_works(source, tmp_path):
    folder = run_convert(source, tmp_path, layout="folders").folder
    for command in ("verify", "inspect"):
        assert limited((command, folder), "-v", 390).returncode == 0
    done = limited(("verify", folder), "-v", 370)
    assert done.returncode == 1 and "too little memory: ulimit -v is 370 MiB" in done.stderr


@pytest.mark.parametrize("command", ["train", "evaluate", "predict", "export", "demo"])
def test_training_asks_for_what_xla_takes(command, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2 << 30, 2 << 30))
    with pytest.raises(HalofeedError, match=r"ulimit -v is 2,048 MiB.* up to 3,072 MiB; raise the limit"):
        check_least_memory(command)
