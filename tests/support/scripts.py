"""How tests run a script in a process of its own, since it may end the process, or is of a process as a whole."""

import subprocess
import sys
from collections.abc import Sequence


def run_script(script: str, *arguments: object, seconds: float = 100, without: Sequence[str] = ()) -> str:
    """What a script prints, given its arguments and perhaps a command that runs it; it must end well."""
    command = [*without, sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-3000:])
    return done.stdout
