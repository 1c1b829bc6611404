"""Rules for the tree: imports, docstrings, names and keys."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from halofeed import packaging
from halofeed.schemas import keys
from tests.support.conversions import draw_folders

ROOT = Path(__file__).parents[1]
PARTS = ("system", "storage", "schemas", "prep", "pipelines", "loader", "trainer", "inspection")
ANYWHERE, INSIDE_FUNCTIONS = "anywhere", "inside functions"

MAY_IMPORT_PARTS = {
    "system": {"system"},
    "storage": {"storage", "system"},
    "schemas": {"schemas", "storage", "system"},
    "prep": {"prep", "schemas", "storage", "system"},
    "pipelines": {"pipelines", "prep", "schemas", "storage", "system"},
    "loader": {"loader", "prep", "schemas", "storage", "system"},
    "trainer": {"trainer", "loader", "prep", "schemas", "storage", "system"},
    "inspection": {"inspection", "loader", "pipelines", "prep", "schemas", "storage", "system"},
}
"""system <- storage <- schemas <- prep <- pipelines; prep <- loader <- trainer; inspection: all but the trainer."""

MAY_IMPORT_PACKAGES: dict[str, dict[str, str]] = {
    "system": dict.fromkeys(("numpy", "google_crc32c"), ANYWHERE),
    "schemas": dict.fromkeys(("numpy",), ANYWHERE),
    "prep": {
        **dict.fromkeys(("numpy", "PIL", "cv2", "simplejpeg", "isal", "rle", "nibabel", "pydicom"), ANYWHERE),
        **dict.fromkeys(
            (
                *("regex", "yaml", "pyarrow", "h5py", "tifffile", "imagecodecs", "pyproj", "pyvips"),
                *("array_record", "pillow_heif", "zstandard"),
            ),
            INSIDE_FUNCTIONS,
        ),
    },
    "storage": {
        "numpy": ANYWHERE,
        **dict.fromkeys(("boto3", "botocore", "google", "requests"), INSIDE_FUNCTIONS),
        **dict.fromkeys(("apache_beam", "fsspec", "aiohttp"), INSIDE_FUNCTIONS),
    },
    "pipelines": dict.fromkeys(("numpy", "cv2", "apache_beam"), ANYWHERE),
    "loader": {
        **dict.fromkeys(("numpy", "cv2", "simplejpeg"), ANYWHERE),
        **dict.fromkeys(
            ("tensorflow", "jax", "ml_dtypes", "torch", "monai", "keras", "blosc2", "rfdetr"),
            INSIDE_FUNCTIONS,
        ),
    },
    "trainer": {
        **dict.fromkeys(("numpy", "jax", "flax", "optax", "orbax", "scipy"), ANYWHERE),
        **dict.fromkeys(("PIL", "h5py", "libtpu", "pycocotools", "tensorflow", "tifffile"), INSIDE_FUNCTIONS),
    },
    "inspection": dict.fromkeys(("numpy", "cv2", "PIL", "jinja2", "markupsafe"), ANYWHERE)
    | dict.fromkeys(("pyarrow", "tensorflow"), INSIDE_FUNCTIONS),
}
ONLY_IN_FILES = {
    ("prep", "yaml"): {"prep/annotations/documents.py"},
    ("prep", "regex"): {"prep/annotations/patterns.py"},
    ("prep", "pyproj"): {"prep/geometry/map_coordinates.py"},
    ("prep", "pyarrow"): {"prep/sources/parquet.py"},
    ("loader", "tensorflow"): {"loader/stream.py", "loader/assemble.py", "loader/device/ops.py"},
    ("loader", "jax"): {"loader/mesh_batches.py", "loader/dataset.py", "loader/device/ops.py"},
    ("loader", "torch"): {
        f"loader/forms/{name}_form.py"
        for name in ("torchvision", "ultralytics", "rf_detr", "monai", "nnunet")
    },
    ("loader", "blosc2"): {"loader/forms/nnunet_cases.py"},
    ("loader", "rfdetr"): {"loader/forms/rf_detr_form.py"},
    ("loader", "monai"): {"loader/forms/monai_form.py"},
    ("loader", "keras"): {"loader/forms/keras_form.py"},
    ("trainer", "orbax"): {"trainer/checkpoint.py"},
    ("trainer", "scipy"): {"trainer/metrics.py", "trainer/largest_component.py"},
    ("trainer", "pycocotools"): {"trainer/metrics.py"},
    ("trainer", "tifffile"): {"trainer/source_grid.py"},
    ("trainer", "h5py"): {"trainer/models/keras_weights.py"},
    ("trainer", "libtpu"): {"trainer/plan/topologies.py"},
    ("trainer", "PIL"): {"trainer/source_grid.py"},
    ("inspection", "jinja2"): {"inspection/html/page.py"},
    ("inspection", "pyarrow"): {"inspection/export_parquet.py"},
    ("inspection", "tensorflow"): {"inspection/portable_unpack.py"},
    ("prep", "isal"): {"prep/formats/volume/streams.py"},
    ("prep", "h5py"): {"prep/formats/volume/minc.py"},
    ("prep", "nibabel"): {"prep/formats/volume/nifti.py"},
    ("prep", "pydicom"): {
        "prep/formats/region/slide_headers.py",
        *(f"prep/formats/dicom/{name}.py" for name in ("headers", "sop_classes", "pixels")),
    },
    ("prep", "tifffile"): {
        f"prep/formats/{name}.py"
        for name in ("region/tiff_blocks", "region/tiff_regions", "volume/tiff_stack")
    },
    ("prep", "array_record"): {"prep/sources/array_records.py"},
    ("prep", "pillow_heif"): {"prep/formats/picture/heic.py"},
    ("prep", "imagecodecs"): {
        *("prep/formats/volume/tiff_stack.py", "prep/formats/dicom/jpeg_xl.py"),
        *(
            f"prep/formats/region/{name}.py"
            for name in ("tiff_blocks", "tiff_regions", "png_rows", "slide_regions")
        ),
        *(f"prep/formats/picture/{name}.py" for name in ("avif", "deep_jpeg", "jxl")),
    },
    ("prep", "zstandard"): {"prep/formats/volume/streams.py"},
    ("prep", "pyvips"): {"prep/formats/region/jpeg_rows.py"},
    ("prep", "rle"): {"prep/formats/dicom/pixels.py"},
    ("pipelines", "apache_beam"): {
        *(
            f"pipelines/{name}.py"
            for name in (
                "beam_worker",
                "beam_pipeline",
                "convert",
                "beam_options",
                "remote_job",
                "run_on_beam",
            )
        ),
        "pipelines/workers.py",
    },
    ("storage", "apache_beam"): {"storage/beam.py"},
    **{("storage", name): {"storage/fsspec_files.py"} for name in ("fsspec", "aiohttp")},
    **{("storage", name): {"storage/s3.py"} for name in ("boto3", "botocore")},
    **{("storage", name): {"storage/gcs.py"} for name in ("google", "requests")},
}
"""Where a heavy package may appear at all."""

TOP_PACKAGES = {
    **dict.fromkeys(("numpy", "PIL"), ANYWHERE),
    **dict.fromkeys(
        ("setuptools", "build", "nibabel", "pydicom", "shtab", "tensorflow_datasets"), INSIDE_FUNCTIONS
    ),
}
"""What halofeed/*.py may import; parts of halofeed only inside functions, but for the light ones."""
LIGHT = {
    "halofeed",
    *(f"halofeed.{name}" for name in ("errors", "options", "parser", "cli", "conversion", "planning")),
    *(f"halofeed.{name}" for name in ("training", "standard_streams", "completion")),
    "halofeed.schemas.file_layout",
    "halofeed.storage.atomic_files",
    "halofeed.storage.paths",
    *(
        f"halofeed.system.{name}"
        for name in [
            "addresses",
            "errors",
            "arguments",
            "console",
            "resource_errors",
            "signals",
            "wording",
        ]
    ),
}
LIGHT_PARTS = {"halofeed.schemas", "halofeed.storage", "halofeed.system"}


@dataclass(frozen=True)
class Import:
    """One imported module, where it stands, and whether it is executed with its file."""

    module: str
    line: int
    at_import: bool


def imports_of(text: str) -> Iterator[Import]:
    """Every module that a source imports; what stands under `if TYPE_CHECKING` is never executed."""

    def visit(node: ast.AST, at_import: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                yield from visit(child, at_import)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_import)
        elif isinstance(node, ast.ImportFrom):
            yield Import("." * node.level + (node.module or ""), node.lineno, at_import)
            if node.module and node.module.startswith("halofeed"):
                for alias in node.names:
                    yield Import(f"{node.module}.{alias.name}", node.lineno, at_import)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "__import__",
            "importlib.import_module",
        ):
            name = node.args[0] if node.args else None
            constant = name.value if isinstance(name, ast.Constant) else "computed"
            yield Import(str(constant), node.lineno, at_import)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, at_import and not inside)

    yield from visit(ast.parse(text), True)


def offences(path: str, text: str) -> list[str]:
    """Every import of a file, named by its path below the root, that the design forbids."""
    part = path.split("/")[0]
    found = []
    for entry in imports_of(text):
        place = f"{path}:{entry.line}: {entry.module}"
        top, *below = entry.module.split(".")
        if entry.module.startswith("."):
            found.append(f"{place}: relative; import by the installed name")
        elif top in PARTS:
            found.append(f"{place}: import it as halofeed.{entry.module}")
        elif top == "halofeed" and below and below[0] in PARTS:
            if part in PARTS and below[0] not in MAY_IMPORT_PARTS[part]:
                found.append(f"{place}: {part} may not import {below[0]}")
            if (
                part == "halofeed"
                and entry.at_import
                and entry.module.rpartition(".")[0] not in LIGHT | LIGHT_PARTS
                and entry.module not in LIGHT
            ):
                found.append(f"{place}: import it inside the function that needs it")
        elif top != "halofeed" and top not in sys.stdlib_module_names:
            allowed = MAY_IMPORT_PACKAGES.get(part, TOP_PACKAGES).get(top)
            if allowed is None:
                found.append(f"{place}: {part} may not import {top}")
            elif allowed == INSIDE_FUNCTIONS and entry.at_import:
                found.append(f"{place}: only inside functions")
            files = ONLY_IN_FILES.get((part, top))
            if files is not None and path not in files:
                found.append(f"{place}: only in {', '.join(sorted(files))}")
    return found


def sources() -> list[Path]:
    """The files of every part, each once: the symlinks below halofeed/ are not followed."""
    own = sorted((ROOT / "halofeed").glob("*.py"))
    return own + [path for part in PARTS for path in sorted((ROOT / part).rglob("*.py"))]


def test_every_import_is_allowed():
    assert len(sources()) > 60
    found = [offence for name, text in programs() for offence in offences(name, text)]
    assert found == [], "\n".join(found)


def module_of(path: Path) -> str:
    """The dotted name of a file's module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "halofeed" else ("halofeed", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def in_cycles(imports: dict[str, set[str]]) -> set[str]:
    """The modules that import themselves by way of others."""

    def reached(start: str) -> set[str]:
        found, waiting = set(), [start]
        while waiting:
            new = imports.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    return {module for module in imports if module in reached(module)}


def test_files_import_each_other_in_one_direction_also_inside_functions_and_for_typing():
    modules = {module_of(path): path for path in sources()}
    imports = {
        module: {
            f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in modules else node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        & modules.keys()
        for module, path in modules.items()
    }
    assert sum(map(len, imports.values())) > 1000
    assert in_cycles(imports) == set()


def test_a_forbidden_import_is_found_and_an_allowed_one_passes():
    for path, text, expected in (
        ("schemas/fake.py", "import cv2", "schemas may not import cv2"),
        ("schemas/fake.py", "from halofeed.prep.geometry.resize import apply", "schemas may not import prep"),
        ("prep/fake.py", "import apache_beam as beam", "prep may not import apache_beam"),
        ("prep/fake.py", "import importlib\nimportlib.import_module('jax')", "prep may not import jax"),
        ("pipelines/shard_writer.py", "import apache_beam", "only in pipelines/beam_options.py"),
        ("loader/dataset.py", "import tensorflow as tf", "only inside functions"),
        ("inspection/fake.py", "import halofeed.trainer.step", "inspection may not import trainer"),
        ("prep/fake.py", "from .boxes import place_boxes", "relative"),
        ("prep/fake.py", "from schemas.keys import LABEL", "import it as halofeed.schemas.keys"),
        ("halofeed/fake.py", "from halofeed.loader import Loader", "inside the function that needs it"),
        ("halofeed/fake.py", "import requests", "halofeed may not import requests"),
    ):
        found = offences(path, text)
        assert found and expected in found[0], found
    for path, text in (
        ("loader/dataset.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jax"),
        ("loader/stream.py", "def f():\n    import tensorflow as tf"),
        ("prep/fake.py", "import os, json\nfrom halofeed.system.errors import SourceError"),
        ("halofeed/fake.py", "def f():\n    from halofeed.loader import Loader"),
    ):
        assert offences(path, text) == []


def modules_after(program: str) -> set[str]:
    """The top-level modules that are loaded once a program has run in a new process."""
    code = f"{program}\nimport sys\nprint('|', *sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("|")[2].split())


HEAVY = {"apache_beam", "tensorflow", "jax", "flax", "optax", "orbax"}
HELP = "import contextlib, io, halofeed.cli\nwith contextlib.redirect_stdout(io.StringIO()): halofeed.cli.main({})"
LIGHT_PROGRAMS = [
    "import halofeed",
    "import halofeed.schemas.manifest, halofeed.schemas.partition, halofeed.schemas.index",
    "import halofeed.prep, halofeed.prep.convert.picture_records, halofeed.prep.layouts, halofeed.prep.options.recipe",
    "import halofeed.loader, halofeed.loader.mesh_batches",
    "import halofeed.inspection.verify, halofeed.inspection.describe_dataset",
    "import halofeed.pipelines.convert, halofeed.pipelines.run_local",
    "import halofeed.trainer.config, halofeed.trainer.platform, halofeed.schemas.file_layout",
    HELP.format("['--help']"),
    HELP.format("['convert', '--help']"),
    HELP.format("['train', '--help']"),
]


def test_light_imports_load_nothing_heavy():
    """One process runs all programs: what none of them loads together, none loads alone."""
    assert not modules_after("\n".join(LIGHT_PROGRAMS)) & HEAVY


def test_a_first_batch_of_raw_records_needs_no_decoder_and_no_network(tmp_path):
    """They would double its time, which begins with the import."""
    draw_folders(tmp_path / "photos", 4)
    sides = ["--height", "8", "--width", "8", "--encoding", "raw"]
    words = [
        "convert",
        "--layout",
        "folders",
        "--source",
        str(tmp_path / "photos"),
        "--name",
        "photos",
        *sides,
    ]
    subprocess.run([sys.executable, "-m", "halofeed", *words, "--out", str(tmp_path / "out")], check=True)
    data = str(tmp_path / "out" / "photos" / "1.0.0")
    loaded = modules_after(
        f"from halofeed.loader import Loader\nnext(Loader({data!r}, batch_size=2).batches())"
    )
    assert "numpy" in loaded
    assert not loaded & (HEAVY | {"cv2", "PIL", "simplejpeg", "http", "ssl", "email", "xml", "subprocess"})


def test_a_conversion_on_this_machine_does_without_beam(tmp_path):
    """The import takes a second, which is most of the time of a small conversion."""
    draw_folders(tmp_path / "photos", 4)
    for workers in ("1", "2"):
        words = ["convert", "--layout", "folders", "--source", str(tmp_path / "photos"), "--name", "photos"]
        words += ["--out", str(tmp_path / workers), "--height", "16", "--width", "16", "--workers", workers]
        program = f"import halofeed.cli\nassert halofeed.cli.main({words}, alone=True) == 0"
        assert not modules_after(program) & (HEAVY | {"nibabel", "pydicom"})


def test_help_imports_little():
    """Its time, which differs with what else the machine does, is shown by `benchmarks/beside.py`."""
    command = [sys.executable, "-X", "importtime", "-m", "halofeed", "convert", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = re.findall(r"import time:.*\|\s+(\S+)$", done.stderr, re.MULTILINE)
    assert 50 < len(imported) < 200 and not {"numpy", "cv2", "jax", "apache_beam", "ssl", "PIL"} & set(
        imported
    )


def programs() -> Iterator[tuple[str, str]]:
    """The name and the text of every file of halofeed."""
    return ((path.relative_to(ROOT).as_posix(), path.read_text()) for path in sources())


def spelled(text: str) -> list[str]:
    """The keys that a program holds as texts of their own; messages may name keys."""
    texts = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return [value for value in texts if isinstance(value, str) and re.fullmatch("image/[a-z0-9_/]+", value)]


def test_keys_are_spelled_in_the_schema_alone() -> None:
    assert spelled("features['image/height']") == ["image/height"]
    found = {name: spelled(text) for name, text in programs() if name != "schemas/keys.py"}
    assert not {name: names for name, names in found.items() if names}


def test_every_list_of_the_parts_has_all_of_them() -> None:
    named = re.search(r"^PARTS = (.+)$", (ROOT / "setup.py").read_text(), re.MULTILINE)
    links = {path.name for path in (ROOT / "halofeed").iterdir() if path.is_symlink()}
    assert named is not None
    assert set(PARTS) == set(packaging.PARTS) == set(ast.literal_eval(named[1])) == links - {"py.typed"}


def test_no_key_has_two_names() -> None:
    named = [value for value in vars(keys).values() if isinstance(value, str) and value.startswith("image/")]
    assert len(named) == len(set(named)) >= 35


QUESTION = re.compile(
    r"(How|What|Which|Where|Whether|Why|When|Who|Whose|Does|Is|Are|May|Has|Have|Can|Should)\b|.*\?$"
)
SHARED = {"list_labels", "list_references", "label_values", "channel_names", "main"}
SHARED |= {"convert", "dry_run", "plan", "predict", "train", "verify"}
"""Functions that several modules define because they implement one interface, or are the Python API's for another."""
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sources()}


def test_docstrings_begin_with_a_statement():
    found = []
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
                text := ast.get_docstring(node)
            ):
                first = text.partition("\n")[0]
                if QUESTION.match(first):
                    found.append(f"{name}:{getattr(node, 'lineno', 1)}: {first}")
    assert found == []


def test_a_public_name_has_one_meaning():
    """Aliases with the same value, and constants of a module's own format tables, count once."""
    meanings: dict[str, dict[str, str]] = defaultdict(dict)
    for file, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                meanings[node.name][file] = file
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                meanings[node.targets[0].id][ast.dump(node.value)] = file
    several = {
        name: sorted(places.values())
        for name, places in meanings.items()
        if len(places) > 1 and not name.startswith("_") and name not in SHARED
    }
    assert several == {}


def test_a_part_has_one_name() -> None:
    code = "import sys; sys.path[0] = '.'\nfor part in sys.argv[1:]:\n    try: __import__(part + '.' + part)"
    code += "\n    except ImportError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code, *PARTS], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        f"{part} is halofeed's part {part}: write import halofeed.{part}" for part in PARTS
    ]


OPENING_CALLS = {
    *(
        "open",
        "io.open",
        "io.FileIO",
        "os.open",
        "os.fdopen",
        "os.scandir",
        "os.listdir",
        "os.walk",
        "os.fwalk",
    ),
    *("glob.glob", "glob.iglob", "mmap.mmap", "sqlite3.connect", "tarfile.open", "tarfile.TarFile"),
    *(
        "zipfile.ZipFile",
        "gzip.open",
        "gzip.GzipFile",
        "bz2.open",
        "bz2.BZ2File",
        "lzma.open",
        "lzma.LZMAFile",
    ),
    *(
        f"tempfile.{name}"
        for name in ("TemporaryFile", "NamedTemporaryFile", "mkstemp", "SpooledTemporaryFile")
    ),
    *(f"shutil.{name}" for name in ("copy", "copy2", "copyfile", "copytree", "move", "rmtree")),
    *(f"socket.{name}" for name in ("socket", "socketpair", "create_connection", "create_server")),
    *(f"http.client.{name}" for name in ("HTTPConnection", "HTTPSConnection")),
    *("urllib.request.urlopen", "urllib.request.urlretrieve", "requests.get", "requests.Session"),
    *(
        f"numpy.{name}"
        for name in ("load", "save", "savez", "savez_compressed", "fromfile", "memmap", "loadtxt")
    ),
    *("PIL.Image.open", "cv2.imread", "cv2.imwrite", "cv2.VideoCapture", "cv2.VideoWriter", "h5py.File"),
    *("nibabel.load", "nibabel.save", "pydicom.dcmread", "pyarrow.parquet.ParquetFile"),
    *("pyarrow.parquet.ParquetWriter", "logging.FileHandler"),
}
"""Calls that open or list what is outside the process, by the names of the modules."""
OPENING_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "glob", "rglob"}
"""Methods of paths that do so, and `open` with a mode or an encoding."""

_MEMORY = "a stream of bytes in memory, or one that storage has opened"
_PROCESS = "what the process itself is connected to"
_MACHINE = "facts that the system tells of processes and of the machine"
_PACKAGE = "resources of an installed package, by importlib"
_LIBRARY = "the library opens a path by itself"
MAY_OPEN = {
    ("system/errors.py", ".read_text"): _PACKAGE,
    ("halofeed/packaging.py", "gzip.GzipFile"): _MEMORY,
    ("halofeed/packaging.py", "tarfile.open"): _MEMORY,
    ("halofeed/packaging.py", "zipfile.ZipFile"): _MEMORY,
    ("halofeed/standard_streams.py", "open"): _PROCESS,
    ("halofeed/standard_streams.py", "os.open"): _PROCESS,
    ("inspection/export_shards.py", "tarfile.open"): _LIBRARY,
    ("inspection/html/page.py", ".read_text"): _PACKAGE,
    ("inspection/html/run_gallery.py", "numpy.load"): _MEMORY,
    ("inspection/review/kept_predictions.py", "numpy.savez"): _MEMORY,
    ("inspection/html/run_gallery.py", "zipfile.ZipFile"): _MEMORY,
    ("loader/forms/nnunet_cases.py", ".open"): _LIBRARY,
    ("pipelines/lease.py", ".read_text"): _MACHINE,
    (
        "pipelines/beam_options.py",
        "shutil.rmtree",
    ): "the temporary folder of Beam's options, which is deleted",
    ("pipelines/references.py", "numpy.save"): _MEMORY,
    ("pipelines/workers.py", ".write_text"): _MACHINE,
    ("pipelines/workers.py", "os.listdir"): _MACHINE,
    ("pipelines/workers.py", "os.open"): _PROCESS,
    ("pipelines/workers.py", "socket.socket"): _PROCESS,
    ("pipelines/workers.py", "socket.socketpair"): _PROCESS,
    ("prep/annotations/container_rows.py", "tarfile.open"): _MEMORY,
    ("prep/formats/clip/video.py", "cv2.VideoCapture"): _MEMORY,
    ("prep/formats/volume/nifti.py", "gzip.GzipFile"): _MEMORY,
    ("prep/sources/parquet.py", "pyarrow.parquet.ParquetFile"): _MEMORY,
    ("system/console.py", "os.open"): _PROCESS,
    ("system/memory.py", ".read_text"): _MACHINE,
    ("trainer/config.py", ".iterdir"): _PACKAGE,
    ("trainer/config.py", ".read_text"): _PACKAGE,
    ("trainer/evaluate.py", "numpy.savez_compressed"): _LIBRARY,
    ("trainer/models/keras_weights.py", "h5py.File"): _LIBRARY,
    ("trainer/models/keras_weights.py", "zipfile.ZipFile"): _LIBRARY,
    ("trainer/platform.py", ".glob"): _MACHINE,
    ("trainer/platform.py", ".read_text"): _MACHINE,
}
"""Calls outside of storage/ that stay, by file, with the reason. Orbax and TensorFlow, too, write into folders."""


def opened(text: str) -> Iterator[tuple[int, str]]:
    """Every call of a source that opens or lists what is outside the process; bytes in memory are inside."""
    tree, modules = ast.parse(text), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            # `import a.b` binds a, `import a.b as c` binds c.
            modules |= {alias.asname: alias.name for alias in node.names if alias.asname}
            modules |= {
                (top := alias.name.partition(".")[0]): top for alias in node.names if not alias.asname
            }
        elif isinstance(node, ast.ImportFrom):
            modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        words = [] if not isinstance(node, ast.Call) else list(map(ast.unparse, node.args))
        # BytesIO and mmap.mmap(-1) are memory.
        if not isinstance(node, ast.Call) or words[:1] == ["-1"] or any("BytesIO" in word for word in words):
            continue
        first, dot, rest = ast.unparse(node.func).partition(".")
        name = f"{modules.get(first, '' if dot else first)}{dot}{rest}"
        if name in OPENING_CALLS and name not in own:
            yield node.lineno, name
        elif isinstance(node.func, ast.Attribute) and (
            # A path's `read_bytes` has no arguments; that of a reader of regions counts memory.
            (node.func.attr in OPENING_METHODS and not (node.func.attr == "read_bytes" and node.args))
            or (node.func.attr == "open" and has_mode(node))
        ):
            yield node.lineno, f".{node.func.attr}"


def has_mode(call: ast.Call) -> bool:
    """Return whether a call of `open` has the mode or the encoding of a path's method."""
    modes = [value.value for value in call.args[:1] if isinstance(value, ast.Constant)]
    return bool(
        [mode for mode in modes if isinstance(mode, str) and re.fullmatch("[rwaxbt+]+", mode)]
        or {word.arg for word in call.keywords} & {"mode", "encoding", "newline"}
    )


def test_only_storage_opens_what_is_outside_the_process() -> None:
    calls = {
        (name, call, line)
        for name, text in programs()
        if not name.startswith("storage/")
        for line, call in opened(text)
    }
    found = sorted(f"{name}:{line}: {call}" for name, call, line in calls if (name, call) not in MAY_OPEN)
    assert found == [], "call a function of storage/paths.py or storage/atomic_files.py:\n" + "\n".join(found)
    assert set(MAY_OPEN) <= {(name, call) for name, call, _ in calls}, "an exception that nothing needs"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("open('a')", "open"),
        ("import numpy as np\nnp.load(path)", "numpy.load"),
        ("from PIL import Image\nImage.open(path)", "PIL.Image.open"),
        ("import os\nos.scandir('.')", "os.scandir"),
        ("import urllib.request\nurllib.request.urlopen(a)", "urllib.request.urlopen"),
        ("folder.iterdir()", ".iterdir"),
        ("path.open('xb')", ".open"),
        ("path.open(encoding='utf-8')", ".open"),
        ("from tempfile import TemporaryFile as T\nT()", "tempfile.TemporaryFile"),
        ("import numpy as np, io\nnp.load(io.BytesIO(data))", None),
        ("files.open(path)", None),
        ("shard.open()", None),
        ("import os\nos.path.join('a', 'b')", None),
    ],
)
def test_a_call_that_opens_a_file_is_found(text: str, expected: str | None) -> None:
    assert [name for _, name in opened(text)] == ([] if expected is None else [expected])
