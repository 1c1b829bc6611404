"""What does a detector say at one level of its pyramid?"""

from __future__ import annotations

from dataclasses import dataclass

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Level:
    """A detector's outputs at one level; a model's outputs are a list of these, the finest first.

    Args:
        class_logits: [batch, height, width, anchor, class], classes without the background.
        box_codes: [batch, height, width, anchor, 4], of `box_coder`.
        anchors: float32 [height, width, anchor, 4], ymin, xmin, ymax, xmax as shares of the image's sides.
    """

    class_logits: jax.Array
    box_codes: jax.Array
    anchors: jax.Array
