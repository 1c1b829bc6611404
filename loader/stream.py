"""Base class of batch streams: NumPy, tf.data, jax.Arrays on a mesh, and resuming from a saved step."""

from __future__ import annotations

import abc
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import Ranges
from halofeed.loader.batch import AHEAD, ID, LABELLED, LABELS, VALID, ArraySpec, Batch, batches_ahead
from halofeed.loader.epochs import BatchesByStep, EpochPlace, only_valid
from halofeed.loader.planes import CHROMA, LUMA, partition_of_planes
from halofeed.loader.prefetcher import Prefetcher
from halofeed.loader.reading import IMAGE, LABEL
from halofeed.schemas.bounded_json import check_json_checksum, with_json_checksum
from halofeed.schemas.kinds import Kind
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.partition import Partition, nearest_multiples
from halofeed.system.arguments import explains_calls, truth_value, whole_number
from halofeed.system.console import without_banner
from halofeed.system.errors import UsageError, require_extra
from halofeed.system.threads import end_before_interpreter, outside_calls
from halofeed.system.wording import plural

if TYPE_CHECKING:
    import jax
    import tensorflow as tf
    from jax.sharding import Mesh, PartitionSpec

    from halofeed.loader.contact_sheet import Canvas

STATE_VERSION = 1
PREFETCH = 1
"""Finished batches that tf.data holds, in addition to those that are being made."""
_ROWS_IN_NOTEBOOK = 8


class Stream(abc.ABC):
    """Batches, each a pure function of its step.

    Attributes:
        batch_size: rows of the global batch, over all hosts.
        shard_index, shard_count: number of this host, and count of hosts.
        kind: kind of the images.
        steps: number of batches of the stream; None if it has no end.
        may_pad: whether a batch may have rows that are not valid.
        row_spec: shape and dtype of each array of one row.
        on_grid: names of the arrays on the image's grid, each with the pixels along an axis that have one number: 2 for
            `chroma`, and 1 for others.
    """

    batch_size: int
    shard_index: int
    shard_count: int
    kind: Kind
    steps: int | None
    may_pad: bool
    row_spec: Mapping[str, ArraySpec]
    on_grid: Mapping[str, int]

    @property
    @abc.abstractmethod
    def class_names(self) -> tuple[str, ...]:
        """Names of the labels, `class_names[label]`: 0 is the background if labels begin at 1."""

    @property
    @abc.abstractmethod
    def steps_per_epoch(self) -> int:
        """Number of batches that hold one epoch; the last one may belong to two epochs."""

    def by_epoch(self) -> Stream:
        """Return the stream whose step s is batch s % steps_per_epoch of epoch s // steps_per_epoch.

        In a training stream without end, a batch may hold the end of one epoch and the start of the next. Here the last
        batch of each epoch is padded with rows that are not valid instead. A finite stream stays as it is.
        """
        return self

    @abc.abstractmethod
    def of_slab(self, slab: Ranges) -> Stream:
        """Return the same stream with a part of each image, and of each label on its grid; only that is read.

        Args:
            slab: (start, stop) along each of the image's axes but the channel.
        """

    @abc.abstractmethod
    def _rows(self, step: int, start: int, stop: int) -> Batch:
        """Return rows start .. stop-1 of the global batch `step`."""

    def _prefetch(self, step: int, start: int, stop: int) -> None:  # noqa: B027
        """Begin to fetch what `_rows` of the same arguments reads, if that is slow; ignore steps past the end."""

    @abc.abstractmethod
    def _stream(self) -> dict[str, Any]:
        """Return what determines the stream, as JSON values."""

    def __len__(self) -> int:
        if self.steps is None:
            raise TypeError(
                "the stream has no end and so no length; pass num_epochs, or use steps_per_epoch; torch's DataLoader "
                "takes loader.records"
            )
        return self.steps

    def __bool__(self) -> bool:
        return True  # else Python asks for the length, which a stream without end has not

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def __str__(self) -> str:
        # Keras refuses any other input by its text, so the text says what Keras takes.
        return f"{self!r}: Keras takes its .dataset(as_supervised=True)"

    def __getitem__(self, step: int) -> Batch:
        """Return `batch(step)`; a negative step counts from the end of the stream.

        Raises:
            IndexError: the stream has no such batch.
        """
        if isinstance(step, str):  # loader["image"], as if it were a batch
            raise UsageError(f"a loader's items are batches, by step: write loader.batch(0)[{step!r}]")
        number = whole_number("step", step, 0)
        if number < 0 and self.steps is not None:
            number += self.steps
        if number < 0 or (self.steps is not None and number >= self.steps):
            raise IndexError(f"batch {step}: the stream has {self.steps or 'no last'}, numbered from 0")
        return self.batch(number)

    def __getitems__(self, numbers: Sequence[int]) -> NoReturn:
        """Refuse what torch's DataLoader asks for where it would collate batches into batches of batches."""
        raise UsageError(
            "a loader's items are batches: pass DataLoader(loader.records, ...) for its records, or, for its batches, "
            "batches = loader.by_step() and DataLoader(batches, batch_size=None, sampler=batches.sampler())"
        )

    @property
    def num_classes(self) -> int:
        """Number of label values, including the background."""
        return len(self.class_names)

    def picture(self, step: int = 0, *, split: Sequence[int] | None = None, side: int = 320) -> Canvas:
        """Draw a batch, uint8 [height, width, channel]; see `halofeed.loader.contact_sheet.draw_batch`."""
        from halofeed.loader.contact_sheet import draw_batch

        return draw_batch(self.batch(step), self.kind, self.class_names, split=split, side=side)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the arrays of a batch, and a picture of its first rows."""
        from halofeed.loader.contact_sheet import draw_batch, notebook_html
        from halofeed.prep.voxels.encode import encode_png

        rows = {name: (array.shape, array.dtype) for name, array in self.spec.items()}
        batch = {name: array[:_ROWS_IN_NOTEBOOK] for name, array in self.batch(0).items()}
        shown = draw_batch(batch, self.kind, self.class_names, side=160)
        return notebook_html(rows, bytes(encode_png(shown, 0)), repr(self))

    @property
    def spec(self) -> dict[str, ArraySpec]:
        """Shape and dtype of each array of this host's batches."""
        rows = self.batch_size // self.shard_count
        return _add_batch_axis(self.row_spec, rows)

    def batch(self, step: int) -> Batch:
        """Return this host's rows of one global batch; may be called from several threads.

        Raises:
            UsageError: the step is negative or past the stream's end.
            CorruptFileError: names the file, the record's offset and id, and the cure.
        """
        return self._rows(whole_number("step", step, 0), *self._own_rows)

    @explains_calls
    def batches(self, start_step: int = 0) -> Iterator[Batch]:
        """Yield `batch(start_step)`, `batch(start_step + 1)`, ... to the end of the stream.

        From the second batch on, `halofeed.loader.batch.AHEAD` batches are made while one is used, if memory
        permits; see `batches_ahead` there.
        """
        return self._rows_ahead(start_step, *self._own_rows)

    @explains_calls
    def dataset(
        self,
        start_step: int = 0,
        *,
        as_supervised: bool = False,
        static_shapes: bool = False,
        repeat: bool = False,
    ) -> tf.data.Dataset:
        """Return the stream as a tf.data.Dataset: each iteration is one epoch, in another order than the last one.

        An iteration gives `steps_per_epoch` batches with every record once. The data set moves to the next epoch when
        an iteration has given the last batch of its epoch. An iteration that ends earlier, such as the one by which
        Keras finds the shapes, begins again at the same batch. The last batch of an epoch is shorter where the batch
        size does not divide the records.

        A stream that ends (`num_epochs`, or evaluation) is one iteration, and its first element is `batch(start_step)`.
        So it is with `repeat`, where the stream has no end.

        TensorFlow adopts the batches' memory without a copy. As many batches are made ahead as for `batches`, and
        one more is held ready. Text arrays become tf.string.

        With `as_supervised` the elements are what Keras' `fit`, `evaluate` and `predict` take: (image, target). The
        target is `label` or `labels`, and for detection the dict of all arrays except `id`. Rows that are not valid are
        left out, so the last batch may be shorter. For segmentation the third item is float32 [batch] weights, which
        are 0 for records without a label; Keras applies them to `weighted_metrics`, not to `metrics`.

        Args:
            start_step: number of batches that an earlier process took from this data set: the first iteration begins
                after them. If that is inside an epoch, each iteration begins at that place of an epoch.
            as_supervised: yield (image, target) instead of all arrays.
            static_shapes: keep rows that are not valid, so that all batches have one shape; with `as_supervised`, yield
                (image, target, weights), with a weight of 0 for these rows.
            repeat: yield the batches of `batches` without end, for Keras' `steps_per_epoch` of any number.

        Raises:
            UsageError: the rows of the last batch would differ between hosts; or `repeat` with a stream that ends.

        An error of `batch`, such as CorruptFileError, is raised as TensorFlow's own (tf.errors.UnknownError), whose
        message includes the original one.
        """
        source, ends = self._iterated(repeat)
        form = _ElementForm.of(as_supervised=as_supervised, static_shapes=static_shapes)
        # A batch of a stream that ends keeps its shape, as `element_spec` says.
        if ends and source.may_pad and not form.static_shapes:
            self._check_last_batch("static_shapes=True, ")
            form = replace(form, leaves_out=True)
        return source._dataset(start_step, [self._own_rows], form, by_epoch=ends)

    @explains_calls
    def distributed(
        self,
        strategy: tf.distribute.Strategy,
        start_step: int = 0,
        *,
        as_supervised: bool = False,
        repeat: bool = False,
    ) -> Any:
        """Return the same stream as the strategy's distributed dataset: each replica gets its rows of every batch.

        Each iteration is one epoch, as for `dataset`.

        With tf.distribute's own functions each replica would get a complete batch of its host, and the last batches of
        an evaluation would be dropped where they do not divide. Here every batch has one shape, and `valid`, or a
        weight of 0, marks the rows that are padding. `shard_index` and `shard_count` are ignored: the strategy says
        which host this is.

        Args:
            strategy: strategy such as MirroredStrategy, MultiWorkerMirroredStrategy or TPUStrategy.
            start_step, repeat: as for `dataset`.
            as_supervised: yield (image, target, weights), as `dataset` with `static_shapes`.

        Raises:
            UsageError: the batch size does not divide by the number of replicas.
        """
        replicas = getattr(strategy, "num_replicas_in_sync", None)
        if replicas is None:
            raise UsageError(
                f"strategy: expected one such as tf.distribute.MirroredStrategy(), got {strategy!r}"
            )
        # A replica with fewer rows would compute another mean than the others.
        if self.batch_size % replicas:
            sizes = " or ".join(map(str, nearest_multiples(self.batch_size, replicas)))
            raise UsageError(
                f"batch_size {self.batch_size}: expected a multiple of {replicas} replicas; make a Loader with {sizes}"
            )
        size = self.batch_size // replicas
        source, ends = self._iterated(repeat)
        form = _ElementForm.of(as_supervised=as_supervised, static_shapes=True)

        def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
            own = replicas // context.num_input_pipelines
            first = context.input_pipeline_id * own
            rows = [(number * size, (number + 1) * size) for number in range(first, first + own)]
            return source._dataset(start_step, rows, form, by_epoch=ends)

        return strategy.distribute_datasets_from_function(of_host)

    def _iterated(self, repeat: bool) -> tuple[Stream, bool]:
        """Return the stream that a data set gives, and whether each of its iterations is the next epoch."""
        repeat = truth_value("repeat", repeat)
        if self.steps is None:
            return (self, False) if repeat else (self.by_epoch(), True)
        if repeat:
            raise UsageError(
                f"repeat: this stream ends after {plural(self.steps, 'batch', 'batches')}; leave num_epochs out, or "
                "repeat=True; evaluation (training=False) is one epoch"
            )
        return self, False

    def _check_last_batch(self, other_fix: str = "") -> None:
        """Refuse an epoch whose last batch would have other shapes on other hosts, which then wait without end."""
        if self.shard_count > 1:
            raise UsageError(
                f"batch_size {self.batch_size} does not divide an epoch, whose last batch would have other numbers of "
                f"rows on other hosts; pass {other_fix}repeat=True, or drop_remainder=True to the loader"
            )

    def _dataset(
        self, start_step: int, pieces: Sequence[tuple[int, int]], form: _ElementForm, *, by_epoch: bool
    ) -> tf.data.Dataset:
        """Return a dataset with an element for each of these rows (start, stop) of every batch, in this order.

        Args:
            by_epoch: whether each iteration is the next epoch of a stream without end.
        """
        start_tensorflow()
        import tensorflow as tf

        # TensorFlow's threads call Python until its iterators are destroyed, which must be before the interpreter ends.
        end_before_interpreter()
        outside_calls.keep_until_exit(tf.data.Iterator)
        steps, count = self.steps_from(start_step), len(pieces)
        arrays = _add_batch_axis(self.row_spec, pieces[0][1] - pieces[0][0])
        spec = _element_spec(arrays)
        leaves_out = form.leaves_out_rows(self.may_pad)
        if leaves_out:
            spec = {name: tf.TensorSpec([None, *one.shape[1:]], one.dtype) for name, one in spec.items()}

        def make(number: Any) -> tuple[Any, ...]:
            step, piece = divmod(int(number), count)
            batch = outside_calls.make(lambda: self._rows_in_order(step, *pieces[piece]))
            return tuple(map(_encode_text, (only_valid(batch) if leaves_out else batch).values()))

        def element(number: tf.Tensor) -> Any:
            tensors = tf.numpy_function(make, [number], [one.dtype for one in spec.values()])
            # numpy_function returns tensors of unknown shape.
            for tensor, one in zip(tensors, spec.values(), strict=True):
                tensor.set_shape(one.shape)
            batch = dict(zip(spec, tensors, strict=True))
            return _supervised(batch, always_weights=form.static_shapes) if form.as_supervised else batch

        def batches_of(numbers: tf.data.Dataset, act: Callable[[tf.Tensor], Any]) -> tf.data.Dataset:
            parallel_calls = max(1, batches_ahead(arrays))
            return numbers.map(act, parallel_calls, deterministic=True).prefetch(PREFETCH)

        if by_epoch:
            place = EpochPlace(start_step * count, self.steps_per_epoch * count)
            return _each_epoch(place, lambda numbers: batches_of(numbers, lambda one: (one, element(one))))
        if isinstance(steps, range):
            return batches_of(tf.data.Dataset.range(steps.start * count, steps.stop * count), element)
        return batches_of(tf.data.Dataset.counter(start_step * count), element)

    @property
    def element_spec(self) -> dict[str, tf.TensorSpec]:
        """The tf.TensorSpec of each array of `dataset`'s elements, where these have one shape."""
        return _element_spec(self.spec)

    def by_step(self, *, repeat: bool = False) -> BatchesByStep:
        """Return the stream as a map from step to batch, for torch's DataLoader; see `BatchesByStep`.

        Args:
            repeat: step s is `batch(s)`, which may hold the end of one epoch and the start of the next. Otherwise step
                s is a batch of epoch s // steps_per_epoch, and the last batch of an epoch is shorter where the batch
                size does not divide the records. A stream that ends (`num_epochs`, or evaluation) has `batch(s)`.

        Raises:
            UsageError: as `dataset`.
        """
        source, ends = self._iterated(repeat)
        if leaves_out := ends and source.may_pad:
            self._check_last_batch()
        return BatchesByStep(source, leaves_out=leaves_out)

    @explains_calls
    def on_mesh(
        self, mesh: Mesh, partition: Partition | Mapping[str, PartitionSpec], start_step: int = 0
    ) -> Iterator[dict[str, jax.Array]]:
        """Return the same stream as global jax.Arrays, each core's slab already on its device.

        `shard_index` and `shard_count` are ignored: each process reads the rows that its devices need, and the slabs
        of raw images and labels. `id` becomes uint32 [batch, 2], high and low.

        In a training step of your own, constrain every activation to its split, after each convolution, pool and
        change of size: `activation = halofeed.trainer.mesh.constrain(activation, mesh, dims)`. Otherwise XLA chooses
        the splits of the late, small levels itself. Some of its choices silently give wrong weight gradients,
        although the loss is exact (a 3x3 convolution of stride 2 from 8 rows to 4 on 8 cores: off by 46 %).
        docs/partition.md shows it.

        Args:
            mesh: the target mesh.
            partition: a Partition, or a PartitionSpec per key. With color="planes", `luma` and `chroma` are split as a
                Partition splits `image`; each core then needs an even number of rows, and of columns.
            start_step: the first batch.

        Raises:
            PartitionError: the partition does not fit the mesh or the batch.
            UsageError: the batches include text, which devices cannot hold.
        """
        from halofeed.loader.mesh_batches import check_mesh, mesh_specs, needed_rows, needed_slab, place_batch

        check_mesh(mesh)
        if not isinstance(partition, Partition | Mapping):
            raise UsageError(
                f"partition: expected a Partition or a PartitionSpec per key, got {partition!r}; "
                "Partition.parse reads 'image=1,4,1,1'"
            )
        spec = _add_batch_axis(self.row_spec, self.batch_size)
        # XLA has no type for text.
        if text := [name for name, array in spec.items() if array.dtype.hasobject]:
            raise UsageError(
                f"on_mesh: {', '.join(text)} is text, which no device takes; leave it out of include"
            )
        shapes = {name: array.shape for name, array in spec.items()}
        if isinstance(partition, Partition):
            specs = mesh_specs(
                mesh, partition_of_planes(partition, IMAGE) if LUMA in shapes else partition, shapes
            )
        else:
            specs = dict(partition)

        slab = needed_slab(mesh, specs, shapes, self.on_grid, len(self.kind.axes))
        source, (start, stop) = self.of_slab(slab), needed_rows(mesh, specs, shapes)
        offsets = {name: tuple(start // pixels for start, _ in slab) for name, pixels in self.on_grid.items()}

        def place(rows: Batch) -> dict[str, jax.Array]:
            return place_batch(mesh, specs, shapes, lambda *_: rows, offsets=offsets)

        # Only rows are made ahead, in the host's memory, so that devices hold no extra batch.
        return map(place, source._rows_ahead(start_step, start, stop))

    @explains_calls
    def state(self, step: int) -> dict[str, Any]:
        """Return a saved position, as JSON values: another loader, on any number of hosts, resumes at batch `step`.

        Raises:
            UsageError: the step is negative or past the stream's end.
        """
        return with_json_checksum(
            {"state_version": STATE_VERSION, "step": self._checked("step", step), **self._stream()}
        )

    @explains_calls
    def restore(self, state: Mapping[str, Any]) -> int:
        """Return the step at which to resume.

        `num_epochs`, `include`, `verify` and the hosts may differ from those of the loader that gave the state.

        Raises:
            UsageError: the state belongs to another data set or stream; the message lists what differs.
        """
        step = _restore_step(state, self._stream())
        self.steps_from(step)
        return step

    def steps_from(self, start_step: int) -> Iterable[int]:
        """Return the numbers of all batches from one on.

        Raises:
            UsageError: the step is negative or past the stream's end.
        """
        start_step = self._checked("start_step", start_step)
        return itertools.count(start_step) if self.steps is None else range(start_step, self.steps)

    @property
    def _own_rows(self) -> tuple[int, int]:
        """This host's rows [start, stop) of every global batch."""
        rows = self.batch_size // self.shard_count
        return self.shard_index * rows, (self.shard_index + 1) * rows

    def _rows_ahead(self, start_step: int, start: int, stop: int) -> Prefetcher[Batch]:
        return Prefetcher(
            functools.partial(self._rows_in_order, start=start, stop=stop),
            self.steps_from(start_step),
            batches_ahead(_add_batch_axis(self.row_spec, stop - start)),
            functools.partial(self._prefetch, start=start, stop=stop),
        )

    def _rows_in_order(self, step: int, start: int, stop: int) -> Batch:
        # `Prefetcher` has begun the steps between these two, or soon will.
        for later in (step, step + AHEAD):
            self._prefetch(later, start, stop)
        return self._rows(step, start, stop)

    def _checked(self, name: str, step: int) -> int:
        step = whole_number(name, step, 0)
        if step < 0 or (self.steps is not None and step > self.steps):
            last = " and more" if self.steps is None else f" to {self.steps}"
            raise UsageError(f"{name} {step}: expected 0{last}")
        return step


def start_tensorflow() -> None:
    """Import TensorFlow and look for devices, silently: its search for CUDA writes to standard error at any moment.

    Raises:
        MissingExtraError: TensorFlow is not installed.
    """
    with require_extra("tf", "tensorflow"), without_banner("tensorflow"):
        import tensorflow as tf

        tf.config.list_physical_devices()


@dataclass(frozen=True, kw_only=True)
class _ElementForm:
    """Form of a tf.data.Dataset's elements.

    Args:
        as_supervised: (image, target) instead of a dict of all arrays.
        static_shapes: keep rows that are not valid; with `as_supervised`, weights are the third item.
        leaves_out: whether a dict of all arrays is without the rows that are not valid, too.
    """

    as_supervised: bool
    static_shapes: bool
    leaves_out: bool = False

    @classmethod
    def of(cls, *, as_supervised: object, static_shapes: object) -> _ElementForm:
        """Return the form that arguments ask for; raise UsageError where one is invalid."""
        return cls(
            as_supervised=truth_value("as_supervised", as_supervised),
            static_shapes=truth_value("static_shapes", static_shapes),
        )

    def leaves_out_rows(self, may_pad: bool) -> bool:
        """Return whether elements are without the rows that are not valid, of a stream that may have some."""
        return self.leaves_out or (self.as_supervised and may_pad and not self.static_shapes)


def _each_epoch(
    place: EpochPlace, batches_of: Callable[[tf.data.Dataset], tf.data.Dataset]
) -> tf.data.Dataset:
    """Return a dataset whose iterations are one epoch each.

    Args:
        place: numbers of an iteration's elements, and where the next iteration begins.
        batches_of: returns a dataset of (number, element) from one of numbers.
    """
    import tensorflow as tf

    def first() -> np.int64:
        return np.int64(outside_calls.make(lambda: place.first))

    def finish(number: Any) -> np.int64:
        return np.int64(outside_calls.make(lambda: place.finish(int(number))))

    def numbers(_: tf.Tensor) -> tf.data.Dataset:
        # Called for the first element of an iteration: Keras 3.15 makes iterators that it does not use.
        start = tf.ensure_shape(tf.numpy_function(first, [], tf.int64), [])
        return tf.data.Dataset.range(start, start + place.count)

    def counted(number: tf.Tensor, element: Any) -> Any:
        # After the batches that are made ahead: Keras takes exactly as many elements as an iteration has, and does not
        # ask for another one, so that only its last element tells that it is complete.
        is_last = tf.equal((number + 1 - place.start) % place.count, 0)
        done = tf.cond(is_last, lambda: tf.numpy_function(finish, [number], tf.int64), lambda: number)
        with tf.control_dependencies([done]):
            return tf.nest.map_structure(tf.identity, element)

    epoch = tf.data.Dataset.range(1).flat_map(numbers)
    # Keras needs the number of elements before the first epoch: without it, it warns that data ran out.
    return batches_of(epoch).map(counted).apply(tf.data.experimental.assert_cardinality(place.count))


def _supervised(batch: dict[str, tf.Tensor], *, always_weights: bool) -> tuple[Any, ...]:
    """Return (image, target) of a batch as Keras takes it, and weights where rows may have no label or be padding."""
    import tensorflow as tf

    _, valid = (batch.pop(name) for name in (ID, VALID))
    # Keras takes several arrays as a dictionary.
    image: Any = {name: batch.pop(name) for name in (IMAGE, LUMA, CHROMA) if name in batch}
    image = image.get(IMAGE, image)
    labelled = batch.pop(LABELLED, None)
    target: Any = batch
    for name in (LABEL, LABELS):
        target = batch.get(name, target)
    # Keras takes two items without weights, and three with them.
    if labelled is None and not always_weights:
        return image, target
    weight = valid if labelled is None else tf.logical_and(valid, labelled)
    return image, target, tf.cast(weight, tf.float32)


def _element_spec(arrays: Mapping[str, ArraySpec]) -> dict[str, tf.TensorSpec]:
    start_tensorflow()
    import tensorflow as tf

    return {
        name: tf.TensorSpec(array.shape, tf.string if array.dtype.hasobject else tf.as_dtype(array.dtype))
        for name, array in arrays.items()
    }


def check_hosts(batch_size: int, shard_index: int, shard_count: int) -> None:
    """Refuse a batch size that does not divide by the number of hosts."""
    if shard_count < 1 or not 0 <= shard_index < shard_count:
        raise UsageError(
            f"shard_index {shard_index} of shard_count {shard_count}: expected 0 to shard_count - 1"
        )
    # Hosts of different batch sizes would compile different programs, and wait for each other without end.
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


def _add_batch_axis(spec: Mapping[str, ArraySpec], rows: int) -> dict[str, ArraySpec]:
    """Return the spec of several rows from the spec of one."""
    return {name: replace(array, shape=(rows, *array.shape)) for name, array in spec.items()}


def fingerprint(manifest: Manifest, split: str) -> str:
    """Return the SHA-256 of a split's content: its fields, and each shard's record count, size and checksum."""
    content = {
        "fields": [field.to_json() for field in manifest.fields],
        "shards": [(shard.records, shard.bytes, shard.crc32c) for shard in manifest.split(split).shards],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest(numbers: NDArray[np.int64]) -> str:
    """Return the SHA-256 of numbers."""
    return hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()


def _restore_step(state: Mapping[str, Any], stream: Mapping[str, Any]) -> int:
    """Return the step of a saved state, if it belongs to the stream.

    Args:
        state: the result of `Stream.state`, possibly read back from JSON.
        stream: what the state must agree with, key by key.

    Raises:
        UsageError: the state was modified, or differs from the stream; the message lists all differences.
    """
    state = _checked_state(state)
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


def _checked_state(state: Any) -> Mapping[str, Any]:
    """Return a saved state; raise UsageError if it is not a state, was modified, or is of another version."""
    if not isinstance(state, Mapping) or "step" not in state:
        cure = "json.loads makes it of its text; " if isinstance(state, str) else ""
        raise UsageError(
            f"not a loader's state: expected the dictionary that loader.state(step) returned, got {state!r:.80}; {cure}"
            "to start at a step without a state, pass start_step"
        )
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
    return dict(state)


def _encode_text(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Encode text as the bytes that TensorFlow takes, including file names that are not UTF-8."""
    if not array.dtype.hasobject:
        return array
    encoded = np.empty(array.shape, object)
    encoded[...] = [text.encode("utf-8", "surrogateescape") for text in array]
    return encoded
