"""Every example of docs/extending.md works as it stands there, in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.level_rows import others

ROOT = Path(__file__).parents[1]
PARTS = ("system", "schemas", "storage", "prep", "pipelines", "loader", "trainer", "inspection", "halofeed")
PAGE = (ROOT / "docs" / "extending.md").read_text()
QUICK = ("A layout",)


def blocks(section: str) -> list[tuple[str, str, str]]:
    """(language, path or "", text) of every block of code."""
    return re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


SECTIONS = {
    title: blocks(text)
    for title, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}


def apply(diff: str, file: Path) -> None:
    """Change a file where the lines that a diff has as context or removes stand, at one place alone."""
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] != "+")
    after = "".join(line[1:] for line in lines if line[0] != "-")
    text = file.read_text()
    assert text.count(before) == 1, f"{file.name} does not hold once:\n{before}"
    file.write_text(text.replace(before, after))


def test_the_page_has_every_part_that_can_be_added():
    expected = "A format, A layout, A task, A kind of image, An augmentation, An augmentation on the device"
    assert ", ".join(SECTIONS) == f"{expected}, A model, Your own model and task, A store"
    assert all(SECTIONS.values())


@pytest.mark.parametrize("title", others(SECTIONS, QUICK))
def test_an_example_works_as_it_stands_on_the_page(title, tmp_path):
    project, work = tmp_path / "project", tmp_path / "work"
    for part in PARTS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, project / part, symlinks=True, ignore=ignored)
    work.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(project),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for language, path, text in SECTIONS[title]:
        if path and language == "diff":
            apply(text, project / path)
        elif path:
            (project / path).write_text(text)
        else:
            shell = ["bash", "-euo", "pipefail", "-c", text]
            words = [sys.executable, "-c", text] if language == "python" else shell
            how = {"capture_output": True, "text": True, "timeout": 300, "check": False}
            done = subprocess.run(words, cwd=work, env=environment, **how)
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
