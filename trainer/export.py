"""Export of a trained model for programs without halofeed, as StableHLO and as a TensorFlow SavedModel.

    OUT/model.stablehlo     jax.export.deserialize(bytes).call(image)
    OUT/saved_model/        tf.saved_model.load(folder).signatures["serving_default"](image=...)
    OUT/signature.json      shapes, dtypes, labels, platforms
    OUT/README.md           how to call either
    OUT/.halofeed           list of the files that halofeed wrote (halofeed.storage.owned_files)

Both hold the parameters and take images as a data set stores them: normalization is part of the graph.

Limits: a model that cannot be traced with a symbolic batch size is exported for one row, as signature.json states.
The SavedModel holds XLA programs without gradients, for the exported platforms; TensorFlow Lite and TensorFlow.js
cannot convert it. A model that was trained on a partition is exported for one device.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from halofeed.loader.stream import start_tensorflow
from halofeed.schemas.file_layout import SIGNATURE
from halofeed.storage import owned_files
from halofeed.storage.atomic_files import atomic_write, temporary_folder
from halofeed.storage.locks import locked_folder
from halofeed.storage.paths import names_in
from halofeed.system.errors import UsageError
from halofeed.trainer.step import TrainingSetup, Variables, predict

PLATFORMS = ("cpu", "cuda", "tpu")
STABLEHLO, SAVED_MODEL, README = "model.stablehlo", "saved_model", "README.md"
EXPORT_FORMAT = 1
Predict = Callable[[jax.Array], dict[str, jax.Array]]


def prediction_function(setup: TrainingSetup, parameters: Variables, statistics: Variables) -> Predict:
    """Return a function from stored images [batch, ..., channel] to predictions, with the parameters as constants.

    Args:
        setup: training setup on any mesh; the function runs on one device.
        parameters: parameters of a checkpoint.
        statistics: norm statistics of a checkpoint.
    """
    local_setup = dataclasses.replace(setup, mesh=None, dims=None)
    # Arrays on the host have no sharding that the program would contain.
    host_parameters, host_statistics = jax.device_get((parameters, statistics))

    def of_image(image: jax.Array) -> dict[str, jax.Array]:
        return predict(local_setup, host_parameters, host_statistics, {"image": image})

    return of_image


@contextmanager
def export_folder(folder: str | Path) -> Iterator[Path]:
    """Create and lock a folder to export into; raise JobError if another process is exporting into it."""
    folder = owned_files.real_folder(folder)
    with locked_folder(folder, "is exporting into", "take another --out"):
        yield folder


def _prepare_folder(folder: Path, *names: str) -> None:
    """Create a folder to export into; raise UsageError if halofeed did not write its files of these names."""
    folder.mkdir(parents=True, exist_ok=True)
    # Files of earlier exports are replaced, and nothing else.
    if set(names).intersection(names_in(folder)):
        others = [line for line in owned_files.foreign_paths(folder) if re.split("/| \\(", line)[0] in names]
        if others:
            raise UsageError(
                f"--out {folder}: an export would replace what halofeed did not write; move it away, or name another "
                "folder:" + "".join(f"\n  {line}" for line in others)
            )
    if not owned_files.has_list(folder):
        owned_files.begin_list(folder)


def export_stablehlo(
    predict: Predict,
    image_shape: Sequence[int],
    dtype: str,
    folder: str | Path,
    *,
    platforms: Sequence[str] = PLATFORMS,
    labels: Mapping[int, str] | None = None,
    task: str = "",
) -> dict[str, Any]:
    """Write model.stablehlo, signature.json and README.md.

    Args:
        predict: output of `prediction_function`.
        image_shape: shape of one image, channels last.
        dtype: dtype of stored images.
        folder: output folder, created if missing; each file is written atomically.
        platforms: platforms to lower the program for, some of cpu, cuda, rocm and tpu.
        labels: class names by id.
        task: name of the data set's task.

    Returns:
        The content of signature.json.

    Raises:
        UsageError: a platform is unknown, or halofeed did not write the existing files of these names.
    """
    if unknown := [name for name in platforms if name not in (*PLATFORMS, "rocm")]:
        raise UsageError(f"platform {unknown[0]!r}: expected some of {', '.join(PLATFORMS)}, rocm")
    exported, fixed_because = _exported(predict, tuple(image_shape), dtype, platforms)
    names = jax.tree.unflatten(exported.out_tree, range(len(exported.out_avals)))
    signature = {
        "format": EXPORT_FORMAT,
        "task": task,
        "labels": [{"id": label, "name": name} for label, name in sorted((labels or {}).items())],
        "inputs": {"image": _described(exported.in_avals[0])},
        "outputs": {name: _described(exported.out_avals[place]) for name, place in sorted(names.items())},
        "normalization": "part of the graph; give pixels or voxels as the data set stores them",
        "platforms": list(exported.platforms),
        "calling_convention_version": exported.calling_convention_version,
        "batch": "any" if fixed_because is None else f"1, because a symbolic size fails: {fixed_because}",
        "jax": jax.__version__,
    }
    folder = Path(folder)
    _prepare_folder(folder, STABLEHLO, SIGNATURE, README)
    atomic_write(folder / STABLEHLO, bytes(exported.serialize()))
    atomic_write(folder / SIGNATURE, (json.dumps(signature, indent=1) + "\n").encode())
    atomic_write(folder / README, _readme(signature).encode())
    return signature


def export_saved_model(
    predict: Predict, image_shape: Sequence[int], dtype: str, folder: str | Path, *, any_batch: bool = True
) -> Path:
    """Write saved_model/ with jax2tf; its signature serving_default takes `image` and returns the predictions by name.

    It runs on the platform on which it is exported: a SavedModel made on a CPU runs on CPUs.

    Args:
        predict: output of `prediction_function`.
        image_shape: shape of one stored image, channels last.
        dtype: dtype of stored images.
        folder: folder in which saved_model/ is created or replaced.
        any_batch: False exports for one row, which `export_stablehlo` reports as necessary.

    Raises:
        UsageError: TensorFlow is not installed, or halofeed did not write the existing saved_model/.
    """
    start_tensorflow()
    import tensorflow as tf
    from jax.experimental import jax2tf

    rows = "batch" if any_batch else "1"
    shape = ", ".join([rows, *map(str, image_shape)])
    converted = jax2tf.convert(predict, polymorphic_shapes=[f"({shape})"], with_gradient=False)
    spec = tf.TensorSpec((None if any_batch else 1, *image_shape), tf.as_dtype(dtype), name="image")
    module = tf.Module()
    module.predict = tf.function(lambda image: converted(image), autograph=False, input_signature=[spec])
    folder = Path(folder)
    final = folder / SAVED_MODEL
    _prepare_folder(folder, SAVED_MODEL)
    with temporary_folder(final) as temporary:
        tf.saved_model.save(module, str(temporary), signatures={"serving_default": module.predict})
        with suppress(OSError):  # an empty folder would count as a foreign one at the next export
            (temporary / "assets").rmdir()
    return final


def _exported(
    predict: Predict, image_shape: tuple[int, ...], dtype: str, platforms: Sequence[str]
) -> tuple[export.Exported, str | None]:
    """Export for any number of rows, or for one row with the reason why a symbolic number fails."""

    def export_rows(rows: Any) -> export.Exported:
        image = jax.ShapeDtypeStruct((rows, *image_shape), jnp.dtype(dtype))  # type: ignore[no-untyped-call]
        return export.export(jax.jit(predict), platforms=tuple(platforms))(image)

    (rows,) = export.symbolic_shape("batch")
    try:
        return export_rows(rows), None
    except Exception as error:  # JAX raises several kinds where a shape or rule depends on the number of rows
        reason = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return export_rows(1), reason


def _described(value: Any) -> dict[str, Any]:
    shape = [int(side) if isinstance(side, int | np.integer) else str(side) for side in value.shape]
    return {"shape": shape, "dtype": str(value.dtype)}


def _readme(signature: Mapping[str, Any]) -> str:
    image = signature["inputs"]["image"]
    outputs = "\n".join(
        f"- `{name}`: {entry['dtype']} [{', '.join(map(str, entry['shape']))}]"
        for name, entry in signature["outputs"].items()
    )
    return f"""# A model exported by halofeed

Input `image`: {image["dtype"]} [{", ".join(map(str, image["shape"]))}], as the data set stores images; normalization is
part of the graph. Outputs:

{outputs}

Platforms: {", ".join(signature["platforms"])}. Names of classes by id: `{SIGNATURE}`.

With JAX, and nothing of halofeed:

```python
from pathlib import Path
from jax import export

predict = export.deserialize(bytearray(Path("{STABLEHLO}").read_bytes())).call
predictions = predict(image)
```

With TensorFlow, if `{SAVED_MODEL}/` is here:

```python
import tensorflow as tf

predict = tf.saved_model.load("{SAVED_MODEL}").signatures["serving_default"]
predictions = predict(image=tf.constant(image))
```
"""
