"""How well predicted boxes match the true ones, and how well confidences match the accuracy."""

import jax.numpy as jnp

from jaxagents.types import Array


def box_iou(one: Array, other: Array) -> Array:
    """Computes the intersection of two boxes divided by their union.

    Args:
        one: float32 `[..., 4]`, left, top, right and bottom.
        other: float32 `[..., 4]`.

    Returns:
        float32 `[...]`, 0 if they do not overlap.
    """
    sides = jnp.minimum(one[..., 2:], other[..., 2:]) - jnp.maximum(one[..., :2], other[..., :2])
    shared = jnp.prod(jnp.maximum(sides, 0.0), axis=-1)
    union = sum(jnp.prod(box[..., 2:] - box[..., :2], axis=-1) for box in (one, other)) - shared
    return shared / jnp.where(union > 0.0, union, 1.0)


def detection_rewards(
    box: Array, confidence: Array, predicted: Array, truth: Array, there: Array, *, threshold: float = 0.5
) -> tuple[Array, Array]:
    """Rewards boxes for their overlap with the true ones, and their confidences for being right.

    In the order of their confidence, boxes take the remaining true box that they overlap most; u_i is that overlap if
    it is above the threshold, else 0. `R_iou = sum_i u_i / max(number of predicted, number of true boxes)` and
    `R_confidence = mean_i (c_i if u_i > 0 else 1 - c_i)`, both 0 if nothing is predicted. Duplicate predictions count
    once.

    Args:
        box: float32 `[M, 4]`, left, top, right and bottom.
        confidence: float32 `[M]`, from 0 to 1.
        predicted: bool `[M]`, False for padding.
        truth: float32 `[G, 4]`, true boxes.
        there: bool `[G]`, False for padding.
        threshold: least overlap that counts.

    Returns:
        Both rewards, float32 `[]`.

    References:
        Liu et al. (2025), "Visual-RFT: Visual Reinforcement Fine-Tuning", section 3.2; as released: the mean is over
        the larger number of boxes.
    """
    num_boxes = box.shape[0]
    earlier = jnp.arange(num_boxes)[None, :] < jnp.arange(num_boxes)[:, None]
    same = jnp.all(box[:, None] == box[None], axis=-1) & predicted[None, :]
    predicted = predicted & ~jnp.any(same & earlier, axis=1)
    overlap = jnp.where(there[None, :], box_iou(box[:, None], truth[None]), 0.0)
    order = jnp.argsort(jnp.where(predicted, -confidence, jnp.inf), stable=True)
    left, right, total = there, jnp.zeros(num_boxes, bool), jnp.zeros(())
    for place in range(num_boxes):
        index = order[place]
        free = jnp.where(left, overlap[index], 0.0)
        taken, best = jnp.argmax(free), jnp.max(free)
        fits = predicted[index] & (best > threshold)
        left = left & ~(fits & (jnp.arange(left.shape[0]) == taken))
        right, total = right.at[index].set(fits), total + jnp.where(fits, best, 0.0)
    count = jnp.sum(predicted)
    sure = jnp.sum(jnp.where(predicted, jnp.where(right, confidence, 1.0 - confidence), 0.0))
    return total / jnp.maximum(jnp.maximum(count, jnp.sum(there)), 1), sure / jnp.maximum(count, 1)
