"""Measure what listing DICOM series costs this process, and whether it grows with their slices.

    python benchmarks/dicom_listing.py
    python benchmarks/dicom_listing.py --before ../before

Series of 10 and of 100 slices are drawn and planned, each by a fresh process. `--before` names another checkout, of
which the same is measured where it plans in its own process alone. The driver is the process that plans: its
processor time and memory are those above what imports take; "received" is what workers tell it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SIDE = 32


def draw(root: Path, series: int, slices: int) -> Path:
    """So many series of so many slices of 32 x 32, with the elements that scanners write."""
    import numpy as np
    import pydicom
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = CTImageStorage
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.ImageType, dataset.Modality = ["ORIGINAL", "PRIMARY", "AXIAL"], "CT"
    dataset.ImageOrientationPatient, dataset.PixelSpacing = [1, 0, 0, 0, 1, 0], [1, 1]
    dataset.SliceThickness, dataset.RescaleSlope, dataset.RescaleIntercept = 2, 1, -1024
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.Rows = dataset.Columns = SIDE
    dataset.BitsAllocated = dataset.BitsStored = 16
    dataset.HighBit, dataset.PixelRepresentation = 15, 0
    for word in ("Manufacturer", "InstitutionName", "StationName", "StudyDescription", "ProtocolName"):
        setattr(dataset, word, "written by a scanner")
    for number in range(series):
        folder = root / f"{number:04d}"
        folder.mkdir(parents=True)
        dataset.PatientID, dataset.StudyInstanceUID = f"P{number}", f"1.2.{number}"
        dataset.SeriesInstanceUID, dataset.FrameOfReferenceUID = f"1.2.{number}.1", f"1.2.{number}.2"
        pixels = np.random.default_rng(number).integers(0, 2000, (SIDE, SIDE)).astype("<u2")
        dataset.PixelData = pixels.tobytes()
        dataset["PixelData"].VR = "OW"
        for index in range(slices):
            dataset.ImagePositionPatient, dataset.InstanceNumber = [0, 0, 2 * index], index + 1
            dataset.SOPInstanceUID = f"1.2.{number}.1.{index + 1}"
            dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
            pydicom.dcmwrite(folder / f"{index:04d}.dcm", dataset, enforce_file_format=True)
    return root


def plan(source: str, workers: int) -> dict[str, float]:
    """Plan in this process, with so many worker processes; 0: as a checkout does whose plan knows of none."""
    from halofeed.pipelines import convert
    from halofeed.pipelines.beam_options import choose_runner
    from halofeed.pipelines.job import JobOptions
    from halofeed.pipelines.opened_sources import open_sources
    from halofeed.pipelines.output_folder import OutputFolder
    from halofeed.pipelines.plan import make_plan
    from halofeed.pipelines.references import NumberedFiles, reference_file
    from halofeed.prep.options.recipe import Recipe
    from halofeed.storage.scratch import scratch_folder

    received = 0
    with tempfile.TemporaryDirectory() as scratch:
        options = JobOptions(source=source, out=scratch, name="set", workers=workers or 1)
        recipe = Recipe(layout="dicom", depth=16, height=SIDE, width=SIDE, shards=workers or 1)
        output, sources = OutputFolder(options.folder), open_sources(options)
        output.make()
        with contextlib.ExitStack() as stack:
            more: list[Any] = []
            if workers:
                run = convert._Run(
                    options=options,
                    recipe=recipe,
                    sources=sources,
                    choice=choose_runner(options, workers, [], 1 << 30),
                    store_settings={},
                    show_progress=False,
                    scratch=stack.enter_context(scratch_folder()),
                    stack=stack,
                    began=time.monotonic(),
                )
                more = [functools.partial(run.find_series, output)]
                if pool := run.workers():
                    for _ in range(workers):
                        pool.submit(time.sleep, 0.2, "began")
                    list(pool.results())
                    whole = pool.results

                    def answers() -> Iterator[tuple[str, Any]]:
                        nonlocal received
                        for key, given in whole():
                            received += len(pickle.dumps(given))
                            yield key, given

                    pool.results = answers  # type: ignore[method-assign]
            import halofeed.prep.formats.dicom.series  # noqa: F401

            written = NumberedFiles(output)

            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            start, processor = time.perf_counter(), time.process_time()
            found = make_plan(options, recipe, sources, written, *more)
            seconds, processor = time.perf_counter() - start, time.process_time() - processor
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
            lines = sum(len(output.read(reference_file(number))) for number in range(written.count))
    return {
        "series": found.totals.convertible,
        "seconds": seconds,
        "driver_s": processor,
        "driver_MiB": memory / 1024,
        "received_kB": received / 1e3,
        "references_kB": lines / 1e3,
    }


def measure(checkout: Path, source: Path, workers: int) -> dict[str, float]:
    """The least of three processes, of each figure."""
    command = [
        sys.executable,
        str(HERE / "benchmarks" / "dicom_listing.py"),
        "--plan",
        str(source),
        str(workers),
    ]
    runs = [
        json.loads(
            subprocess.run(
                command,
                cwd=checkout,
                env={**os.environ, "PYTHONPATH": str(checkout)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout.splitlines()[-1]
        )
        for _ in range(3)
    ]
    return {name: min(run[name] for run in runs) for name in runs[0]}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--plan", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plan:
        print(json.dumps(plan(given.plan[0], int(given.plan[1]))))
        return
    cases = [("this one", HERE, 1), ("this one", HERE, 2)]
    if given.before is not None:
        cases.insert(0, ("before", given.before.resolve(), 0))
    names = ("seconds", "driver_s", "driver_MiB", "received_kB", "references_kB")
    print(f"{'checkout':<10}{'workers':>8}{'slices':>8}" + "".join(f"{name:>15}" for name in names))
    with tempfile.TemporaryDirectory() as scratch:
        sources = {slices: draw(Path(scratch) / str(slices), given.series, slices) for slices in (10, 100)}
        for label, checkout, workers in cases:
            found = {}
            for slices, source in sources.items():
                found[slices] = measure(checkout, source, workers)
                assert found[slices]["series"] == given.series, found
                row = "".join(f"{found[slices][name]:>15.2f}" for name in names)
                print(f"{label:<10}{workers or 1:>8}{given.series * slices:>8}{row}", flush=True)
            ratios = "".join(
                f"{found[100][name] / found[10][name]:>15.2f}" if found[10][name] else f"{'':>15}"
                for name in names
            )
            print(f"{'':<10}{'':>8}{'ratio':>8}{ratios}", flush=True)


if __name__ == "__main__":
    main()
