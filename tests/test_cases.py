"""Every folder of shared/data/cases comes out right, or with words that name the fact and a fix that works.

The folders hold small drawn inputs; `case.md` in them and the README above say what is right. Each row below is one
command. Where the records are not right at once, its message must say what `says` asks for, and a fix is taken from the
message and typed, which must give the right records; see tests/support/case_runs.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cases.older_rows import OLDER
from tests.cases.picture_rows import PICTURES
from tests.cases.volume_rows import VOLUMES
from tests.cases.words import PICTURE
from tests.support.case_runs import Case, draw, judge, run
from tests.support.conversions import halofeed_here

_TABLE_OF_CASES = (*PICTURES, *VOLUMES, *OLDER)
_ELSEWHERE = {"pictures_webdataset_export_loses_names"}
"""Folders whose tests are more than one conversion."""


@pytest.fixture(scope="session")
def cases(test_data: Path) -> Path:
    """The folder of the drawn cases."""
    folder = test_data / "cases"
    if not folder.is_dir():
        pytest.skip(f"no cases at {folder}; set HALOFEED_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def drawn(cases: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that gives what a case draws, drawn once; it must not be changed."""
    made: dict[str, Path] = {}

    def give(folder: str) -> Path:
        if not (cases / folder).is_dir():
            pytest.skip(f"no case {folder} in {cases}")
        if folder not in made:
            made[folder] = draw(cases / folder, tmp_path_factory.mktemp("cases") / folder)
        return made[folder]

    return give


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in _TABLE_OF_CASES])
def test_a_case_comes_out_right_or_with_a_fix_that_works(
    case: Case, cases: Path, drawn: Callable[[str], Path], tmp_path: Path
) -> None:
    # A fix by hand changes the source, so such a case gets its own copy.
    source = draw(cases / case.folder, tmp_path / case.folder) if case.by_hand else drawn(case.folder)
    judge(case, source, tmp_path / "out")


def test_every_folder_of_cases_has_a_row(cases: Path) -> None:
    folders = {
        path.name for path in cases.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))
    }
    assert folders - {case.folder for case in _TABLE_OF_CASES} - _ELSEWHERE == set()


@pytest.mark.parametrize("form", ["webdataset", "voc"])
def test_an_export_that_is_converted_again_keeps_names_and_ids(
    form: str, drawn: Callable[[str], Path], tmp_path: Path
) -> None:
    words = ["--source", str(drawn("pictures_webdataset_export_loses_names")), *PICTURE.split()]
    first = run(words, tmp_path / "first")
    exported = halofeed_here(
        "export", tmp_path / "first/set/1.0.0", "--to", form, "--out", tmp_path / "exported"
    )
    assert exported.returncode == 0, exported.stderr
    again = run(["--source", str(tmp_path / "exported"), *PICTURE.split()], tmp_path / "again")
    assert again.code == 0, again.message
    assert again.manifest.labels == first.manifest.labels
    # The stored boxes are 32-bit shares of the sides.
    kept, found = (
        sorted((one.split, [(text, [*map(round, box)]) for text, box in one.objects]) for one in each.records)
        for each in (first, again)
    )
    assert found == kept
