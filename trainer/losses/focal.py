"""What does a wrong class cost where almost all anchors are background? The focal loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def sigmoid_focal(
    logits: jax.Array, targets: jax.Array, *, alpha: float | None = 0.25, gamma: float = 2.0
) -> jax.Array:
    """Sigmoid cross-entropy, times (1 - p) ** gamma where p is the probability of the truth, times alpha.

    The power is taken as exp(-gamma * target * logit - gamma * softplus(-logit)), so that values and gradients stay
    finite for logits of any size.

    Args:
        logits: of any shape.
        targets: 0 or 1, of the logits' shape.
        alpha: the weight where the target is 1; 1 - alpha is the weight where it is 0. None weighs both with 1.
        gamma: how far what is already right is set aside; 0 is plain cross-entropy.

    Returns:
        The loss of every logit, in their shape and dtype.

    Source: Lin et al., Focal Loss for Dense Object Detection (arXiv 1708.02002), equation 5.

    >>> sigmoid_focal(jnp.zeros(2), jnp.array([1.0, 0.0])).round(5).tolist()
    [0.04332000017166138, 0.1299699991941452]
    """
    positive = targets.astype(bool)
    # Of s, the logit of being wrong: cross-entropy softplus(s), 1 - p = exp(s - softplus(s)). Unlike
    # x - target * x + softplus(-x), nothing cancels where the loss is small, which is almost everywhere.
    wrong = jnp.where(positive, -logits, logits)
    loss = jax.nn.softplus(wrong)
    if gamma:
        loss = loss * jnp.exp(gamma * (wrong - loss))
    return loss if alpha is None else loss * jnp.where(positive, alpha, 1 - alpha)
