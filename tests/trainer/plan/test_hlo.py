"""Sizes, exchanges and peak memory are read from the text of a compiled program."""

import jax
import jax.numpy as jnp
import pytest

from halofeed.trainer.plan.document import whole_gathers
from halofeed.trainer.plan.hlo import Module, arrays_of, collectives, peak, repeated_costs

TEXT = """HloModule jit_step, is_scheduled=true

FileNames
1 "/home/me/halofeed/trainer/models/unet.py"
2 "/venv/site-packages/flax/nnx/nn/linear.py"

FunctionNames
1 "UNet.__call__"
2 "Conv.__call__"

FileLocations
1 {file_name_id=1 function_name_id=1 line=137 end_line=137 column=4 end_column=4}
2 {file_name_id=2 function_name_id=2 line=10 end_line=10 column=4 end_column=4}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

%body (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %sum = f32[8]{0} all-reduce(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
}

ENTRY %main (x: bf16[4,20,20,3]) -> f32[8] {
  %x = bf16[4,20,20,3]{3,2,1,0:T(8,128)(2,1)} parameter(0)
  %y = bf16[4,20,20,3]{3,2,1,0:T(8,128)(2,1)} negate(%x)
  %z = bf16[4,20,20,3]{3,2,1,0:T(8,128)(2,1)} negate(%y)
  %halo = (bf16[4,1,20,3]{3,2,1,0}, bf16[4,1,20,3]{3,2,1,0}, u32[], u32[]) collective-permute-start(%y), source_target_pairs={{0,1}}, metadata={op_name="jit(step)/jvp(down.0)/down.0.1.convolution/conv_general_dilated" stack_frame_id=2}
  %done = bf16[4,1,20,3]{3,2,1,0} collective-permute-done(%halo)
  %whole = bf16[4,160,160,3]{3,2,1,0} all-gather(%z), replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={1}, metadata={op_name="jit(step)/transpose(jvp(pyramid))/closed_call/sort"}
  %loop = f32[8]{0} while(%init), condition=%c, body=%body, trips=5
  ROOT %out = f32[8]{0} copy(%loop)
}
"""  # noqa: E501 (the compiler's own lines)


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(TEXT)


def test_an_array_has_its_bytes_and_those_that_its_tiles_add() -> None:
    (array,) = arrays_of("bf16[4,20,20,3]{3,2,1,0:T(8,128)(2,1)}")
    assert (array.bytes, array.padded_bytes) == (4 * 20 * 20 * 3 * 2, 4 * 20 * 24 * 128 * 2)
    assert arrays_of("f32[8]{0:T(256)}")[0].padded_bytes == 1024
    assert not arrays_of("f32[8]{0:T(256)S(1)}")[0].is_in_main_memory


def test_exchanges_are_counted_by_what_a_core_sends_and_named_by_layer_and_line(module: Module) -> None:
    by_kind = {one.kind: one for one in collectives(module, 8)}
    assert by_kind["halos"].sent_bytes == 4 * 20 * 3 * 2
    assert by_kind["gathers"].sent_bytes == pytest.approx(3 / 4 * 4 * 160 * 160 * 3 * 2)
    total = by_kind["all-reduces"]
    assert (total.times, total.cores) == (5, 4) and total.sent_bytes == pytest.approx(5 * 2 * 3 / 4 * 32)
    assert by_kind["halos"].layer == "down.0.1.convolution"
    assert by_kind["halos"].place == "UNet (trainer/models/unet.py:137)"
    assert (by_kind["gathers"].layer, by_kind["gathers"].operation) == ("pyramid", "sort (backward)")


def test_a_gather_of_a_whole_level_is_told_from_one_of_something_else(module: Module) -> None:
    gathered = collectives(module, 8)
    assert [one.result_shape for one in whole_gathers(gathered, (640, 640, 3))] == [(4, 160, 160, 3)]
    assert whole_gathers(gathered, (600, 600, 3)) == []


def test_the_fullest_moment_holds_what_is_read_later(module: Module) -> None:
    tile, whole = 4 * 20 * 24 * 128 * 2, 4 * 160 * 160 * 3 * 2
    fullest = peak(module)
    assert 2 * tile <= fullest.bytes + whole and fullest.bytes == tile + whole
    assert fullest.largest[0]["arrays"] == ["bf16[4,160,160,3]"]


def test_loops_cost_as_much_as_the_same_work_without_a_loop() -> None:
    def compiled(step):
        shapes = jax.ShapeDtypeStruct((5, 64, 32), jnp.float32), jax.ShapeDtypeStruct((32, 32), jnp.float32)
        return jax.jit(step).lower(*shapes).compile()

    looped = compiled(lambda x, w: jax.lax.map(lambda row: jnp.tanh(row @ w) @ w, x))
    unrolled = compiled(lambda x, w: jnp.stack([jnp.tanh(row @ w) @ w for row in x]))
    flops, moved = repeated_costs(Module(looped.as_text()))
    assert looped.cost_analysis()["flops"] + flops == pytest.approx(
        unrolled.cost_analysis()["flops"], rel=0.05
    )
    assert moved > 4 * 64 * 32 * 4
