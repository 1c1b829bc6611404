"""What `halofeed train` and `predict` say about choices that the user did not make."""

from types import SimpleNamespace
from typing import Any

from halofeed import training
from tests.support.conversions import draw_folders, run_convert


def test_a_run_says_that_it_has_no_split_to_evaluate_on() -> None:
    description = {"split": "train"}
    none: Any = SimpleNamespace(evaluation=None, description=description)
    (line,) = training._not_evaluated(none)
    assert "no metrics" in line and "besides 'train'" in line
    some: Any = SimpleNamespace(evaluation=object(), description=description)
    assert training._not_evaluated(some) == []


def test_a_prediction_names_a_class_that_is_another_in_the_data(tmp_path, capsys) -> None:
    done = run_convert(draw_folders(tmp_path / "source", 6), tmp_path / "out", layout="folders")
    labels = dict(done.manifest.labels)
    same, fewer = (SimpleNamespace(facts=SimpleNamespace(labels=known)) for known in (labels, {0: labels[0]}))
    training._print_other_classes(same, str(done.folder))
    assert capsys.readouterr().err == ""
    training._print_other_classes(fewer, str(done.folder))
    printed = capsys.readouterr().err
    assert f"such as 1, {labels[1]} there and no class in the model" in printed
    assert f"{len(labels) - 1} of {len(labels)} numbers differ" in printed


def test_a_prediction_names_the_first_files_that_it_skips() -> None:
    run: Any = SimpleNamespace(facts=SimpleNamespace(kind="volume"))
    text = training._describe_skipped([f"my mr/IMG{number}.raw" for number in range(5)], run)
    assert text.startswith("skipped 5 files without a name of a volume")
    assert "IMG2.raw and 2 more" in text and "IMG3" not in text
