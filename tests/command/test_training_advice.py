"""What `halofeed train` and `predict` say about choices that the user did not make."""

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


def test_a_prediction_names_the_first_files_that_it_skips() -> None:
    run: Any = SimpleNamespace(facts=SimpleNamespace(kind="volume"))
    text = training._describe_skipped([f"my mr/IMG{number}.raw" for number in range(5)], run)
    assert text.startswith("skipped 5 files without a name of a volume")
    assert "IMG2.raw and 2 more" in text and "IMG3" not in text
