"""Algorithms that are compositions of options: rounds of imitation and reinforcement, and what VinePPO credits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hydra.utils import instantiate

from jaxagents.learners.policy_gradient import assign_credit
from jaxagents.learners.settings import without_memory
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from jaxagents.types import EpisodeView
from tests import CONFIGS


def composed(*choices):
    return resolve(compose(CONFIGS, "world=frozenlake", *choices, "stages=[]", "quick=true"))


@pytest.mark.exhaustive
def test_a_chunk_of_rounds_can_be_traced():
    rounds = composed("algorithm=grpo", "learner=rounds", "learner.imitation.num_steps=2")
    runner = build(rounds).stages[-1].runner
    before, (after, metrics) = runner.abstract, jax.eval_shape(lambda state: runner.run(state, 1), runner.abstract)
    assert jax.tree.map(lambda leaf: leaf.shape, after.learner) == jax.tree.map(lambda leaf: leaf.shape, before.learner)
    assert metrics


def test_vineppo_credits_an_action_with_what_it_adds_to_the_chance_of_success(make_episode):
    """Two turns of three actions, judged by the shares 0.8, 0.2, 0.5 and 1, 0, 0 of episodes that went on to succeed.

    The third action was no legal one, which costs 0.1; a third turn did not take place.
    """
    learner = composed("experiment=grpo_frozenlake", "algorithm=vineppo")["learner"]
    slots = {"reward/invalid": instantiate(learner["rewards"]["invalid"])}
    slots |= {"advantage": instantiate(learner["advantage"])}
    turns = make_episode(
        [[0.8], [0.2], [0.5], [1.0], [0.0], [0.0], [0.0], [0.0], [0.0]],
        [[2]] * 9,
        group=[0, 0, 0, 1, 1, 1, 2, 2, 2],
        action_valid=jnp.array([True, True, False, *[True] * 6])[:, None],
        keep=jnp.array([True] * 6 + [False] * 3),
    )
    credit, _, _ = assign_credit(without_memory(slots), EpisodeView(episode=turns), None)
    # Against the mean of the other two: 0.8 - (0.2 + 0.4) / 2, 0.2 - (0.8 + 0.4) / 2, 0.4 - (0.8 + 0.2) / 2.
    expected = np.array([0.5, -0.4, -0.1, 1.0, -0.5, -0.5, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(credit.advantage[:, 0], expected[:, None] * [0, 1, 1, 0], atol=1e-6)
