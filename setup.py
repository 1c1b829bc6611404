"""Builds halofeed: its parts lie at the top level, and halofeed/ links to them."""

import re
from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).resolve().parent
PARTS = ("system", "inspection", "loader", "pipelines", "prep", "schemas", "trainer")

for part in PARTS:
    if not (HERE / "halofeed" / part / "__init__.py").is_file():
        raise SystemExit(
            f"halofeed/{part} is no folder: this checkout lost its symbolic links. Clone again with "
            "`git -c core.symlinks=true clone ...` (on Windows in developer mode), or install an sdist."
        )

setup(
    version=re.search(r'__version__ = "(.+?)"', (HERE / "halofeed" / "__init__.py").read_text()).group(1),
    package_dir={"": "."},  # so that an editable install needs no finder, which delays every start by 15 ms
    packages=find_packages(include=["halofeed", "halofeed.*"]),
    # A library without Python's headers, called through ctypes; where there is no compiler the loader does without.
    ext_modules=[
        Extension(
            "halofeed.loader.native._kernel",
            ["halofeed/loader/native/kernel.c"],
            depends=["halofeed/loader/native/kernel.c"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ],
    package_data={
        "halofeed": ["py.typed", "*.pyi"],
        "halofeed.inspection.html": ["*.css", "templates/**/*.html"],
        "halofeed.trainer": ["configs/*.toml"],
    },
)
