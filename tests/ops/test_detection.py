"""Rewards of boxes against the released rule, written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.detection import box_iou, detection_rewards


def overlap(one, other):
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


def released(guesses, truth):
    """Visual-RFT@9486633, grpo.py:109-212: said are (box, confidence) in their order."""
    boxes, unique = [], []
    for box, confidence in guesses:
        if tuple(box) not in boxes:
            boxes.append(tuple(box))
            unique.append((box, confidence))
    taken, results = set(), []
    for box, confidence in sorted(unique, key=lambda one: one[1], reverse=True):
        best, index = 0.0, -1
        for number, other in enumerate(truth):
            if number not in taken and overlap(other, box) > best:
                best, index = overlap(other, box), number
        if best > 0.5:
            taken.add(index)
        results.append((best if best > 0.5 else 0.0, confidence))
    if not results:
        return 0.0, 0.0
    sure = [c if iou else 1 - c for iou, c in results]
    return sum(iou for iou, _ in results) / max(len(truth), len(results)), sum(sure) / len(results)


def ours(guesses, truth, room=4):
    box, confidence = np.zeros((room, 4), np.float32), np.zeros(room, np.float32)
    other = np.zeros((room, 4), np.float32)
    for number, (one, sure) in enumerate(guesses):
        box[number], confidence[number] = one, sure
    other[: len(truth)] = np.reshape(truth, (-1, 4))
    there = np.arange(room)
    return jax.jit(detection_rewards)(box, confidence, there < len(guesses), other, there < len(truth))


A, B, BESIDE, FAR = [0, 0, 2, 2], [4, 0, 6, 2], [0, 0, 3, 2], [8, 8, 9, 9]


@pytest.mark.parametrize(
    "guesses, truth, expected",
    [
        ([(A, 0.9)], [A], (1.0, 0.9)),
        ([(BESIDE, 0.9)], [A], (2 / 3, 0.9)),
        ([(FAR, 0.9)], [A], (0.0, 0.1)),
        ([([0, 0, 4, 2], 0.9)], [A], (0.0, 0.1)),  # Half of the union is not above 0.5.
        ([(A, 0.9)], [A, B], (0.5, 0.9)),  # One is missing.
        ([(A, 0.9), (FAR, 0.5)], [A], (0.5, 0.7)),  # One too many.
        ([(A, 0.5), (A, 0.9)], [A, B], (0.5, 0.5)),  # Said twice: the first one counts.
        ([(A, 0.1), (BESIDE, 0.9)], [A], (1 / 3, 0.9)),  # The surer one takes it.
        ([(A, 0.5), (BESIDE, 0.5)], [A], (0.5, 0.5)),  # Of equally sure ones the first.
        ([(B, 0.1), (A, 0.9)], [A, B], (1.0, 0.5)),
        ([], [A], (0.0, 0.0)),
    ],
)
def test_by_hand(guesses, truth, expected):
    np.testing.assert_allclose(ours(guesses, truth), expected, rtol=1e-6)
    np.testing.assert_allclose(released(guesses, truth), expected, rtol=1e-6)


def test_as_released():
    draw = np.random.default_rng(0)
    for _ in range(200):
        corners = draw.integers(0, 4, (8, 2))
        boxes = np.concatenate([corners, corners + draw.integers(1, 4, (8, 2))], axis=1).tolist()
        guesses = [(box, draw.choice([0.1, 0.5, 0.9])) for box in boxes[: draw.integers(0, 5)]]
        truth = boxes[4 : 4 + draw.integers(1, 5)]
        np.testing.assert_allclose(ours(guesses, truth), released(guesses, truth), rtol=1e-5, atol=1e-6)


def test_boxes_without_an_area_share_nothing():
    assert float(box_iou(jnp.zeros(4), jnp.zeros(4))) == 0.0
