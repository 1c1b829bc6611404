"""EpochBatches: a loader's batches as an iterable of epochs, in a trainer's form, as torch's DataLoader is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from halofeed.loader.batch import Batch, batches_ahead
from halofeed.loader.dataset import Loader
from halofeed.loader.epochs import EpochPlace, only_valid
from halofeed.loader.prefetcher import Prefetcher
from halofeed.loader.stream import Stream
from halofeed.system.arguments import whole_number
from halofeed.system.errors import UsageError

Form = TypeVar("Form")


class EpochBatches(Generic[Form]):
    """Epochs of a loader's batches, each batch in the form that a trainer takes.

    It takes the place of torch's DataLoader: `len()` is the number of batches of an epoch, and each iteration is the
    next epoch, in another order. A stream that ends, as with `training=False`, is given from its beginning each time.
    The last batch of an epoch is shorter where the batch size does not divide the records. An iteration that ends early
    begins again at the same batch.

    Threads of this process make the next batches while one is used; there are no worker processes, and no copies
    between processes.

    Args:
        loader: the stream of batches.
        form: returns a batch in the trainer's form; called from several threads.
        start_step: number of batches that an earlier process took: the first iteration begins after them.

    Attributes:
        loader: the stream, whose steps are those of an epoch one after the other.
        class_names: names of the classes, in the order of the trainer's numbers.
        sampler: for trainers that call `sampler.set_epoch` or `len(sampler)`, the number of records.
        batch_size, drop_last, num_workers: as torch's DataLoader has them.

    >>> loader = halofeed.Loader("data/photos/1.0.0", batch_size=4)
    >>> batches = EpochBatches(loader, lambda batch: len(batch["id"]))
    >>> len(batches), list(batches)
    (2, [4, 4])
    """

    num_workers = 0
    pin_memory = False

    def __init__(
        self,
        loader: Stream,
        form: Callable[[Batch], Form],
        *,
        start_step: int = 0,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.loader = loader.by_epoch()
        if self.loader.may_pad and self.loader.shard_count > 1:
            raise UsageError(
                f"batch_size {loader.batch_size} does not divide an epoch, whose last batch would have other numbers "
                "of rows on other hosts; pass drop_remainder=True to the loader"
            )
        self._form = form
        self._place = EpochPlace(whole_number("start_step", start_step, 0), len(self))
        self.class_names = tuple(self.loader.class_names if class_names is None else class_names)
        self.batch_size = self.loader.batch_size // self.loader.shard_count
        self.drop_last = not self.loader.may_pad

    @property
    def sampler(self) -> EpochSampler:
        """Return what trainers call to choose an epoch."""
        return EpochSampler(self.set_epoch, self.num_records)

    @property
    def num_records(self) -> int:
        """Number of records of an epoch."""
        return self.loader.num_records if isinstance(self.loader, Loader) else len(self) * self.batch_size

    def __len__(self) -> int:
        steps = self.loader.steps
        return self.loader.steps_per_epoch if steps is None else steps

    def __iter__(self) -> Iterator[Form]:
        ends = self.loader.steps is not None
        first = self._place.start if ends else self._place.first
        steps = range(first, len(self) if ends else first + len(self))
        with Prefetcher(self.batch, steps, batches_ahead(self.loader.spec)) as made:
            for step in steps:
                item = next(made)
                if step == steps[-1] and not ends:
                    self._place.finish(step)
                yield item

    def batch(self, step: int) -> Form:
        """Return the batch of a step, counted over all epochs, in the trainer's form.

        Raises:
            CorruptFileError: as `Loader.batch`.
        """
        return self._form(only_valid(self.loader.batch(step)))

    def batch_of_epoch(self, number: int) -> Form:
        """Return a batch of the next iteration by its number, 0 .. len-1."""
        first = self._place.start if self.loader.steps is not None else self._place.first
        return self.batch(first + number)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration at an epoch, numbered from 0."""
        self._place = EpochPlace(whole_number("epoch", epoch, 0) * len(self), len(self))


class EpochSampler:
    """Sampler as trainers use one of a DataLoader: the number of its records, and `set_epoch`."""

    def __init__(self, set_epoch: Callable[[int], None], records: int) -> None:
        self.set_epoch, self._records = set_epoch, records

    def __len__(self) -> int:
        return self._records


def with_fields(loader: Stream, trainer: str, needed: Sequence[str], wanted: Sequence[str] = ()) -> Stream:
    """Return the same stream, whose batches also hold the fields that a form needs.

    Args:
        trainer: name of the form, for messages.
        needed: fields without which there is no batch in this form.
        wanted: fields that are used where the stream has them.

    Raises:
        UsageError: the stream has no such field.
    """
    if isinstance(loader, Loader):
        for name in wanted:
            loader = loader.including(name) if loader.can_include(name) else loader
        loader = loader.including(*(name for name in needed if loader.can_include(name)))
    if missing := [name for name in needed if name not in loader.row_spec]:
        raise UsageError(
            f"{trainer}: the batches have no {', '.join(missing)}; they have {', '.join(loader.row_spec)}"
        )
    return loader
