"""What a stream is, so that a saved step is only resumed in the stream it was taken from.

How a loader's stream becomes a tf.data.Dataset, for programs that loop over it and for Keras.

What every stream of batches can do, whichever data sets it is of: NumPy, tf.data, jax.Arrays on a mesh, resume.
"""

from __future__ import annotations

import abc
import functools
import hashlib
import itertools
import json
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import UsageError, require_extra
from halofeed.loader.augment.view import Ranges
from halofeed.loader.batch import AHEAD, ID, LABELLED, LABELS, VALID, ArraySpec, Batch, batches_ahead
from halofeed.loader.in_flight import Prefetcher
from halofeed.loader.reading import IMAGE, LABEL
from halofeed.schemas.bounded_json import check_json_checksum, with_json_checksum
from halofeed.schemas.kinds import Kind
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.partition import Partition

if TYPE_CHECKING:
    import jax
    import tensorflow as tf
    from jax.sharding import Mesh, PartitionSpec

    from halofeed.loader.picture import Canvas


STATE_VERSION = 1


def fingerprint(manifest: Manifest, split: str) -> str:
    """SHA-256 of what a split holds: its fields, and each shard's record count, size and checksum in order."""
    content = {
        "fields": [field.to_json() for field in manifest.fields],
        "shards": [(shard.records, shard.bytes, shard.crc32c) for shard in manifest.split(split).shards],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest(numbers: NDArray[np.int64]) -> str:
    """SHA-256 of numbers."""
    return hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()


def restore_step(state: Mapping[str, Any], stream: Mapping[str, Any]) -> int:
    """The step of a saved state, if it belongs to the stream.

    Args:
        state: what `Loader.state` gave, perhaps read back from JSON.
        stream: what the state must agree with, key by key.

    Raises:
        UsageError: lists everything that differs; or the state was changed after it was given.
    """
    if not isinstance(state, Mapping) or "step" not in state:
        raise UsageError(f"not a loader's state: expected a dictionary with a step, got {state!r:.80}")
    try:
        state = check_json_checksum(dict(state))
    except ValueError as error:
        raise UsageError(
            f"state: {error}; restore it as it was saved, or start at a step of your choice, such as start_step=0"
        ) from error
    if state.get("state_version") != STATE_VERSION:
        raise UsageError(
            f"state: expected state_version {STATE_VERSION}, got {state.get('state_version')!r}; it was saved by "
            "another version of halofeed"
        )
    step = state["step"]
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise UsageError(f"state: step: expected an integer of 0 or more, got {step!r}")
    different = [
        f"{key}: the state has {state.get(key)!r}, this loader {value!r}"
        for key, value in stream.items()
        if state.get(key) != value
    ]
    if different:
        raise UsageError(
            "the state is of another stream, whose batches differ:\n  "
            + "\n  ".join(different)
            + f"\nbuild the loader with the same arguments, or start the new stream at a step of your choice, "
            f"such as start_step={step}"
        )
    return step


PREFETCH = 1
"""Batches that wait to be taken, beside those that are being made."""


def element_spec(spec: Mapping[str, ArraySpec]) -> dict[str, tf.TensorSpec]:
    """The tf.TensorSpec of each array of a batch."""
    with require_extra("tf", "tensorflow"):
        import tensorflow as tf

    return {
        name: tf.TensorSpec(array.shape, tf.string if array.dtype.hasobject else tf.as_dtype(array.dtype))
        for name, array in spec.items()
    }


def dataset(loader: Stream, start_step: int, as_supervised: bool) -> tf.data.Dataset:
    """The stream from a step on; see `Stream.dataset`."""
    with require_extra("tf", "tensorflow"):
        import tensorflow as tf

    steps = loader.steps_from(start_step)
    spec = element_spec(loader.spec)

    def make(step: Any) -> tuple[Any, ...]:
        return tuple(_encoded(array) for array in loader.in_order(int(step)).values())

    def element(step: tf.Tensor) -> dict[str, tf.Tensor]:
        tensors = tf.numpy_function(make, [step], [one.dtype for one in spec.values()])
        for tensor, one in zip(tensors, spec.values(), strict=True):
            tensor.set_shape(one.shape)
        return dict(zip(spec, tensors, strict=True))

    def supervised(step: tf.Tensor) -> tuple[Any, ...]:
        batch = element(step)
        image, identity, valid = (batch.pop(name) for name in (IMAGE, ID, VALID))
        del identity
        labelled = batch.pop(LABELLED, None)
        target: Any = batch
        for name in (LABEL, LABELS):
            target = batch.get(name, target)
        if labelled is None and not loader.may_pad:
            return image, target
        weight = valid if labelled is None else tf.logical_and(valid, labelled)
        return image, target, tf.cast(weight, tf.float32)

    if isinstance(steps, range):
        numbers = tf.data.Dataset.range(steps.start, steps.stop)
    else:
        numbers = tf.data.Dataset.counter(start_step)
    at_once = max(1, batches_ahead(loader.spec))
    made = numbers.map(supervised if as_supervised else element, at_once, deterministic=True)
    return made.prefetch(PREFETCH)


def _encoded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Text as the bytes that TensorFlow takes, file names that are not UTF-8 included."""
    if not array.dtype.hasobject:
        return array
    encoded = np.empty(array.shape, object)
    encoded[...] = [text.encode("utf-8", "surrogateescape") for text in array]
    return encoded


class Stream(abc.ABC):
    """Batches, each a pure function of its step.

    Attributes:
        batch_size: rows of the global batch, over all hosts.
        shard_index, shard_count: which of how many hosts this is.
        kind: of the images.
        steps: batches of the whole stream; None if it has no end.
        may_pad: whether the last batch may have rows that are not valid.
        row_spec: shape and dtype of each array of one row.
        on_grid: the arrays on the image's grid.
    """

    batch_size: int
    shard_index: int
    shard_count: int
    kind: Kind
    steps: int | None
    may_pad: bool
    row_spec: Mapping[str, ArraySpec]
    on_grid: tuple[str, ...]

    @property
    @abc.abstractmethod
    def class_names(self) -> tuple[str, ...]:
        """The name of each label, `class_names[label]`: 0 is the background where labels begin at 1."""

    @abc.abstractmethod
    def of_slab(self, slab: Ranges) -> Stream:
        """The same stream with a part of each image, and of each label on its grid, of which no more is read.

        Args:
            slab: (start, stop) along each of the image's axes but the channel.
        """

    @abc.abstractmethod
    def _rows(self, step: int, start: int, stop: int) -> Batch:
        """Rows start .. stop-1 of the global batch `step`."""

    def _expect(self, step: int, start: int, stop: int) -> None:  # noqa: B027
        """Begin to fetch what `_rows` of the same arguments reads, where that takes long; nothing past the end."""

    @abc.abstractmethod
    def _stream(self) -> dict[str, Any]:
        """What decides the stream, as JSON values."""

    def __len__(self) -> int:
        if self.steps is None:
            raise TypeError("the stream has no end and so no length; pass num_epochs, or use steps_per_epoch")
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    @property
    def num_classes(self) -> int:
        """How many numbers labels have, the background's among them."""
        return len(self.class_names)

    def picture(self, step: int = 0, *, split: Sequence[int] | None = None, side: int = 320) -> Canvas:
        """A batch as people look at it, uint8 [height, width, channel]; see `halofeed.loader.picture.draw_batch`."""
        from halofeed.loader.picture import draw_batch

        return draw_batch(self.batch(step), self.kind, self.class_names, split=split, side=side)

    def _repr_html_(self) -> str:
        """What a notebook shows: the arrays of a batch, and the first one."""
        from halofeed.loader.picture import notebook_html
        from halofeed.prep.voxels.encode import encode_png

        rows = {name: (array.shape, array.dtype) for name, array in self.spec.items()}
        return notebook_html(rows, bytes(encode_png(self.picture(side=160), 0)), repr(self))

    @property
    def spec(self) -> dict[str, ArraySpec]:
        """Shape and dtype of each array of this host's batches."""
        rows = self.batch_size // self.shard_count
        return with_batch(self.row_spec, rows)

    def batch(self, step: int) -> Batch:
        """This host's rows of one global batch; may be called from several threads.

        Raises:
            UsageError: the step is negative or past the stream's end.
            CorruptFileError: names the file, the record's offset and id, and the cure.
        """
        return self._rows(operator.index(step), *self._own_rows)

    def in_order(self, step: int) -> Batch:
        """`batch(step)`, while what a step soon after it needs is fetched, where that takes long."""
        return self._rows_in_order(operator.index(step), *self._own_rows)

    def batches(self, start_step: int = 0) -> Iterator[Batch]:
        """`batch(start_step)`, `batch(start_step + 1)`, ... to the end of the stream.

        From the second one on `buffers.AHEAD` batches are made while one is used, where memory allows; see
        `batches_ahead` there.
        """
        return self._rows_ahead(start_step, *self._own_rows)

    def dataset(self, start_step: int = 0, *, as_supervised: bool = False) -> tf.data.Dataset:
        """The same stream as a tf.data.Dataset, whose first element is `batch(start_step)`.

        TensorFlow adopts the batches' memory without a copy. As many are made ahead as of `batches`, and one more
        waits to be taken. Text comes as tf.string.

        With `as_supervised` the elements are what Keras' `fit` and `evaluate` take: (image, target), and float32
        [batch] weights as a third where rows may be padding or have no label, which weigh 0. The target is `label` or
        `labels`, and of detection the dict of all else but `id`.

        An error of `batch`, such as CorruptFileError, comes out of the stream as TensorFlow's own
        (tf.errors.UnknownError), whose message holds ours.
        """
        return dataset(self, start_step, as_supervised)

    @property
    def element_spec(self) -> dict[str, tf.TensorSpec]:
        """What `dataset` gives, as TensorFlow describes it."""
        return element_spec(self.spec)

    def by_step(self) -> BatchesByStep:
        """The stream as a map from step to batch, as torch.utils.data.DataLoader takes it."""
        return BatchesByStep(self)

    def on_mesh(
        self, mesh: Mesh, partition: Partition | Mapping[str, PartitionSpec], start_step: int = 0
    ) -> Iterator[dict[str, jax.Array]]:
        """The same stream as global jax.Arrays, each core's slab already on its device.

        `shard_index` and `shard_count` have no say: each process reads the rows, and of raw images and labels the
        slabs, that its devices need. `id` comes as uint32 [batch, 2], high and low.

        In a training step of your own, hold every activation to its split, after each convolution, pool and change of
        size: `activation = halofeed.trainer.mesh.constrain(activation, mesh, dims)`. Without it XLA chooses the
        splits of the late, small levels itself, and some of its choices give wrong weight gradients without a word,
        while the loss is exact (a 3x3 convolution of stride 2 from 8 rows to 4 on 8 cores: off by 46 %).
        docs/partition.md shows it.

        Args:
            mesh: where to.
            partition: ours, or a PartitionSpec per key.
            start_step: the first batch.

        Raises:
            PartitionError: the partition does not fit the mesh or the batch.
            UsageError: the batches hold text, which no device takes.
        """
        from halofeed.loader.mesh import mesh_specs, needed_rows, needed_slab, place_batch

        if not isinstance(partition, Partition | Mapping):
            raise UsageError(
                f"partition: expected a Partition or a PartitionSpec per key, got {partition!r}; "
                "Partition.parse reads 'image=1,4,1,1'"
            )
        spec = with_batch(self.row_spec, self.batch_size)
        if text := [name for name, array in spec.items() if array.dtype.hasobject]:
            raise UsageError(
                f"on_mesh: {', '.join(text)} is text, which no device takes; leave it out of include"
            )
        shapes = {name: array.shape for name, array in spec.items()}
        specs = mesh_specs(mesh, partition, shapes) if isinstance(partition, Partition) else dict(partition)

        slab = needed_slab(mesh, specs, shapes, self.on_grid, len(self.kind.axes))
        source, (start, stop) = self.of_slab(slab), needed_rows(mesh, specs, shapes)
        offsets = dict.fromkeys(self.on_grid, tuple(start for start, _ in slab))

        def place(rows: Batch) -> dict[str, jax.Array]:
            return place_batch(mesh, specs, shapes, lambda *_: rows, offsets=offsets)

        # Devices hold no more than what was asked for: only the rows are made ahead, in the host's memory.
        return map(place, source._rows_ahead(start_step, start, stop))

    def state(self, step: int) -> dict[str, Any]:
        """What to save so that another loader, on any number of hosts, goes on with batch `step`; JSON values.

        Raises:
            UsageError: the step is negative or past the stream's end.
        """
        return with_json_checksum(
            {"state_version": STATE_VERSION, "step": self._checked("step", step), **self._stream()}
        )

    def restore(self, state: Mapping[str, Any]) -> int:
        """The step at which to go on.

        `num_epochs`, `include`, `verify` and the hosts may differ from those of the loader that gave the state.

        Raises:
            UsageError: the state is of another data set or stream; lists what differs.
        """
        step = restore_step(state, self._stream())
        self.steps_from(step)
        return step

    def steps_from(self, start_step: int) -> Iterable[int]:
        """The numbers of all batches from one on.

        Raises:
            UsageError: the step is negative or past the stream's end.
        """
        start_step = self._checked("start_step", start_step)
        return itertools.count(start_step) if self.steps is None else range(start_step, self.steps)

    @property
    def _own_rows(self) -> tuple[int, int]:
        """The rows [start, stop) of every global batch that are this host's."""
        rows = self.batch_size // self.shard_count
        return self.shard_index * rows, (self.shard_index + 1) * rows

    def _rows_ahead(self, start_step: int, start: int, stop: int) -> Prefetcher[Batch]:
        return Prefetcher(
            functools.partial(self._rows_in_order, start=start, stop=stop),
            self.steps_from(start_step),
            batches_ahead(with_batch(self.row_spec, stop - start)),
            functools.partial(self._expect, start=start, stop=stop),
        )

    def _rows_in_order(self, step: int, start: int, stop: int) -> Batch:
        # The steps between them are being made, or soon will be, by others: see `InFlight`.
        for expected in (step, step + AHEAD):
            self._expect(expected, start, stop)
        return self._rows(step, start, stop)

    def _checked(self, name: str, step: int) -> int:
        step = operator.index(step)
        if step < 0 or (self.steps is not None and step > self.steps):
            last = " and more" if self.steps is None else f" to {self.steps}"
            raise UsageError(f"{name} {step}: expected 0{last}")
        return step


class BatchesByStep:
    """A stream as a map from step to batch.

    torch's DataLoader takes it, and its workers make whole batches:
    `DataLoader(loader.by_step(), batch_size=None, sampler=range(start_step, steps), num_workers=2)`.
    """

    def __init__(self, loader: Stream) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __getitem__(self, step: int) -> Batch:
        return self._loader.batch(step)


def check_hosts(batch_size: int, shard_index: int, shard_count: int) -> None:
    """Refuse hosts over which the batch cannot be spread."""
    if shard_count < 1 or not 0 <= shard_index < shard_count:
        raise UsageError(
            f"shard_index {shard_index} of shard_count {shard_count}: expected 0 to shard_count - 1"
        )
    if batch_size % shard_count:
        divisors = [count for count in range(1, batch_size + 1) if batch_size % count == 0]
        below = [count for count in divisors if count < shard_count][-1:]
        above = [count for count in divisors if count > shard_count][:1]
        batches = [batch_size // shard_count * shard_count, -(-batch_size // shard_count) * shard_count]
        raise UsageError(
            f"batch_size {batch_size} does not divide by shard_count {shard_count}; use "
            f"{' or '.join(map(str, below + above))} hosts, or a batch_size of "
            f"{' or '.join(str(size) for size in batches if size)}"
        )


def with_batch(spec: Mapping[str, ArraySpec], rows: int) -> dict[str, ArraySpec]:
    """The spec of so many rows, given that of one."""
    return {name: replace(array, shape=(rows, *array.shape)) for name, array in spec.items()}
