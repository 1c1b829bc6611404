"""`./run engine` starts and stops an engine; a store that runs is left alone, with the objects in it."""

import sys
from pathlib import Path

import pytest

from tests.support.engines import __main__ as command
from tests.support.engines.processes import pid_of, start_process, stop_all


@pytest.mark.parametrize("name", ["s3", "prism"])
def test_a_second_start_keeps_a_store_and_says_that_it_ends_an_engine(name, tmp_path, monkeypatch, capsys):
    def start(home: Path) -> dict[str, str]:
        start_process(home, "server", [sys.executable, "-c", "import time; time.sleep(600)"])
        return {"NUMBER": str(pid_of(home, "server"))}

    module = command.importlib.import_module(f"tests.support.engines.{name}")
    monkeypatch.setattr(module, "start", start)
    monkeypatch.setattr(command, "cache", lambda: tmp_path)
    monkeypatch.setattr(sys, "argv", ["engines", "start", name])
    said = []
    try:
        for _ in range(2):
            assert command.main() == 0
            said.append(capsys.readouterr())
    finally:
        stop_all(tmp_path / "running" / name)
    if name == "s3":
        assert said[1].out == said[0].out and "s3 runs already" in said[1].err
    else:
        assert said[1].out != said[0].out and "the prism that ran is ended" in said[1].err
