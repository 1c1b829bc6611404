"""Spatial partitions: the part of each tensor that each core gets, and the rules for valid partitions.

A replica is a group of cores that share one part of the batch. Within a replica each tensor is split by `dims`, the
number of parts along each axis, row-major over the logical cores 0..n-1:

    mesh axes      replica | core0 core1 core2         every core axis has size 2
    [1, 4, 2, 1]   batch over replica, height over (core0, core1), width over core2
    [1, 8, 1, 1]   batch over replica, height over (core0, core1, core2)

The rules and names are those of tf.estimator's TPUConfig (`num_cores_per_replica`, `input_partition_dims`).
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from halofeed.system.arguments import explains_calls, explains_fields
from halofeed.system.console import print_status
from halofeed.system.errors import PartitionError
from halofeed.system.wording import did_you_mean, plural

Dims = tuple[int, ...] | None
DimsTree = Dims | dict[str, Dims]
TensorShape = Sequence[int | None]

REPLICA_AXIS = "replica"
CORES_PER_REPLICA = (1, 2, 4, 8, 16, 32, 64, 128)
PER_HOST_V2 = "PER_HOST_V2"
_PER_HOST_V2_NUMBER = 3
_OWN_TPU_ARGUMENTS = ("num_cores_per_replica", "input_partition_dims", "per_host_input_for_training")
_NO_INFEED = "there is no infeed; one program gets its batches as arrays"
IGNORED_TPU_ARGUMENTS = {
    "num_shards": "the replicas are all devices divided by the cores per replica",
    "tpu_job_name": "JAX finds the devices",
    "eval_training_input_configuration": "evaluation gets its batches as training does",
    "initial_infeed_sleep_secs": _NO_INFEED,
    "experimental_host_call_every_n_steps": _NO_INFEED,
    "experimental_allow_per_host_v2_parallel_get_next": _NO_INFEED,
    "experimental_feed_hook": _NO_INFEED,
}
"""Arguments of TPUConfig without a meaning here, and the reason."""
_WHOLE = (None, (1,))
_AXES = {4: ("batch", "height", "width", "channel"), 5: ("batch", "depth", "height", "width", "channel")}


@explains_fields
@dataclass(frozen=True, kw_only=True)
class Partition:
    """Number of cores that share one part of the batch, and the split of each tensor over them.

    Args:
        cores_per_replica: 1, 2, 4, ..., 128.
        dims: parts along each axis, batch first, by the tensor's key. None is a complete copy on every core, and so is
            a missing key. A product of 1, such as [1] or [1, 1, 1, 1], meant "core 0 alone" to the TPU infeed. One
            program over all cores has no such placement, so it is a complete copy too.
        inputs: the (features, labels) of `from_tpu_config`, for `check_inputs`.

    Raises:
        PartitionError: (a ValueError) if a rule is broken; the message names the entry and a fix.

    >>> Partition(cores_per_replica=4, dims={"image": [1, 4, 1, 1]})
    Partition(cores_per_replica=4, dims={'image': (1, 4, 1, 1)})
    """

    cores_per_replica: int = 1
    dims: Mapping[str, Sequence[int] | None] = field(default_factory=dict)
    inputs: tuple[DimsTree, DimsTree] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        cores = self.cores_per_replica
        if isinstance(cores, bool | float) or cores not in CORES_PER_REPLICA:
            raise PartitionError(
                f"cores_per_replica: expected one of {', '.join(map(str, CORES_PER_REPLICA))}, got {cores!r}"
            )
        object.__setattr__(self, "cores_per_replica", int(cores))  # NumPy's integers have no bit_length
        if not isinstance(self.dims, Mapping):
            raise PartitionError(
                f"dims: expected a dictionary from key to dims, got {self.dims!r}; write "
                "{'image': [1, 4, 1, 1]}, or pass TPUConfig's lists to Partition.from_tpu_config"
            )
        object.__setattr__(
            self,
            "dims",
            {key: _checked(key, dims, self.cores_per_replica) for key, dims in self.dims.items()},
        )

    def __str__(self) -> str:
        """Return the form that `parse` reads.

        >>> print(Partition(cores_per_replica=4, dims={"image": [1, 2, 2, 1], "label": None}))
        image=1,2,2,1;label=none
        """
        return ";".join(
            f"{key}={','.join(map(str, dims)) if dims is not None else 'none'}"
            for key, dims in self.dims.items()
        )

    @classmethod
    @explains_calls
    def parse(cls, text: str | Iterable[str], *, cores_per_replica: int) -> Partition:
        """Read the command line's forms.

        Args:
            text: `image=1,4,1,1`, several separated by `;` or as a list; `1,4,1,1` for the image alone; or TPUConfig's
                `input_partition_dims`, as `[[1,4,1,1],None]` or `[{'image':[1,4,1,1]},{'label':[1]}]`.
            cores_per_replica: number of cores that share an image.

        >>> Partition.parse(["image=1,4,1,1", "label=1,4,1"], cores_per_replica=4).dims
        {'image': (1, 4, 1, 1), 'label': (1, 4, 1)}
        >>> Partition.parse("[[1,4,1,1],None]", cores_per_replica=4).dims
        {'image': (1, 4, 1, 1)}
        """
        if isinstance(text, str) and text.lstrip()[:1] in ("[", "{", "("):
            return cls._parse_lists(text.strip(), cores_per_replica)
        entries = [
            part.strip() for line in ([text] if isinstance(text, str) else text) for part in line.split(";")
        ]
        dims: dict[str, Sequence[int] | None] = {}
        for entry in filter(None, entries):
            key, parts = _parse_entry(entry)
            if key in dims:
                raise PartitionError(f"partition {entry!r}: {key!r} is given twice; keep one")
            dims[key] = parts
        return cls(cores_per_replica=cores_per_replica, dims=dims)

    @classmethod
    def _parse_lists(cls, text: str, cores_per_replica: int) -> Partition:
        try:
            dims = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise PartitionError(
                f"partition {text!r}: expected TPUConfig's lists, e.g. [[1,4,1,1],None], or image=1,4,1,1"
            ) from None
        # [1,4,1,1] without the outer list, as people type it for the only feature.
        if not isinstance(dims, Sequence) or all(isinstance(part, int) for part in dims):
            dims = [dims]
        found = cls.from_tpu_config(
            num_cores_per_replica=cores_per_replica,
            input_partition_dims=dims,
            per_host_input_for_training=PER_HOST_V2,
        )
        # A whole label needs no entry, and a batch of detection has no key `label`.
        named = {key: parts for key, parts in found.dims.items() if key != "label" or parts not in _WHOLE}
        return replace(found, dims=named)

    @classmethod
    def from_tpu_config(
        cls,
        *,
        num_cores_per_replica: int | None = None,
        input_partition_dims: Sequence[object] | None = None,
        per_host_input_for_training: object = True,
        iterations_per_loop: int | None = None,
        **ignored: object,
    ) -> Partition:
        """Accept the arguments of TPUConfig with its names, defaults and checks.

        Args:
            num_cores_per_replica: required with `input_partition_dims`.
            input_partition_dims: [features] or [features, labels]; each is the dims of the one tensor, or a
                dictionary from key to dims. Dims of one feature tensor are those of `image`, dims of one
                label tensor those of `label`. Missing or None labels are copied to every core.
            per_host_input_for_training: must be PER_HOST_V2 (the name, the enumeration's member or 3).
            iterations_per_loop: checked, and named in a status line: it is a field of TrainConfig.
            ignored: the other arguments of TPUConfig (`IGNORED_TPU_ARGUMENTS`), which have no effect; a status line
                names those that are not None.

        Raises:
            PartitionError: where TPUConfig raises ValueError.

        >>> Partition.from_tpu_config(num_cores_per_replica=4, per_host_input_for_training="PER_HOST_V2",
        ...                           input_partition_dims=[{"image": [1, 4, 1, 1]}, None])
        Partition(cores_per_replica=4, dims={'image': (1, 4, 1, 1)})
        """
        _check_other_arguments(iterations_per_loop, ignored)
        if input_partition_dims is None:
            return cls(cores_per_replica=1 if num_cores_per_replica is None else num_cores_per_replica)
        cores = _cores_of_config(num_cores_per_replica, input_partition_dims, per_host_input_for_training)
        features, labels = (*input_partition_dims, None)[:2]
        if features is None:
            raise PartitionError(
                "input_partition_dims[0]: expected the features' dims, got None; name the parts, "
                "e.g. [1, 4, 1, 1]"
            )
        trees = (
            _tree("input_partition_dims[0]", features, cores),
            _tree("input_partition_dims[1]", labels, cores),
        )
        return cls(cores_per_replica=cores, dims=_named_dims(*trees), inputs=trees)

    def replicas(self, device_count: int) -> int:
        """Return the number of replicas of a system; PartitionError if its cores do not divide into replicas.

        >>> Partition(cores_per_replica=4).replicas(8)
        2
        """
        cores = self.cores_per_replica
        if cores > device_count:
            raise PartitionError(
                f"cores_per_replica {cores}: expected at most the {plural(device_count, 'device')} there are; "
                f"ask for fewer, or make CPU devices with --virtual-devices {cores} "
                f"(XLA_FLAGS=--xla_force_host_platform_device_count={cores})"
            )
        if device_count % cores:
            raise PartitionError(
                f"cores_per_replica {cores}: expected a divisor of the {plural(device_count, 'device')}; take "
                f"{' or '.join(map(str, nearest_multiples(device_count, cores)))} devices, or other cores per replica"
            )
        return device_count // cores

    def resolve(self, shapes: Mapping[str, TensorShape], *, replicas: int = 1) -> dict[str, Dims]:
        """Check the partition against a batch and return the split of each tensor.

        Args:
            shapes: shapes of the global batch by key, batch axis first.
            replicas: number of replicas that share the batch.

        Returns:
            Dims for every key of `shapes`; None where every core of the replica has a complete copy.

        Raises:
            PartitionError: an unknown key, an axis of unknown size, a wrong rank, or a size that does
                not divide.

        >>> Partition(cores_per_replica=2, dims={"image": [1, 2, 1, 1]}).resolve(
        ...     {"image": (4, 32, 32, 3), "label": (4,)}, replicas=2)
        {'image': (1, 2, 1, 1), 'label': None}
        """
        unknown = [key for key in self.dims if key not in shapes]
        if unknown:
            raise PartitionError(
                f"partition of {unknown[0]!r}: the batch has no such key; it has {_keys(shapes)}"
            )
        return {
            key: self._resolve_one(key, shape, self.dims.get(key), replicas) for key, shape in shapes.items()
        }

    def check_inputs(
        self,
        features: TensorShape | Mapping[str, TensorShape],
        labels: TensorShape | Mapping[str, TensorShape] | None = None,
        *,
        replicas: int = 1,
    ) -> None:
        """Check the structure of `from_tpu_config` against the first batch, exactly as TPUEstimator did.

        It is stricter than `resolve`: one tensor or a dictionary as in `input_partition_dims`, with the same keys.

        Args:
            features: shape of the only feature, or shapes of the features by key.
            labels: the same for the labels; None if there are none.
            replicas: number of replicas that share the batch.

        Raises:
            PartitionError: the structure or the keys differ, or `resolve` raises it.
        """
        expected = self.inputs or (dict(self.dims), None)  # type: ignore[arg-type]
        for which, shapes, tree in zip(("features", "labels"), (features, labels), expected, strict=True):
            _check_structure(which, shapes, tree)
            if shapes is None:  # the batch has no labels
                continue
            leaves = shapes if isinstance(shapes, Mapping) else {which: shapes}
            for key, shape in leaves.items():
                dims = tree.get(key) if isinstance(tree, dict) else tree
                self._resolve_one(key, shape, dims, replicas)

    def _resolve_one(self, key: str, shape: TensorShape, dims: Sequence[int] | None, replicas: int) -> Dims:
        sizes = _known_sizes(key, shape)
        if sizes[0] % replicas:
            raise PartitionError(
                f"{key}: the batch of {sizes[0]} does not divide by the {replicas} replicas; use a batch of "
                f"{' or '.join(map(str, nearest_multiples(sizes[0], replicas)))}"
            )
        # A product of 1 was "core 0 alone" for the TPU infeed, which one program over all cores does not have.
        if dims is None or math.prod(dims) == 1:
            return None
        if len(dims) != len(sizes):
            raise PartitionError(
                f"{key}: expected dims of length {len(sizes)}, one for each axis of {sizes}, got {list(dims)}"
            )
        one_replica = (sizes[0] // replicas, *sizes[1:])
        for axis, (size, parts) in enumerate(zip(one_replica, dims, strict=True)):
            if size % parts:
                raise PartitionError(self._uneven(key, one_replica, axis, parts))
        return tuple(dims)

    def _uneven(self, key: str, shape: tuple[int, ...], axis: int, parts: int) -> str:
        names = _AXES.get(len(shape), ()) if key == "image" else ()
        name = names[axis] if names else ("batch" if axis == 0 else f"axis {axis}")
        spatial = range(1, len(shape) - 1 if names else len(shape))
        splits = splits_that_divide(shape, (self.cores_per_replica,), tuple(spatial))[self.cores_per_replica]
        offered = ", ".join("[" + ",".join(map(str, split)) + "]" for split in splits[:3]) or "none"
        return (
            f"{key}: {name} of size {shape[axis]} does not divide by {parts}; resize or pad it to "
            f"{' or '.join(map(str, nearest_multiples(shape[axis], parts)))}; splits of {shape} over "
            f"{self.cores_per_replica} cores that divide: {offered}"
        )


def nearest_multiples(size: int, divisor: int) -> tuple[int, ...]:
    """Return the nearest positive multiples of `divisor` below and above `size`.

    >>> nearest_multiples(250, 8), nearest_multiples(3, 8), nearest_multiples(16, 8)
    ((248, 256), (8,), (16,))
    """
    below, above = size // divisor * divisor, -(-size // divisor) * divisor
    return tuple(sorted({value for value in (below, above) if value > 0}))


def splits_that_divide(
    shape: Sequence[int], cores: Sequence[int] = (2, 4, 8, 16), axes: Sequence[int] | None = None
) -> dict[int, list[tuple[int, ...]]]:
    """List the ways to split a tensor over some numbers of cores so that each core gets the same shape.

    Args:
        shape: sizes, e.g. (height, width), (depth, height, width) or (batch, height, width, channel).
        cores: numbers of cores to try.
        axes: axes that may be split; default: all. Name the spatial ones if `shape` has others.

    Returns:
        For each number of cores its splits, one entry per axis, those with the smallest halo surface first; an empty
        list where none divides.

    >>> splits_that_divide((640, 480), cores=(4,))
    {4: [(2, 2), (4, 1), (1, 4)]}
    >>> splits_that_divide((8, 750, 1000, 3), cores=(4,), axes=(1, 2))
    {4: [(1, 2, 2, 1), (1, 1, 4, 1)]}
    """

    def surface(split: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        cuts = sum((parts - 1) * math.prod(shape) // size for size, parts in zip(shape, split, strict=True))
        return cuts, tuple(-parts for parts in split)

    found = {}
    for count in cores:
        divisors = [parts for parts in range(1, count + 1) if count % parts == 0]
        choices = [
            [parts for parts in divisors if size % parts == 0] if axes is None or axis in axes else [1]
            for axis, size in enumerate(shape)
        ]
        splits = [split for split in itertools.product(*choices) if math.prod(split) == count]
        found[count] = sorted(splits, key=surface)
    return found


def core_axes(cores_per_replica: int) -> tuple[str, ...]:
    """Return the names of the mesh axes within a replica, each of size 2.

    >>> core_axes(8)
    ('core0', 'core1', 'core2')
    """
    return tuple(f"core{axis}" for axis in range(cores_per_replica.bit_length() - 1))


def axis_names(dims: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """Return the core axes of the mesh that split each axis of a tensor, row-major over the cores.

    >>> axis_names([1, 4, 2, 1])
    ((), ('core0', 'core1'), ('core2',), ())
    """
    names, first = [], 0
    for parts in dims:
        count = parts.bit_length() - 1
        names.append(tuple(f"core{axis}" for axis in range(first, first + count)))
        first += count
    return tuple(names)


def _checked(key: str, dims: object, cores: int) -> Dims:
    if dims is None:
        return None
    if not isinstance(dims, Iterable) or isinstance(dims, str | Mapping):
        raise PartitionError(
            f"{key}: expected parts along each axis, e.g. [1, 4, 1, 1], or None, got {dims!r}"
        )
    try:
        parts = tuple(operator.index(part) for part in dims)
    except TypeError:
        raise PartitionError(f"{key}: expected whole numbers along each axis, got {dims!r}") from None
    if not parts or any(part < 1 for part in parts):
        raise PartitionError(
            f"{key}: expected every entry to be at least 1, got {list(parts)}; write 1 for no split"
        )
    if (product := math.prod(parts)) not in (1, cores):
        raise PartitionError(
            f"{key}: expected dims whose product is the cores per replica, {cores}, got {list(parts)} "
            f"with product {product}; {_way_to_product(product)}"
        )
    return parts


def _way_to_product(product: int) -> str:
    """Return what to change where the product of dims is not the number of cores per replica."""
    if product in CORES_PER_REPLICA:
        return (
            f"change the dims, or pass cores_per_replica={product} (--cores-per-replica {product}; of plan "
            f"--set cores_per_replica={product})"
        )
    return f"no replica has that many: change the dims to a power of 2 of at most {max(CORES_PER_REPLICA)}"


def _known_sizes(key: str, shape: TensorShape) -> tuple[int, ...]:
    """Return a shape of known sizes with a batch axis; raise PartitionError for another."""
    if any(size is None or size < 0 for size in shape):
        raise PartitionError(
            f"{key}: expected a shape that is fully known, got {tuple(shape)}; pad or resize to one "
            "size, and drop the remainder of the batch"
        )
    sizes = tuple(size for size in shape if size is not None)
    if not sizes:
        raise PartitionError(f"{key}: expected a batch axis first, got a scalar; stack it over the batch")
    return sizes


def _parse_entry(entry: str) -> tuple[str, list[int] | None]:
    """Return the key and the dims of an entry of the command line, such as image=1,4,1,1 or 1,4,1,1."""
    named = entry if "=" in entry or not entry[0].isdigit() else f"image={entry}"
    key, equals, numbers = (part.strip() for part in named.partition("="))
    if not (key and equals and numbers):
        raise PartitionError(f"partition {entry!r}: expected key=parts along each axis, e.g. image=1,4,1,1")
    if numbers.lower() == "none":
        return key, None
    try:
        return key, [int(number) for number in numbers.split(",")]
    except ValueError:
        raise PartitionError(
            f"partition {entry!r}: expected whole numbers or none, e.g. image=1,4,1,1"
        ) from None


def _check_structure(which: str, shapes: object, tree: DimsTree) -> None:
    """Refuse dims that are not for the tensor, or the dictionary of tensors, of the batch."""
    where = f"input_partition_dims[{0 if which == 'features' else 1}]"
    if tree is None:
        return
    if shapes is None:
        raise PartitionError(f"{where}: dims for labels, but the batch has none; drop {where}")
    if isinstance(tree, dict) != isinstance(shapes, Mapping):
        kinds = {True: "a dictionary", False: "one tensor"}
        raise PartitionError(
            f"{where}: mismatched structure of the {which}; the batch has "
            f"{kinds[isinstance(shapes, Mapping)]}, the dims are for {kinds[isinstance(tree, dict)]}"
        )
    if isinstance(tree, dict) and isinstance(shapes, Mapping) and set(tree) != set(shapes):
        raise PartitionError(
            f"{where}: mismatched keys of the {which}; the batch has {_keys(shapes)}, the dims have "
            f"{_keys(tree)}; name every key, with None for a whole copy"
        )


def _cores_of_config(cores: int | None, dims: object, per_host_input: object) -> int:
    """Return the cores per replica; raise PartitionError where TPUConfig refuses `input_partition_dims`."""
    if not isinstance(dims, Sequence) or isinstance(dims, str) or len(dims) not in (1, 2):
        raise PartitionError(
            "input_partition_dims: expected a list of one or two elements, [features] or "
            f"[features, labels], got {dims!r}; wrap the dims: [[1, 4, 1, 1], None]"
        )
    if not _is_per_host_v2(per_host_input):
        raise PartitionError(
            "per_host_input_for_training: input_partition_dims needs PER_HOST_V2, got "
            f"{per_host_input!r}; pass per_host_input_for_training=PER_HOST_V2"
        )
    if cores is None:
        raise PartitionError(
            "num_cores_per_replica: input_partition_dims needs it, got None; pass the product of the dims"
        )
    return cores


def _named_dims(features: DimsTree, labels: DimsTree) -> dict[str, Sequence[int] | None]:
    """Return the dims of all tensors by key; TPUConfig's single tensors are those of a batch of halofeed."""
    named: dict[str, Sequence[int] | None] = {}
    for tree, only_key in ((features, "image"), (labels, "label")):
        if isinstance(tree, dict):
            if twice := sorted(set(tree) & set(named)):
                raise PartitionError(
                    f"input_partition_dims: {twice[0]!r} is a feature and a label; rename one"
                )
            named.update(tree)
        elif tree is not None:
            named[only_key] = tree
    return named


def _check_other_arguments(iterations_per_loop: object, ignored: Mapping[str, object]) -> None:
    """Check the arguments of TPUConfig that say nothing of the partition, and print those that are given."""
    if unknown := [name for name in ignored if name not in IGNORED_TPU_ARGUMENTS]:
        near = did_you_mean(unknown[0], [*IGNORED_TPU_ARGUMENTS, *_OWN_TPU_ARGUMENTS, "iterations_per_loop"])
        raise PartitionError(f"{unknown[0]}: TPUConfig has no such argument; {near}leave it out")
    for name, value in ignored.items():
        if value is not None:
            print_status(f"TPUConfig: {name}={value!r} is ignored: {IGNORED_TPU_ARGUMENTS[name]}")
    if iterations_per_loop is None:
        return
    if not isinstance(iterations_per_loop, int) or iterations_per_loop < 1:
        raise PartitionError(f"iterations_per_loop: expected 1 or more, got {iterations_per_loop!r}")
    print_status(
        f"TPUConfig: iterations_per_loop={iterations_per_loop} is not part of a partition; set it in TrainConfig"
    )


def _tree(where: str, tree: object, cores: int) -> DimsTree:
    if isinstance(tree, Mapping):
        return {str(key): _checked(f"{where}[{key!r}]", dims, cores) for key, dims in tree.items()}
    return _checked(where, tree, cores)


def _is_per_host_v2(mode: object) -> bool:
    if isinstance(mode, bool):  # TPUConfig: True is PER_HOST_V1, False PER_SHARD_V1
        return False
    name = getattr(mode, "name", mode)
    return name in (PER_HOST_V2, f"InputPipelineConfig.{PER_HOST_V2}") or mode == _PER_HOST_V2_NUMBER


def _keys(mapping: Mapping[str, object]) -> str:
    return ", ".join(map(str, sorted(mapping))) or "none"
