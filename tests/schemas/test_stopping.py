"""The program waits while a signal's thread undoes what it began."""

import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, time
from halofeed.system import signals

def undo():
    before = len(written)
    time.sleep(0.3)
    open(sys.argv[1], "w").write(f"{before} {len(written)}")

written = []
signals.listen()
signals.hear_in_long_calls()
with signals.CleanupOnExit(undo):
    print("ready", flush=True)
    while True:
        written.append(0)
        time.sleep(0)
"""


def test_the_program_stands_still_while_what_it_began_is_undone(tmp_path: Path) -> None:
    for attempt in range(3):
        result = tmp_path / str(attempt)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, "-c", PROGRAM, str(result)], **pipes) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        assert process.returncode == 143 and errors == "halofeed: stopped (SIGTERM)\n"
        before, after = map(int, result.read_text().split())
        assert before == after
