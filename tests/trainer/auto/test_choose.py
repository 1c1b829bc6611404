"""The first candidate that fits and is fast enough is chosen, and only with a verdict that it fits."""

import contextlib
import itertools
import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.errors import UsageError
from halofeed.trainer.auto.candidates import Machine, UNetCandidate, least_patch, unet_candidates
from halofeed.trainer.auto.choose import LEAST_STEPS, Verdict, choose_candidate, steps_in
from halofeed.trainer.auto.fingerprint import Fingerprint


@dataclass(frozen=True)
class Fake:
    """Candidate of a true size and time; the estimates may be off."""

    work: float
    bytes: float
    true_seconds: float = 0.0
    true_bytes: int = 0
    name: str = "fake"

    def changes(self):
        return {}


def judged(limit, asked):
    def judge(one):
        asked.append(one)
        return Verdict(
            fits=one.true_bytes <= limit,
            total_bytes=one.true_bytes,
            limit_bytes=limit,
            step_seconds=one.true_seconds or None,
            is_measured=True,
        )

    return judge


CANDIDATES = st.lists(
    st.builds(
        Fake,
        work=st.floats(1e6, 1e13),
        bytes=st.floats(1e3, 1e12),
        true_seconds=st.floats(1e-3, 100),
        true_bytes=st.integers(1, 10**12),
    ),
    min_size=1,
    max_size=30,
)


@given(CANDIDATES, st.integers(1, 10**12), st.one_of(st.none(), st.floats(1, 1e5)))
def test_what_is_chosen_was_judged_and_fits_and_few_are_judged(candidates, limit, seconds):
    asked = []
    judge = judged(limit, asked)
    if all(one.true_bytes > limit for one in candidates):
        with pytest.raises(UsageError, match="nothing fits the memory"):
            choose_candidate(candidates, judge, platform="cpu", seconds=seconds, limit_bytes=limit)
        return
    with contextlib.suppress(UsageError):  # the estimates may be too wrong to find one in a few tries
        found = choose_candidate(candidates, judge, platform="cpu", seconds=seconds, limit_bytes=limit)
    if all(one.true_bytes > limit for one in asked):
        return
    assert found.candidate in asked and found.verdict.fits and found.candidate.true_bytes <= limit
    assert len(asked) <= 10
    accepted = [one for one in asked if one.true_bytes <= limit]
    in_time = [
        one for one in accepted if seconds is None or one.true_seconds * LEAST_STEPS * 0.8 <= 0.85 * seconds
    ]
    # Of those that were judged, the first that fits and is in time wins.
    assert found.is_in_time == bool(in_time)
    if in_time:
        assert found.candidate == min(in_time, key=candidates.index)


@pytest.mark.parametrize("rate", [1e9, 1e11])
def test_exact_estimates_find_the_first_candidate_that_an_exhaustive_search_finds(rate):
    candidates = [
        Fake(work=work * rate, bytes=work, true_seconds=work, true_bytes=work)
        for work in (64, 32, 16, 8, 4, 2, 1)
    ]
    asked = []
    found = choose_candidate(
        candidates, judged(40, asked), platform="cpu", seconds=6 * LEAST_STEPS, limit_bytes=40
    )
    assert found.candidate.true_seconds == 4 and len(asked) <= 3


def test_without_enough_time_the_fastest_is_chosen_and_called_late():
    candidates = [Fake(work * 1e9, work, work, work) for work in (64, 32, 16)]
    found = choose_candidate(candidates, judged(100, []), platform="cpu", seconds=1.0, limit_bytes=100)
    assert (found.candidate.true_seconds, found.is_in_time) == (16, False)


def timed(cost, asked, compile_seconds=0.0):
    """A judge whose verdicts take time from the run."""

    def judge(one):
        asked.append(one)
        return Verdict(
            fits=True, step_seconds=one.true_seconds, compile_seconds=compile_seconds, seconds=cost
        )

    return judge


SIZES = [Fake(work * 2e11, work, work) for work in (1.0, 0.5, 0.25, 0.125)]


def test_the_time_of_the_plan_and_of_the_compiler_is_taken_from_the_steps():
    seconds = 0.5 * LEAST_STEPS / 0.85 + 1.0
    free, costly, compiled = [], [], []
    fast = choose_candidate(SIZES, timed(0.0, free), platform="cpu", seconds=seconds)
    slow = choose_candidate(SIZES, timed(0.2 * seconds, costly), platform="cpu", seconds=seconds)
    late = choose_candidate(SIZES, timed(0.0, compiled, 0.4 * seconds), platform="cpu", seconds=seconds)
    assert (fast.candidate.true_seconds, fast.seconds) == (0.5, 0.0)
    # Exactly 300 steps fitted; the verdict itself left less, which the slack of a measured time allows.
    assert (slow.candidate.true_seconds, slow.seconds, slow.is_in_time) == (0.5, 0.2 * seconds, True)
    assert (late.candidate.true_seconds, late.is_in_time) == (0.25, True)


def test_planning_ends_after_a_quarter_of_the_time():
    # The machine is ten times slower than the estimate, and each verdict takes a fifth of the time.
    slow = [Fake(one.work, one.bytes, 10 * one.true_seconds) for one in SIZES]
    asked = []
    found = choose_candidate(
        slow, timed(0.2 * LEAST_STEPS, asked), platform="cpu", seconds=float(LEAST_STEPS)
    )
    assert len(asked) == 1 and not found.is_in_time


def test_a_wider_network_that_is_slower_than_its_estimate_leaves_the_one_that_was_in_time():
    first, second = Fake(4e11, 1, 1.9), Fake(2e11, 1, 0.2)
    found = choose_candidate([first, second], timed(20.0, []), platform="cpu", seconds=400.0)
    assert found.candidate == second and found.is_in_time


def test_the_estimate_of_work_follows_the_times_of_two_widths():
    """Measured on one core of an AMD EPYC: 2.2 times as long for twice the width, for patches of 20 x 32 x 20."""
    fingerprint = Fingerprint(
        task="segmentation",
        kind="volume",
        records=215,
        stored_shape=(40, 64, 40, 1),
        spacing_mm=(1.0, 1.0, 1.0),
        best_spacing_mm=(1.0, 1.0, 1.0),
        median_shape=(36, 50, 35),
        largest_shape=(40, 64, 40),
        # Small enough that these patches show it whole, at every width.
        structures={"organ": 1000.0},
    )
    found = {
        one.width: one.work
        for one in unet_candidates(fingerprint, Machine(platform="cpu", devices=1))
        if one.patch == (20, 32, 20)
    }
    assert found[16] / found[8] == pytest.approx(2.2, rel=0.15)


def test_nothing_fits_is_an_error_with_the_least_need():
    with pytest.raises(UsageError, match=r"nothing fits the memory of 0.00 GiB.*needs 1.00 GiB"):
        choose_candidate([Fake(1, 1, 1, 1 << 30)], judged(10, []), platform="cpu", limit_bytes=10)


def test_steps_leave_time_for_the_evaluation():
    assert steps_in(100, 1.0) == 85 and steps_in(1e12, 1e-3) == 250_000 and steps_in(1, 100) == 50


SIDES = st.tuples(*[st.integers(16, 200)] * 3)


@given(
    SIDES,
    SIDES,
    st.tuples(*[st.floats(0.5, 5)] * 3),
    st.integers(1, 500),
    st.sampled_from([(1, (1,)), (8, (1, 2, 4, 8)), (4, (1, 2, 4))]),
    st.floats(10, 1e6),
)
def test_every_candidate_can_be_trained(record, image, spacing, records, devices, voxels):
    fingerprint = Fingerprint(
        task="segmentation",
        kind="volume",
        records=records,
        stored_shape=(*record, 1),
        spacing_mm=spacing,
        best_spacing_mm=spacing,
        median_shape=tuple(map(min, image, record)),
        largest_shape=record,
        structures={"organ": voxels},
    )
    machine = Machine(platform="tpu", devices=devices[0], splits=devices[1])
    assert all(low <= side for low, side in zip(least_patch(fingerprint), record, strict=True))
    for one in itertools.islice(unet_candidates(fingerprint, machine), 60):
        replicas = machine.devices // one.cores
        assert one.batch % replicas == 0 and 1 <= one.batch <= records
        assert all(side <= most for side, most in zip(one.patch, record, strict=True))
        assert all(side % by == 0 for side, by in zip(one.patch, one.pooling.divisors, strict=True))
        if one.cores > 1:
            parts = one.partition[1:-1]
            assert math.prod(parts) == one.cores
            for sides in (one.patch, record):
                assert all(side % part == 0 for side, part in zip(sides, parts, strict=True))


def test_the_estimate_of_work_and_weights_is_that_of_the_network():
    """The oracle counts the weights of the real module."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from halofeed.trainer.models.layers import Layers
    from halofeed.trainer.models.unet import UNet

    fingerprint = Fingerprint(
        task="segmentation",
        kind="volume",
        records=10,
        stored_shape=(32, 48, 48, 1),
        spacing_mm=(3.0, 1.0, 1.0),
        best_spacing_mm=(3.0, 1.0, 1.0),
        median_shape=(32, 48, 48),
        largest_shape=(32, 48, 48),
        structures={"organ": 500.0},
    )
    one: UNetCandidate = next(iter(unet_candidates(fingerprint, Machine(platform="cpu", devices=1))))
    options = one.changes()["model_options"]

    def model_of():
        layers = Layers(dtype=jnp.dtype("float32"), rngs=nnx.Rngs(0))
        return UNet(layers, classes=2, image_shape=(*one.patch, 1), **options)

    model = nnx.eval_shape(model_of)
    kernels = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)) if leaf.ndim > 1)
    assert options["strides"][0] == [1, 2, 2] and options["kernels"][0] == [1, 3, 3]
    head = 2 * one.width
    assert one._forward()[2] == kernels - head
