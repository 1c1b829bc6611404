"""What the tests of conversions share: how to run one, and how to read what it left, without the loader."""

import contextlib
import dataclasses
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from halofeed.cli import main
from halofeed.pipelines.convert import Conversion, convert
from halofeed.pipelines.job import JobOptions, ShardJob
from halofeed.pipelines.opened_sources import open_sources
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.plan import ConversionPlan, make_plan
from halofeed.pipelines.references import NumberedFiles, read_file
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.tfexample import decode_example
from halofeed.schemas.tfrecord import read_records

CLASSES = ("hat", "shirt")


def run_convert(source: object, out: object, **options: Any) -> Conversion:
    """Convert in this process; options of the job and of the recipe together, small pictures by default."""
    fields = {field.name for field in dataclasses.fields(JobOptions)}
    recipe = {"height": 16, "width": 24} | {k: v for k, v in options.items() if k not in fields}
    job = {"name": "set", "workers": 1} | {k: v for k, v in options.items() if k in fields}
    return convert(JobOptions(source=str(source), out=str(out), **job), Recipe(**recipe), show_progress=False)


def halofeed(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-m", "halofeed", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **more)


def halofeed_here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process: much faster, and enough where nothing of the process itself counts."""
    words = [*map(str, arguments)]
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = main(words)
    return subprocess.CompletedProcess(words, code, printed.getvalue(), errors.getvalue())


def convert_words(source: object, out: object, **options: object) -> list[str]:
    """The words of a conversion on the command line, as `run_convert` takes them; class folders by default."""
    given = {"layout": "folders", "source": source, "out": out, "name": "set", "height": 16, "width": 24}
    return ["convert", *(_word(name, value) for name, value in (given | options).items())]


def _word(name: str, value: object) -> str:
    flag, text = (
        f"--{name.replace('_', '-')}",
        ",".join(map(str, value if isinstance(value, tuple) else (value,))),
    )
    return flag if value is True else f"{flag}={text}"


_PEAK = r"""
import re, sys
from halofeed.cli import main
code = main(sys.argv[1:])
# ru_maxrss would count the process that started this one, too.
print("peak", 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]))
sys.exit(code)
"""


def peak_bytes(words: Sequence[str]) -> int:
    """What a command holds resident at most, in a process of its own."""
    command = [sys.executable, "-c", _PEAK, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split("peak ")[1])


def start(words: Sequence[str], **more: Any) -> subprocess.Popen[str]:
    """Start the command line as a shell would in the foreground."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
    # What a shell starts with & ignores Ctrl-C, and so does everything below it.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen([sys.executable, "-m", "halofeed", *words], **given)
    finally:
        signal.signal(signal.SIGINT, ignored)


def wait_until(condition: Callable[[], object], seconds: float, what: object) -> None:
    """Wait for the condition, which must come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.005)


def all_bytes(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def bytes_of(source: object, out: object, **options: Any) -> dict[str, bytes]:
    return all_bytes(Path(run_convert(source, out, **options).folder))


def shard_bytes(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in all_bytes(folder).items() if ".tfrecord-" in name}


def shard_paths(folder: Path, split: str) -> list[Path]:
    return sorted(folder.glob(f"*-{split}.tfrecord-*"))


def read_split(folder: Path, split: str) -> Iterator[dict[str, Any]]:
    """The features of each record of a split, in stored order."""
    for path in shard_paths(folder, split):
        for _, data in read_records(path.read_bytes(), path.name):
            yield decode_example(data)


def read_all(folder: Path, splits: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The features of every record by its source's file name."""
    found = {}
    for split in splits:
        for features in read_split(folder, split):
            name = bytes(features["image/filename"][0]).decode()
            assert name not in found
            found[name] = {**features, "split": split}
    return found


def rejected_entries(folder: str | Path) -> list[dict[str, str]]:
    """Every line of the list of rejected inputs."""
    return [json.loads(line) for line in Path(folder, "rejected.jsonl").read_text("utf-8").splitlines()]


@contextlib.contextmanager
def edited(file: Path) -> Iterator[dict[str, Any]]:
    """The document of a JSON file, which is written back as the block leaves it."""
    document = json.loads(file.read_text())
    yield document
    file.write_text(json.dumps(document))


def boxes_in_source(features: Mapping[str, Any]) -> NDArray[np.float64]:
    """The boxes of a record [n, 4] in pixels of its source, by way of image/transform."""
    height, width = (float(features[f"image/{side}"][0]) for side in ("height", "width"))
    matrix = np.asarray(features["image/transform"], np.float64).reshape(2, 3)
    mapped = []
    corners = (features[f"image/object/bbox/{name}"] for name in ("ymin", "xmin", "ymax", "xmax"))
    for ymin, xmin, ymax, xmax in zip(*corners, strict=True):
        first = matrix @ [ymin * height, xmin * width, 1]
        second = matrix @ [ymax * height, xmax * width, 1]
        mapped.append([*np.minimum(first, second), *np.maximum(first, second)])
    return np.array(mapped, np.float64).reshape(-1, 4)


_DIE_AT = """
import json, os, signal, sys
from halofeed.cli import main
from halofeed.pipelines import replace
from halofeed.pipelines import output_folder
import halofeed.pipelines.convert, halofeed.prep.convert.picture_records
calls = {"take": output_folder.OutputFolder.take, "keep": output_folder.TemporaryFile.keep, "remove": os.remove,
         "exchange": replace.swap_paths, "rename": os.rename, "rmdir": os.rmdir}
def deadly(name, place, before):
    call = calls[name]
    def now(*arguments, **more):
        here = place == name or (name == "keep" and arguments[0].name.endswith(place))
        if here and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*arguments, **more)
        if here:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return now
for place, when, way, words in json.load(sys.stdin):
    child = os.fork()
    if not child:
        given = place, when == "before"
        output_folder.OutputFolder.take = deadly("take", *given)
        output_folder.TemporaryFile.keep = deadly("keep", *given)
        replace.swap_paths = deadly("exchange", *given) if way == "exchange" else lambda one, other: False
        os.remove, os.rename, os.rmdir = (deadly(name, *given) for name in ("remove", "rename", "rmdir"))
        os._exit(main(words))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def die_at(*cases: tuple[str, str, str, Sequence[str]]) -> None:
    """Run commands that are killed, each in a copy of one process.

    A case says at which step it dies, keeping a file whose name ends so or a call; "before" or "after" it; whether
    folders change places by an "exchange" or "file by file"; and the command's words.
    """
    how = {"input": json.dumps(cases), "capture_output": True, "text": True, "timeout": 600}
    done = subprocess.run([sys.executable, "-c", _DIE_AT], check=False, **how)
    died = [line for line in done.stdout.splitlines() if line.lstrip("-").isdecimal()]
    assert died == [f"{-signal.SIGKILL}"] * len(cases), (done.stdout, done.stderr)


def draw_folders(root: Path, images: int, *, seed: int = 0, side: int = 40, broken: int = 0) -> Path:
    """The root of a class folder of noisy JPEGs for each of CLASSES; the first `broken` files are no images at all."""
    generator = np.random.default_rng(seed)
    for number in range(images):
        folder = root / CLASSES[number % len(CLASSES)]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{number:04d}.jpg"
        if number < broken:
            path.write_bytes(b"not an image")
        else:
            height, width = (int(n) for n in generator.integers(side // 2, side, 2))
            pixels = generator.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3)).astype(np.uint8)
            Image.fromarray(pixels).resize((width, height)).save(path, quality=90)
    return root


def planned(source, folder: Path, recipe: Recipe, list_series=None) -> tuple[ConversionPlan, list[bytes]]:
    """A plan whose references are written into the folder of a data set, and each of them as text."""
    options = JobOptions(source=str(source), out="-", name="set")
    output = OutputFolder(str(folder))
    output.make()
    written = NumberedFiles(output)
    plan = make_plan(options, recipe, open_sources(options), written, list_series)
    return plan, [line for number in range(written.count) for _, line in read_file(output, number)]


def shard_job(recipe: Recipe, plan: ConversionPlan, source: Path, folder: str | Path, **more) -> ShardJob:
    """The job of a plan that writes into a folder, as a conversion describes it to its workers."""
    usual = dict.fromkeys(("replaces", "max_rejected", "memory_bytes", "progress_folder"))
    usual |= {"inputs": plan.inputs, "threads": 1, "name": "set", "version": "1.0.0"}
    planned = {"task": plan.task, "labels": plan.labels, "splits": plan.splits}
    return ShardJob(recipe=recipe, images=str(source), folder=str(folder), **planned, **usual | more)
