"""A learner of an adapter per seat: each learns from what its own seat said, and the frozen parameters stay."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments.text.kuhn import make_environment
from jaxagents.language.dialogue import make_dialogue
from jaxagents.learners import adapted, policy_gradient, seats
from jaxagents.losses.aggregation import token_mean
from jaxagents.losses.token_policy_gradient import ppo_clip
from jaxagents.networks.adapters import lora
from jaxagents.ops.credit import rloo
from jaxagents.types import Collector

KEY = jax.random.key(2)
ADAPTER = lora(rank=2)
NO_COLLECTOR = Collector(init=None, collect=None, steps_per_collect=1, divided_option="num_rows")
INNER = partial(policy_gradient.make_agent, advantage=rloo, loss=ppo_clip, aggregation=token_mean, reference=True)


@pytest.fixture(scope="module")
def environment():
    return make_environment(illegal="no_op", max_steps=3)  # Asked again after garbage.


@pytest.fixture(scope="module")
def make(environment, speak):
    """Returns `(make_agent, optimizer=SGD, **options) -> agent` of this game."""

    def of(make_agent, optimizer=lambda num_updates: optax.sgd(1.0), **options):
        policy = partial(speak, context_turns=1, prompt=False)
        return make_agent(environment, inner=INNER, adapter=ADAPTER, policy=policy, optimizer=optimizer, **options)

    return of


@pytest.fixture(scope="module")
def params(make, params_of):
    """Returns parameters of one adapter that changes something."""
    base = params_of(make(adapted.make_agent).policy)["base"]
    own = jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(KEY, leaf.shape), ADAPTER.init(KEY, base))
    return {"base": base, "adapter": own}


def shared(params):
    return {"base": params["base"], "adapter": {"seat_0": params["adapter"], "seat_1": params["adapter"]}}


@pytest.fixture(scope="module")
def play(environment):
    """Returns `(agent, params) -> episodes`: seat 0 talks in all games, seat 1 after a forced pass in one of two."""
    word = environment.text.words.index("pass")
    script = jnp.full((4, 1, environment.action_space.shape[0]), -1).at[::2, 0, 0].set(word)

    def play(agent, params):
        episode = jax.jit(make_dialogue(environment, agent.policy, group_size=2))(
            params, KEY, jnp.arange(4), script=script
        )
        return episode.replace(reward=jnp.where(episode.valid, jnp.arange(8.0)[:, None] % 3.0, 0.0))

    return play


def assert_same(tree, other):
    jax.tree.map(np.testing.assert_array_equal, tree, other)


@pytest.mark.exhaustive
def test_equal_adapters_are_one_adapter_and_share_its_first_step(make, params, play):
    one, several = make(adapted.make_agent), make(seats.make_agent)
    episode, others = play(one, params), play(several, shared(params))
    np.testing.assert_array_equal(episode.tokens, others.tokens)
    np.testing.assert_allclose(episode.behavior_log_prob, others.behavior_log_prob, atol=1e-5)
    steps = []
    for agent, start in ((one, params), (several, shared(params))):
        learner = agent.make_learner(NO_COLLECTOR, 4)
        state = learner.init(KEY, start)
        after, metrics = jax.jit(learner.update)(state, KEY, episode)
        assert abs(metrics["approximate_kl"].total) < 1e-4  # The policy is the one that acted.
        assert_same(after.base, state.base)
        steps.append(jax.tree.map(jnp.subtract, after.params["adapter"], state.params["adapter"]))
    whole, parts = steps
    # The gradient of a parameter that all share is the sum of those of its copies.
    summed = jax.tree.map(jnp.add, parts["seat_0"], parts["seat_1"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), summed, whole)
    assert all(max(jnp.abs(x).max() for x in jax.tree.leaves(part)) > 1e-3 for part in parts.values())


@pytest.mark.slow
def test_a_seat_learns_from_its_own_words_only(make, params, play):
    agent = make(seats.make_agent, optimizer=lambda num_updates: optax.adam(1e-2))
    learner, params = agent.make_learner(NO_COLLECTOR, 4), shared(params)
    update, state = jax.jit(learner.update), learner.init(KEY, params)
    numbers = [jnp.size(leaf) for leaf in jax.tree.leaves(state.inner.opt_state)]
    assert sum(numbers) < 2.1 * sum(jnp.size(leaf) for leaf in jax.tree.leaves(params["adapter"]))
    episode = play(agent, params)
    only_first = episode.replace(action_mask=episode.action_mask & (episode.agent == 0))
    after, _ = update(state, KEY, only_first)
    assert_same(after.params["adapter"]["seat_1"], params["adapter"]["seat_1"])
    moved = jax.tree.map(lambda a, b: np.any(a != b), after.params["adapter"]["seat_0"], params["adapter"]["seat_0"])
    assert all(jax.tree.leaves(moved))
    assert_same(after.base, params["base"])
    assert_same(after.inner.reference, params["adapter"])  # The adapters as the stage started.
    # A stage that goes on keeps the moments, and its reference is where it starts.
    next_stage = learner.init(jax.random.key(9), after)
    assert_same(next_stage.inner.opt_state, after.inner.opt_state)
    assert_same(next_stage.inner.reference, after.params["adapter"])


def test_it_starts_from_one_adapter_or_none(make, params):
    learner = make(seats.make_agent).make_learner(NO_COLLECTOR, 4)
    assert_same(learner.init(KEY, params).params, shared(params))
    assert_same(learner.init(KEY, shared(params)).params, shared(params))
    plain = learner.init(KEY, params["base"]).params
    assert_same(plain["base"], params["base"])
    assert list(plain["adapter"]) == ["seat_0", "seat_1"]
    path = next(iter(params["adapter"]))
    a, b = (plain["adapter"][name][path] for name in ("seat_0", "seat_1"))
    assert np.any(a["a"] != b["a"]) and not np.any(a["b"]) and not np.any(b["b"])
    three = {"base": params["base"], "adapter": dict.fromkeys(("seat_0", "seat_1", "seat_2"), params["adapter"])}
    with pytest.raises(ValueError, match="must have adapters of seat_0, seat_1, got those of seat_0, seat_1, seat_2"):
        learner.init(KEY, three)


def test_adapters_of_single_seats(make):
    other = lora(rank=3, pattern="qkv/kernel$")
    own = make(seats.make_agent, adapters={"seat_1": other}).policy.init(KEY)["adapter"]
    assert len(own["seat_1"]) == 1 < len(own["seat_0"])
    with pytest.raises(ValueError, match="`adapters` must be of seats of 'kuhn_poker', seat_0, seat_1, got seat_2"):
        make(seats.make_agent, adapters={"seat_2": other})


def test_worlds_of_one_seat_and_other_adapters_are_refused(lake, make, speak):
    settings = {"inner": INNER, "policy": speak, "optimizer": optax.sgd}
    with pytest.raises(ValueError, match="must have several seats .* got one in 'frozenlake'; try learner=adapted"):
        seats.make_agent(lake, adapter=ADAPTER, **settings)
    with pytest.raises(ValueError, match="must be LoRA without magnitudes, got combined of seat_0; try adapter=lora"):
        seats.make_agent(make_environment(), adapter={"lora": ADAPTER}, **settings)
