"""What Java engines share: their jars from Maven, and how a Java process is started."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.support.engines.processes import alone, cache, need, prepare

BEAM = "2.62.0"
"""The newest whose Java runners resolve whole; it takes pipelines of later Python SDKs."""

_PACKAGES = (
    "lang lang.invoke lang.reflect io net nio text time util util.concurrent util.concurrent.atomic "
    "util.concurrent.locks"
)
_OPENED = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        *(f"java.{name}" for name in _PACKAGES.split()),
        *("sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar"),
    )
]


def jars(name: str, dependencies: Sequence[str]) -> Path:
    """The folder of these artifacts, GROUP:NAME:VERSION each, and all that they need to run; downloaded once.

    Raises:
        MissingError: Java or Maven is missing, or Maven cannot have them.
    """
    need("java", "default-jre-headless")
    maven = need("mvn", "maven")
    digest = hashlib.sha256(" ".join(dependencies).encode()).hexdigest()[:12]
    folder = cache() / f"{name}-{digest}"
    with alone(name):
        if not folder.is_dir():
            _download(folder, maven, name, dependencies)
    return folder


def _download(folder: Path, maven: str, name: str, dependencies: Sequence[str]) -> None:
    work = folder.with_suffix(".part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    form = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
    wanted = "".join(form.format(*dependency.split(":")) for dependency in dependencies)
    (work / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>engines</groupId><artifactId>{name}</artifactId><version>1</version>"
        f"<dependencies>{wanted}</dependencies></project>"
    )
    command = [maven, "-B", "-q", "-f", work / "pom.xml", "dependency:copy-dependencies"]
    prepare([*command, f"-DoutputDirectory={work / 'jars'}", "-DincludeScope=runtime"], work / "maven.log")
    (work / "jars").rename(folder)
    shutil.rmtree(work)


def java(folder: Path, main: str, *arguments: str, mebibytes: int, flags: Sequence[str] = ()) -> list[str]:
    """The command of a Java program whose class path is a folder of jars."""
    memory = [f"-Xmx{mebibytes}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return ["java", *memory, *_OPENED, *flags, "-cp", f"{folder}/*", main, *arguments]
