"""PAE's filter, beside numpy's percentiles."""

import jax
import numpy as np
import pytest

from jaxagents.ops.pae import shortest_rewarded
from jaxagents.types import EpisodeView


def view_of(make_episode, paid, turns, group):
    valid = np.arange(max(turns)) < np.array(turns)[:, None]
    last = np.arange(max(turns)) == np.array(turns)[:, None] - 1
    return EpisodeView(episode=make_episode(last * np.array(paid)[:, None], valid.astype(float), group=np.array(group)))


def test_the_shortest_of_those_that_were_paid_by_hand(make_episode):
    # Lengths of the paid of task 7: 2, 3, 3, 6; their 20th percentile is 2 + 0.6 (3 - 2) = 2.6. The only one of task 2.
    view = view_of(make_episode, [1, 1, 0, 1, 1, 0, 1], [3, 2, 1, 3, 6, 2, 5], [7, 7, 7, 7, 7, 2, 2])
    assert shortest_rewarded(view).tolist() == [False, True, False, False, False, False, True]
    assert shortest_rewarded(view, share=0.5).tolist() == [True, True, False, True, False, False, True]
    assert shortest_rewarded(view, share=1.0).tolist() == [True, True, False, True, True, False, True]
    dropped = view.replace(episode=view.episode.replace(keep=np.array([True, False, *[True] * 5])))
    assert shortest_rewarded(dropped).tolist() == [True, False, False, True, False, False, True]
    assert not shortest_rewarded(view_of(make_episode, [0, 0], [1, 2], [1, 1])).any()


@pytest.mark.parametrize("share", [0.2, 0.35, 0.9])
def test_percentiles_are_those_of_numpy(make_episode, share):
    rng = np.random.default_rng(3)
    paid, turns, group = rng.random(64) < 0.6, rng.integers(1, 9, 64), np.repeat(np.arange(8), 8)
    expected = paid & np.concatenate(
        [
            of <= np.percentile(of[won], 100 * share) if won.any() else won
            for of, won in zip(*(one.reshape(8, 8) for one in (turns, paid)))
        ]
    )
    view = view_of(make_episode, paid, turns, group)
    assert jax.jit(shortest_rewarded)(view, share=share).tolist() == expected.tolist()
