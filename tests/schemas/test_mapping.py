"""A fault of a mapped file does not end the process, and every other fault goes to its own handler.

Each attempt is a process of its own, which a fault would end.
"""

import signal
import subprocess
import sys

import pytest

from tests.support.scripts import run_script

SETUP = """
import faulthandler, mmap, os, signal, sys, tempfile, threading
import cv2
import numpy as np
from halofeed.storage.mapped_files import is_guarded, map_file
def mapped(size=1 << 20):
    stream = tempfile.TemporaryFile()
    stream.write(bytes([7]) * size)
    stream.flush()
    file = map_file(stream.fileno(), size)
    return stream, file, np.asarray(file)
"""
LOOKS = {
    "copy": "np.copyto(np.empty(len(array), np.uint8), array)",
    "small copy": "assert array[-3:].copy().tolist() == [0, 0, 0]",
    "number": "assert array[-1] == 0",
    "bytes": "bytes(array.data)",
    "mirror": "cv2.flip(array.reshape(-1, 256, 4), 1)",
    "sum": "from halofeed.system.checksum import crc32c; crc32c(array)",
    "threads": """
threads = [threading.Thread(target=array.copy) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()""",
    "child": """
child = os.fork()
if child == 0:
    array.copy()
    os._exit(0 if file.lost else 1)
assert os.waitpid(child, 0)[1] == 0
array.copy()""",
}


def run(script):
    command = [sys.executable, "-c", SETUP + script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_at_a_file_that_was_shortened_gives_zeros_and_says_so(look):
    run_script(
        SETUP
        + f"""
stream, file, array = mapped()
before = np.asarray(mapped()[1])
os.ftruncate(stream.fileno(), 5000)
assert array[4999] == 7 and not file.lost
{LOOKS[look]}
assert file.lost
assert (before == 7).all() and array[4999] == 7
"""
    )


def test_memory_lives_as_long_as_an_array_of_it_and_is_then_forgotten():
    run_script(
        SETUP
        + """
from halofeed.storage import mapped_files
stream, file, array = mapped()
part = array[100:200]
del file, array
assert (part == 7).all() and len(mapped_files._guard.mappings) == 1
del part
assert not mapped_files._guard.mappings
"""
    )


def test_a_fault_elsewhere_ends_the_process_as_without_us():
    done = run("""
stream, file, array = mapped()
other = tempfile.TemporaryFile()
other.write(bytes(9000))
other.flush()
foreign = mmap.mmap(other.fileno(), 9000)
os.ftruncate(other.fileno(), 0)
foreign[0]
""")
    assert done.returncode == -signal.SIGBUS


def test_a_fault_elsewhere_goes_to_the_handler_of_before():
    done = run("""
faulthandler.enable()
stream, file, array = mapped()
os.ftruncate(stream.fileno(), 0)
assert array[0] == 0 and file.lost
os.kill(os.getpid(), signal.SIGBUS)
""")
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in done.stderr


def test_nothing_is_mapped_of_an_empty_file_and_where_another_handler_took_the_place():
    run_script(
        SETUP
        + """
stream, file, array = mapped()
assert is_guarded() and map_file(tempfile.TemporaryFile().fileno(), 0) is None
faulthandler.enable()
assert not is_guarded() and map_file(stream.fileno(), 100) is None
faulthandler.disable()
signal.signal(signal.SIGBUS, signal.SIG_IGN)
assert not is_guarded()
"""
    )
