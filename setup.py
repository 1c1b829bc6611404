"""Builds halofeed: its parts are at the top level, and halofeed/ links to them.

Builds read a part from the top level where its link is missing, as in a tree that a zip archive carried.
"""

import re
from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).resolve().parent
SOURCES = ("kernel", "packed", "packing", "coloring", "triangle", "signing", "measuring")
HEADERS = ("checking", "copying", "interleaving", "packed", "packed_rows", "packing_rows")
"""C files of the kernel, in schemas/native."""
PARTS = ("system", "storage", "inspection", "loader", "pipelines", "prep", "schemas", "trainer")

folders = {part: f"halofeed/{part}" if (HERE / "halofeed" / part).is_dir() else part for part in PARTS}
packages = ["halofeed"]
for part, folder in folders.items():
    packages += [
        f"halofeed.{part}",
        *(f"halofeed.{part}.{name}" for name in find_packages(str(HERE / folder))),
    ]
# Without "halofeed.x", so that an editable install needs no finder, which delays every start by 15 ms.
package_dir = {"": "."} | {f"halofeed.{part}": folder for part, folder in folders.items() if folder == part}

setup(
    version=re.search(r'__version__ = "(.+?)"', (HERE / "halofeed" / "__init__.py").read_text()).group(1),
    package_dir=package_dir,
    packages=packages,
    # A library without Python's headers, called through ctypes; where there is no compiler the loader does without.
    ext_modules=[
        Extension(
            "halofeed.schemas.native._kernel",
            [f"{folders['schemas']}/native/{name}.c" for name in SOURCES],
            depends=[f"{folders['schemas']}/native/{name}.h" for name in HEADERS],
            # The weights of triangle.c are those of Pillow, which rounds each product.
            extra_compile_args=["-O3", "-ffp-contract=off"],
            libraries=["m"],
            optional=True,
        )
    ],
    package_data={
        "halofeed": ["py.typed", "*.pyi", "help.json"],
        "halofeed.inspection.html": ["*.css", "*.js", "templates/**/*.html"],
        "halofeed.trainer": ["configs/*.toml"],
    },
)
