"""What `halofeed train` and `predict` say about choices that the user did not make."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halofeed import training


@pytest.mark.parametrize("evaluation", [object(), None])
def test_a_run_says_before_it_begins_that_it_has_no_split_to_evaluate_on(
    evaluation: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    data: Any = SimpleNamespace(evaluation=evaluation, description={"split": "train"})
    training._print_if_not_evaluated(data)
    printed = capsys.readouterr().err
    assert ("no metrics" in printed and "besides 'train'" in printed) is (evaluation is None)


def test_a_prediction_names_the_folder_of_series_that_it_skips(tmp_path: Path) -> None:
    run: Any = SimpleNamespace(facts=SimpleNamespace(kind="volume"))
    names = [f"my mr/IMG{number}.dcm" for number in range(5)]
    (tmp_path / "my mr").mkdir()
    for name in names:
        (tmp_path / name).write_bytes(bytes(128) + b"DICM")
    text = training._describe_skipped(names, tmp_path, run)
    assert text.startswith("skipped 5 files") and "IMG2.dcm and 2 more" in text and "IMG3" not in text
    assert text.endswith(f"--source '{tmp_path}/my mr'")
    (tmp_path / "odd.raw").write_bytes(b"?")
    assert "--source" not in training._describe_skipped(["odd.raw"], tmp_path, run)
