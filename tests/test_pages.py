"""Every block of code of README and the pages runs or is read by the parser of commands; every example runs."""

import json
import re
import runpy
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from halofeed.cli import _parser, join_values
from tests.support.engines import s3
from tests.support.scripts import run_script

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples/dataflow/README.md"]
NOT_RUN = {"datasets.md": "tests/prep/layouts/test_datasets.py", "extending.md": "test_extending.py"}
"""Pages whose blocks another test runs."""
BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n)?^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DRAW = """
from pathlib import Path; from drawn import draw_all; from drawn_large import draw_large
from tests.support.scan_box_sets import draw_luna
draw_all(Path()); draw_large(Path()); draw_luna(Path("luna16"), 10)
"""
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.*")) if path.stem != "drawn"]
UPLOAD = """
import boto3
for path in Path("cards").rglob("*.*"):
    boto3.client("s3").upload_file(str(path), "bucket", str(path))
"""
LIBRARIES = {
    "grain_loader": "grain",
    "torch_dataloader": "torch",
    "torchvision_detection": "torchvision",
    "keras_without_tensorflow": "keras",
    "monai_unet": "monai",
    "nnunet_trainer": "nnunetv2",
    "rf_detr_trainer": "rfdetr",
    "ultralytics_trainer": "ultralytics",
}


def run(code: str, folder: Path) -> None:
    """Run Python code in the folder, in a process of its own that finds the examples' modules."""
    paths = [str(ROOT), str(ROOT / "examples")]
    run_script(f"import os, sys\nos.chdir({str(folder)!r})\nsys.path[:0] = {paths}\n{code}", seconds=900)


def commands(code: str) -> list[list[str]]:
    """The words of each halofeed command of a shell block, without those that stand for the reader's own options."""
    lines = re.findall(r"^\s*halofeed (.*)", code.replace("\\\n", " "), re.MULTILINE)
    found = [shlex.split(line, comments=True) for line in lines]
    return [words[: words.index("--")] if "--" in words else words for words in found if "..." not in words]


def run_blocks(page: Path, folder: Path, before: str = "") -> None:
    program = [before, "from halofeed.cli import main"]
    for skipped, language, code in BLOCK.findall(page.read_text()):
        if not skipped:
            shell = [f"assert main({words}) == 0" for words in commands(code)]
            program += shell if language == "bash" else [code]
    run("\n".join(program), folder)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    run(DRAW, folder)
    run_blocks(ROOT / "docs/quick-start.md", folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    "page", [page for page in PAGES[:-1] if page.name not in NOT_RUN], ids=lambda page: page.name
)
def test_the_blocks_of_a_page_run_in_order(page: Path, converted: Path) -> None:
    if page.name == "stores.md":
        try:
            settings = s3.start(converted / "s3")
            run_blocks(page, converted, f"os.environ.update({settings})\nfrom pathlib import Path\n{UPLOAD}")
        finally:
            s3.stop(converted / "s3")
    elif page.name != "quick-start.md":  # which the fixture has run
        run_blocks(page, converted)


@pytest.mark.long
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_its_counts_are_those_by_hand(path: Path, tmp_path: Path) -> None:
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") for cell in cells)
        run("\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"), tmp_path)
    elif find_spec(LIBRARIES.get(path.stem, "halofeed")) is None:
        pytest.skip(f"{LIBRARIES[path.stem]} is in the extra `peers`")
    else:
        run(path.read_text(), tmp_path)


def test_commands_parse_and_python_compiles_and_quoted_messages_exist() -> None:
    parser = _parser()
    for page in PAGES:
        for language, code in re.findall(r"(?ms)^```([^\n]*)\n(.*?)^```$", page.read_text()):
            assert language or not re.search(r"(?m)^(halofeed|python|pip) ", code), f"{page.name}: {code}"
        for _, language, code in BLOCK.findall(page.read_text()):
            if language == "python":
                compile(code, str(page), "exec")
            for words in commands(code) if NOT_RUN.get(page.name) != "test_extending.py" else ():
                parser.parse_args(join_values(words))  # an unknown option or value ends the test
    parts = ("system", "schemas", "storage", "prep", "pipelines", "loader", "trainer", "halofeed")
    sources = "".join(path.read_text() for part in parts for path in (ROOT / part).rglob("*.py"))
    page = (ROOT / "docs/troubleshooting.md").read_text()
    for message in re.findall(r"^\| `(.+?)` \|", page, re.MULTILINE):
        assert message in sources, message


def test_links_between_pages_lead_to_pages(tmp_path: Path) -> None:
    assert not runpy.run_path(str(ROOT / "docs/assemble.py"))["assemble"](tmp_path / "pages")
