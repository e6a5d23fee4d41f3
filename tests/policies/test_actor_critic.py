"""Policies and actor-critics: shapes, what is shared, sequences against single steps."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from jaxagents.networks.heads import TanhNormalHead
from jaxagents.networks.recurrent import GRU, LRU
from jaxagents.networks.torsos import MLP
from jaxagents.ops.distributions import Categorical, TanhNormal
from jaxagents.policies.actor_critic import act, as_policy, make_actor_critic, make_policy
from jaxagents.types import ActorCritic, Box, Discrete, Params, PolicyInput

KEY = jax.random.key(0)
SPACE, ACTIONS = Box((3,)), Discrete(4)
ENCODER = MLP(hidden_sizes=(8,))
T, B = 5, 2
OBSERVATION = jax.random.normal(jax.random.key(1), (T, B, 3))
FIRST = jnp.zeros((T, B), bool).at[0].set(True).at[3, 1].set(True)
MEMORIES = {"none": None, "gru": GRU(hidden_size=6), "lru": LRU(hidden_size=6, state_size=4)}


def random_params(made, scale=0.5):
    """Returns parameters that do not need the compilation of an initialiser."""
    generator = np.random.default_rng(0)
    shapes = jax.eval_shape(made.init, KEY)
    return jax.tree.map(lambda leaf: jnp.asarray(scale * generator.normal(size=leaf.shape), leaf.dtype), shapes)


class Case(NamedTuple):
    """An actor-critic, parameters of it and its compiled function."""

    made: ActorCritic
    params: Params
    apply: Callable


@pytest.fixture(scope="module", params=[("none", False), ("gru", False), ("lru", True)], ids=str)
def case(request):
    memory, shared = request.param
    made = make_actor_critic(SPACE, ACTIONS, encoder=ENCODER, memory=MEMORIES[memory], shared=shared)
    return Case(made=made, params=random_params(made), apply=jax.jit(made.apply))


def test_feed_forward_policy_has_an_empty_carry_and_a_categorical():
    policy = make_policy(SPACE, ACTIONS, encoder=ENCODER)
    params = jax.jit(policy.init)(KEY)
    assert set(params) == {"torso", "head"} and set(params["torso"]) == {"encoder"}
    assert policy.initial_carry((B,)) == ()
    carry, distribution = policy.apply(params, (), PolicyInput(observation=OBSERVATION, first=FIRST))
    assert carry == () and isinstance(distribution, Categorical) and distribution.logits.shape == (T, B, 4)
    # The head starts near uniform.
    np.testing.assert_allclose(distribution.entropy(), np.log(4.0), atol=1e-3)


def test_bounded_box_gives_a_tanh_normal_with_its_bounds():
    policy = make_policy(SPACE, Box((2,), -3.0, 1.0), encoder=ENCODER, head=TanhNormalHead(2, initial_scale=0.3))
    _, distribution = policy.apply(jax.jit(policy.init)(KEY), (), PolicyInput(observation=OBSERVATION, first=FIRST))
    assert isinstance(distribution, TanhNormal) and (distribution.low, distribution.high) == (-3.0, 1.0)
    assert distribution.loc.shape == (T, B, 2)
    np.testing.assert_allclose(distribution.scale, 0.3, rtol=1e-5)
    default = make_policy(SPACE, Box((2,), -3.0, 1.0), encoder=ENCODER)
    _, distribution = default.apply(jax.jit(default.init)(KEY), (), PolicyInput(observation=OBSERVATION, first=FIRST))
    np.testing.assert_allclose(distribution.scale, 1.0, rtol=1e-5)


@pytest.mark.parametrize("space", [Box((2,)), Box((2,), -1.0), Box((2, 2), -1.0, 1.0), Box((), -1.0, 1.0)])
@pytest.mark.parametrize("make", [make_policy, make_actor_critic])
def test_refuses_actions_that_no_distribution_covers(make, space):
    with pytest.raises(ValueError, match="`action_space` must be Discrete or a bounded Box of rank 1, got Box"):
        make(SPACE, space, encoder=ENCODER)
    with pytest.raises(ValueError, match="flatten or clip"):
        make(SPACE, space, encoder=ENCODER, head=TanhNormalHead(2))


def test_actions_of_several_parts_and_bins_of_continuous_ones():
    inputs = PolicyInput(observation=jnp.ones((4, 3, 2)), first=jnp.zeros((4, 3), bool))
    for space, num_bins, dtype in ((Discrete(5, (2,)), None, jnp.int32), (Box((2,), -3.0, 3.0), 5, jnp.float32)):
        policy = make_policy(Box((2,)), space, encoder=MLP((8,)), num_bins=num_bins)
        _, distribution = policy.apply(policy.init(KEY), (), inputs)
        action = distribution.sample(KEY)
        assert (action.shape, action.dtype) == ((4, 3, 2), dtype)
        # Nearly uniform at the start: two parts of five values.
        np.testing.assert_allclose(distribution.log_prob(action), np.full((4, 3), -2 * np.log(5)), atol=0.1)
    with pytest.raises(ValueError, match="`num_bins` must be at least 2, of a bounded Box, got 5 of Discrete"):
        make_policy(Box((2,)), Discrete(5), encoder=MLP((8,)), num_bins=5)


def test_action_mask_reaches_the_distribution():
    made = make_actor_critic(SPACE, ACTIONS, encoder=ENCODER)
    mask = jnp.ones((T, B, 4), bool).at[..., 1].set(False)
    _, free, _ = made.apply(random_params(made), ((), ()), PolicyInput(observation=OBSERVATION, first=FIRST))
    _, masked, _ = made.apply(
        random_params(made), ((), ()), PolicyInput(observation=OBSERVATION, first=FIRST, action_mask=mask)
    )
    np.testing.assert_array_equal(masked.logits[..., [0, 2, 3]], free.logits[..., [0, 2, 3]])
    np.testing.assert_array_equal(jnp.exp(masked.log_probs())[..., 1], 0.0)


def test_parameters_and_carry_of_shared_and_separate_torsos():
    for shared in (True, False):
        made = make_actor_critic(SPACE, ACTIONS, encoder=ENCODER, memory=MEMORIES["gru"], shared=shared)
        params = jax.eval_shape(made.init, KEY)
        assert set(params) == {"actor", "critic"} and set(params["actor"]) == {"torso", "head"}
        assert set(params["critic"]) == ({"head"} if shared else {"torso", "head"})
        actor_carry, critic_carry = made.initial_carry((B,))
        assert actor_carry.shape == (B, 6)
        assert critic_carry == () if shared else critic_carry.shape == (B, 6)


def test_separate_torsos_start_apart():
    params = jax.jit(make_actor_critic(SPACE, ACTIONS, encoder=ENCODER).init)(KEY)
    kernels = [params[part]["torso"]["encoder"]["params"]["Dense_0"]["kernel"] for part in ("actor", "critic")]
    assert not np.allclose(*kernels)


@pytest.mark.parametrize("shared", [True, False])
def test_value_moves_a_shared_torso_only(shared):
    made = make_actor_critic(SPACE, ACTIONS, encoder=ENCODER, shared=shared)

    def outputs(params):
        _, distribution, value = made.apply(params, ((), ()), PolicyInput(observation=OBSERVATION, first=FIRST))
        return value.sum(), distribution.log_prob(jnp.ones((T, B), int)).sum()

    of_value, of_log_prob = jax.jit(jax.jacrev(outputs))(random_params(made))
    norms = lambda tree: [optax.global_norm(part) for part in (*tree["actor"].values(), tree["critic"])]  # noqa: E731
    head, torso, critic = norms(of_value)
    assert (torso > 0.0) == shared and head == 0.0 and critic > 0.0
    head, torso, critic = norms(of_log_prob)
    assert head > 0.0 and torso > 0.0 and critic == 0.0


def test_a_sequence_is_its_steps(case):
    # Not zero, so that a step that must not see it would show.
    start = jax.tree.map(lambda leaf: leaf + 0.7, case.made.initial_carry((B,)))
    first = FIRST.at[0, 0].set(False)
    final, distribution, value = case.apply(case.params, start, PolicyInput(observation=OBSERVATION, first=first))
    assert value.shape == (T, B)

    @jax.jit
    def step(carry, observation, first):
        _, _, value = case.made.apply(case.params, carry, PolicyInput(observation=observation[None], first=first[None]))
        return *act(as_policy(case.made), case.params, carry, PolicyInput(observation=observation, first=first)), value[
            0
        ]

    carry = start
    for t in range(T):
        carry, one, one_value = step(carry, OBSERVATION[t], first[t])
        np.testing.assert_allclose(one_value, value[t], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(one.log_probs(), distribution.log_probs()[t], atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), carry, final)


def test_memory_reaches_back_to_the_first_step_of_the_episode(case):
    carry = case.made.initial_carry((B,))
    *_, value = case.apply(case.params, carry, PolicyInput(observation=OBSERVATION, first=FIRST))

    def changes_the_last_value(t):
        *_, changed = case.apply(case.params, carry, PolicyInput(observation=OBSERVATION.at[t].add(1.0), first=FIRST))
        return (np.abs(changed[-1] - value[-1]) > 1e-6).tolist()

    remembers = bool(jax.tree.leaves(carry))
    # The second environment starts a new episode at step 3.
    expected = [[remembers, False]] * 3 + [[remembers, remembers], [True, True]]
    assert [changes_the_last_value(t) for t in range(T)] == expected


def test_agents_are_a_further_axis(case):
    agents = jnp.stack([OBSERVATION, -OBSERVATION, 2.0 * OBSERVATION], axis=2)  # [T, B, N, 3]
    _, distribution, value = case.apply(
        case.params, case.made.initial_carry((B, 3)), PolicyInput(observation=agents, first=FIRST)
    )
    _, alone, alone_value = case.apply(
        case.params, case.made.initial_carry((B,)), PolicyInput(observation=-OBSERVATION, first=FIRST)
    )
    assert value.shape == (T, B, 3)
    np.testing.assert_allclose(value[:, :, 1], alone_value, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(distribution.logits[:, :, 1], alone.logits, rtol=1e-4, atol=1e-5)


class _Joined(nn.Module):
    @nn.compact
    def __call__(self, observation):
        return nn.Dense(8)(jnp.concatenate([observation["a"], observation["b"].astype(jnp.float32)], axis=-1))


def test_observations_may_be_pytrees_and_integers():
    space = {"a": Box((3,)), "b": Box((1,), dtype=np.int32)}
    made = make_actor_critic(space, ACTIONS, encoder=_Joined(), shared=True)
    observation = {"a": OBSERVATION[0], "b": jnp.ones((B, 1), jnp.int32)}
    _, distribution = act(
        as_policy(made), random_params(made), ((), ()), PolicyInput(observation=observation, first=FIRST[0])
    )
    assert distribution.logits.shape == (B, 4)


def test_batches_are_maps_over_environments():
    made = make_actor_critic(SPACE, ACTIONS, encoder=ENCODER)

    def apply(observation, first):
        return made.apply(random_params(made), ((), ()), PolicyInput(observation=observation, first=first))[1:]

    expected = apply(OBSERVATION, FIRST)
    mapped = jax.vmap(lambda observation, first: apply(observation[:, None], first[:, None]), 1, 1)(OBSERVATION, FIRST)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[:, :, 0], b, rtol=1e-4, atol=1e-5), mapped, expected)
