"""Does an earlier run come back whole where the run that was to replace it saved nothing?"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from halofeed.trainer.run_folder import bring_back


def test_a_run_comes_back_whole_also_where_another_thread_still_writes(tmp_path: Path) -> None:
    run, replaced = tmp_path / "run", tmp_path / ".run.replaced"
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                (run / "checkpoints").mkdir(parents=True, exist_ok=True)
                (run / "log.jsonl").write_text("later")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            replaced.mkdir()
            (replaced / "run.json").write_text("earlier")
            assert bring_back(run) and not replaced.exists()
            assert (run / "run.json").read_text() == "earlier"
    finally:
        ended.set()
        writer.join()
    assert not bring_back(run), "there is no other"
