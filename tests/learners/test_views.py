"""What the slots of the policy gradient are shown: what they read is computed, all of them may remember."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments.text import kuhn
from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.learners.liveness import fields_read
from jaxagents.learners.policy_gradient import make_agent, make_policy_gradient
from jaxagents.learners.token_losses import make_token_view
from jaxagents.losses import aggregation
from jaxagents.losses.regularizers import entropy_bonus
from jaxagents.losses.token_policy_gradient import decoupled_clip, gspo, plain, ppo_clip
from jaxagents.ops import credit, group_filters
from jaxagents.policies.contexts import score_tokens, to_rows
from jaxagents.types import EpisodeView, Stateful, TokenStatistics

KEY = jax.random.key(3)
SLOTS = {"advantage": credit.rloo, "loss": plain, "aggregation": aggregation.token_mean}


@pytest.fixture(scope="module")
def played(lake, speak, params_of):
    """Returns a policy whose turns are rows of their own, parameters and episodes in which rewards differ."""
    policy = speak(lake, value_head=True, context_turns=1, prompt=False)
    params = params_of(policy)
    episode = jax.jit(make_dialogue(lake, policy, group_size=4))(params, KEY, jnp.arange(2))
    return policy, params, episode.replace(reward=jnp.where(episode.valid, jnp.arange(8.0)[:, None] % 3.0, 0.0))


def learner_of(policy, rate=1.0, **options):
    return make_policy_gradient(policy.model, policy.layout, optax.sgd(rate), **SLOTS | options)


def step(played, **options):
    """Returns the change of the parameters in one update, the state after it, and metrics."""
    policy, params, episode = played
    learner = learner_of(policy, **options)
    state, metrics = jax.jit(learner.update)(learner.init(KEY, params), KEY, episode)
    return jax.tree.map(lambda old, new: np.asarray(old - new), params, state.params), state, metrics


def assert_close(got, expected, tolerance=1e-4):
    def compare(a, b):
        np.testing.assert_allclose(a, b, atol=tolerance * max(np.abs(np.asarray(b)).max(), 1e-6))

    jax.tree.map(compare, got, expected)


def vocabulary_shapes(jaxpr, size):
    """Returns the shapes of all arrays of a program whose last axis is the vocabulary."""
    shapes = set()
    for equation in jaxpr.eqns:
        shapes |= {var.aval.shape for var in equation.outvars if var.aval.shape[-1:] == (size,)}
        for parameter in equation.params.values():
            if hasattr(parameter, "jaxpr"):
                shapes |= vocabulary_shapes(parameter.jaxpr, size)
    return shapes


@pytest.mark.exhaustive
def test_values_and_nothing_cost_no_logits(played):
    policy, params, episode = played
    size = policy.model.vocab_size

    def shapes(fields):
        score = partial(score_tokens, policy.model, rows=to_rows(episode), layout=policy.layout, fields=fields)
        return vocabulary_shapes(jax.make_jaxpr(score)(params).jaxpr, size)

    assert shapes(("log_prob",)) and not shapes(("value",))
    one, both = (
        jax.make_jaxpr(partial(score_tokens, policy.model, rows=to_rows(episode), layout=policy.layout, fields=fields))(
            params
        )
        for fields in (("log_prob",), ("log_prob", "entropy"))
    )
    assert len(one.eqns) < len(both.eqns)


@pytest.mark.parametrize(("advantage", "passes"), [(credit.rloo, 0), (credit.gae_turn, 1)])
def test_values_are_computed_for_those_who_read_them(played, advantage, passes):
    policy, params, episode = played
    calls = []

    def value(params, hidden):
        calls.append(hidden.shape)
        return policy.model.value(params, hidden)

    counting = policy._replace(model=policy.model._replace(value=value))
    jax.eval_shape(
        learner_of(counting, advantage=advantage, num_epochs=2).update,
        learner_of(policy).init(KEY, params),
        KEY,
        episode,
    )
    # The value pass, and the loss where there are targets; microbatches are traced for their shapes, too.
    assert len(calls) == 4 * passes


def test_fields_that_are_read_are_found():
    every = TokenStatistics(*(jax.ShapeDtypeStruct((2,), jnp.float32) for _ in range(3)))
    read = fields_read(lambda policy, reference: jnp.where(True, policy.value, 0.0) - reference.log_prob, every, every)
    assert read == ({"value"}, {"log_prob"})
    assert fields_read(lambda policy, reference: policy.entropy, every, None) == ({"entropy"}, frozenset())


@pytest.mark.exhaustive
def test_rewards_may_read_the_policy_and_the_reference(played):
    policy, params, episode = played

    def divergence(view, *, axis_name, coefficient):
        log_ratio = jnp.where(view.episode.action_mask, view.policy.log_prob - view.reference.log_prob, 0.0)
        return view.episode.reward - coefficient * jnp.sum(log_ratio, axis=2)

    learner = learner_of(policy, rewards={"kl": partial(divergence, coefficient=0.5)}, reference=True)
    other = jax.tree.map(lambda leaf: 0.9 * leaf, params)
    state = learner.init(KEY, params).replace(reference=other)
    _, metrics = jax.jit(learner.update)(state, KEY, episode)
    shifted = score_tokens(policy.model, other, to_rows(episode), policy.layout).log_prob.reshape(episode.tokens.shape)
    log_ratio = jnp.where(episode.action_mask, episode.behavior_log_prob - shifted, 0.0)
    by_hand = episode.replace(reward=episode.reward - 0.5 * jnp.sum(log_ratio, axis=2))
    expected = credit.rloo(EpisodeView(episode=by_hand)).advantage
    np.testing.assert_allclose(
        metrics["advantage_magnitude"].value, np.abs(expected).sum() / episode.action_mask.sum(), rtol=1e-3
    )


def counting(function):
    """Returns a slot that remembers how often it was called, and does what the function does."""
    return Stateful(
        init=lambda num_updates: jnp.zeros(()),
        apply=lambda memory, *arguments, **options: (function(*arguments, **options), jnp.float32(1.0)),
        update=lambda memory, calls: memory + calls,
    )


@pytest.mark.slow
def test_every_slot_may_remember(played):
    options = {
        "advantage": counting(credit.rloo),
        "aggregation": counting(aggregation.token_mean),
        "loss": counting(lambda view: plain(view)),
        "group_filter": counting(group_filters.informative_groups),
        "rewards": {"same": counting(lambda view, axis_name: view.episode.reward)},
        "credits": {"same": counting(lambda view, advantage, axis_name: advantage)},
        "regularizers": {"none": counting(lambda view: 0.0 * view.log_prob)},
    }
    change, state, _ = step(played, num_epochs=2, rate=1e-3, **options)
    expected, *_ = step(played, num_epochs=2, rate=1e-3, group_filter=group_filters.informative_groups)
    assert_close(change, expected)
    once = {"advantage": 1, "group_filter": 1, "reward/same": 1, "credit/same": 1, "aggregation": 2}
    # One microbatch of every epoch.
    assert {name: float(count) for name, count in state.settings.memory.items()} == once | {
        "loss": 2,
        "regularizer/none": 2,
    }


@pytest.mark.exhaustive
def test_credit_is_shaped_after_it_was_estimated(played):
    policy, params, episode = played
    half, *_ = step(played, credits={"half": lambda view, advantage, axis_name: 0.5 * advantage})
    whole, *_ = step(played)
    assert_close(half, jax.tree.map(lambda leaf: 0.5 * leaf, whole))
    both = {
        "bound": lambda view, advantage, axis_name: jnp.minimum(advantage, 0.25),
        "good": lambda view, advantage, axis_name: jnp.maximum(advantage, 0.0),
    }
    _, _, metrics = step(played, credits=both)
    advantage = np.clip(credit.rloo(EpisodeView(episode=episode)).advantage, 0.0, 0.25)
    np.testing.assert_allclose(
        metrics["advantage_magnitude"].value, advantage.sum() / np.sum(episode.action_mask), rtol=1e-5
    )


@pytest.mark.exhaustive
def test_sequence_ratios_are_of_whole_episodes_although_turns_are_rows(played):
    policy, params, episode = played
    noise = 0.1 * jnp.asarray(np.random.default_rng(0).normal(size=episode.tokens.shape), jnp.float32)
    older = episode.replace(behavior_log_prob=jnp.where(episode.action_mask, episode.behavior_log_prob - noise, 0.0))
    wide = partial(gspo, clip_epsilon_low=0.9, clip_epsilon_high=9.0)
    got, *_ = step((policy, params, older), loss=wide)
    # The gradient of s A is s A grad log_prob, s of all turns of the episode.
    count = jnp.sum(episode.action_mask, axis=(1, 2))
    ratio = jnp.exp(jnp.sum(jnp.where(episode.action_mask, noise, 0.0), axis=(1, 2)) / count)

    def weighted(view, *, axis_name=None):
        plain_credit = credit.rloo(view)
        return plain_credit.replace(advantage=plain_credit.advantage * ratio[:, None, None])

    expected, *_ = step(played, advantage=weighted)
    assert np.ptp(ratio) > 0.02
    assert_close(got, expected)


@pytest.mark.exhaustive
def test_the_entropy_is_that_of_a_token_whatever_the_aggregation(played):
    policy, params, episode = played
    entropy = score_tokens(policy.model, params, to_rows(episode), policy.layout).entropy.reshape(episode.tokens.shape)
    expected = np.asarray(entropy)[np.asarray(episode.action_mask)].mean()
    for aggregate in (aggregation.token_mean, aggregation.sequence_mean, aggregation.constant):
        _, _, metrics = step(played, aggregation=aggregate)
        np.testing.assert_allclose(metrics["entropy"].value, expected, rtol=1e-5)


@pytest.mark.exhaustive
def test_regularizers_in_units_of_the_advantage_are_as_strong_under_any_credit(played):
    policy, params, episode = played
    options = {"regularizers": {"bonus": partial(entropy_bonus, coefficient=0.1)}, "regularizer_units": "advantage"}
    one, _, metrics = step(played, **options)
    ten, _, larger = step((policy, params, episode.replace(reward=10.0 * episode.reward)), **options)
    assert_close(ten, jax.tree.map(lambda leaf: 10.0 * leaf, one))
    np.testing.assert_allclose(larger["bonus"], 10.0 * metrics["bonus"], rtol=1e-5)
    _, _, plainly = step(played, regularizers=options["regularizers"])
    unit = metrics["advantage_magnitude"].value
    np.testing.assert_allclose(metrics["bonus"], unit * plainly["bonus"], rtol=1e-5)
    # A batch in which all fared alike says nothing of the scale, and regularisers hold as they did.
    learner = learner_of(policy, 0.0, **options)
    update, state = jax.jit(learner.update), learner.init(KEY, params)
    state, known = update(state, KEY, episode)
    state, alike = update(state, KEY, episode.replace(reward=0.0 * episode.reward))
    assert float(alike["advantage_magnitude"].value) == 0.0
    np.testing.assert_allclose(alike["bonus"], known["bonus"], rtol=1e-5)
    with pytest.raises(ValueError, match="`regularizer_units` must be loss or advantage, got 'reward'"):
        learner_of(policy, regularizer_units="reward")


def test_widths_of_trust_intervals_are_positive(played):
    with pytest.raises(ValueError, match="`loss.clip_epsilon_high` must be positive, got -0.1"):
        learner_of(played[0], loss=partial(decoupled_clip, clip_epsilon_high=-0.1))


@pytest.mark.exhaustive
def test_the_value_loss_is_logged_without_its_coefficient(played):
    losses = [
        step(played, advantage=credit.gae_turn, value_coefficient=coefficient)[2]["value_loss"]
        for coefficient in (0.5, 2.0)
    ]
    assert float(losses[0]) > 0.0
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


@pytest.mark.exhaustive
def test_tempered_samples_are_on_policy_for_a_learner_of_their_temperature(lake, speak, params_of):
    policy = speak(lake, context_turns=1, prompt=False)
    params = params_of(policy)
    episode = jax.jit(make_dialogue(lake, policy, group_size=4, sampling=Sampling(temperature=0.5)))(
        params, KEY, jnp.arange(2)
    )
    tempered = (policy, params, episode.replace(reward=jnp.where(episode.valid, jnp.arange(8.0)[:, None] % 3.0, 0.0)))
    clip = {"loss": partial(ppo_clip, clip_epsilon=0.01)}
    _, _, metrics = step(tempered, temperature=0.5, **clip)
    assert abs(float(metrics["approximate_kl"].value)) < 1e-6
    change, *_ = step(tempered, temperature=0.5, **clip)
    assert_close(change, step(tempered, temperature=0.5)[0])


def test_learners_that_do_not_know_the_temperature_of_their_samples_warn(lake, speak):
    agent = partial(make_agent, lake, policy=speak, optimizer=lambda steps: optax.sgd(0.1), **SLOTS)
    policy = agent().policy
    cold = make_dialogue_collector(lake, policy, num_groups=1, group_size=2, temperature=0.5)
    with pytest.warns(UserWarning, match="never on-policy. Set `learner.temperature` .* or `learner.importance_cap`"):
        agent().make_learner(cold, 1)
    agent(importance_cap=2.0).make_learner(cold, 1)
    agent(temperature=0.5).make_learner(cold, 1)
    with pytest.raises(ValueError, match="`learner.temperature` must be that of the collector, 0.5, got 0.7"):
        agent(temperature=0.7).make_learner(cold, 1)
    with pytest.raises(ValueError, match="`importance_cap` must be null where the policy is scored at a `temperature`"):
        agent(temperature=0.5, importance_cap=2.0).make_learner(cold, 1)


@pytest.mark.exhaustive
def test_groups_left_over_by_dynamic_sampling_count_nowhere(lake, speak, params_of):
    policy = speak(lake, context_turns=1, prompt=False)
    params = params_of(policy)

    def even_groups(view, *, axis_name=None):
        return view.episode.group % 4 == 0

    collector = make_dialogue_collector(
        lake, policy, num_groups=3, group_size=2, dynamic_sampling=even_groups, max_rounds=2
    )
    _, episode, _ = jax.jit(collector.collect)(collector.init(KEY, params), params, KEY)
    # Groups 0, 1, 2, then 3, 4, 5: of the first 0 stays, 4 comes, and one is left over.
    assert episode.group.tolist() == [0, 0, 4, 4, 2, 2]
    assert episode.keep.tolist() == [True] * 4 + [False] * 2
    weight = aggregation.token_mean(make_token_view(episode))
    np.testing.assert_allclose(jnp.sum(weight[:4]), 1.0, rtol=1e-6)


def test_losses_are_shown_which_episodes_are_demonstrations(played):
    """A loss that leaves demonstrations out learns from the others: what two halves teach adds up to the whole."""

    def of_own_tokens(view):
        return jnp.where(view.demonstrated, 0.0, plain(view))

    policy, params, episode = played
    learner = learner_of(policy, loss=of_own_tokens)
    update, state, shown = jax.jit(learner.update), learner.init(KEY, params), jnp.arange(len(episode.valid)) < 4

    def change(control):
        changed, _ = update(state, KEY, episode.replace(control=control))
        return jax.tree.map(lambda old, new: np.asarray(old - new), params, changed.params)

    whole, half, other = change(shown & False), change(shown), change(~shown)
    assert_close(jax.tree.map(np.add, half, other), whole)
    assert all(any(np.abs(leaf).max() > 1e-6 for leaf in jax.tree.leaves(part)) for part in (half, other))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(change(shown | True)))


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, pytest.param(2, marks=pytest.mark.exhaustive), 8])
def test_groups_are_replaced_over_all_devices(lake, speak, params_of, num_devices):
    policy = speak(lake, context_turns=1, prompt=False)

    def every_third(view, *, axis_name):
        return view.episode.group % 3 == 0

    collector = make_dialogue_collector(
        *(lake, policy),
        **{"num_groups": 8, "group_size": 2, "max_rounds": 4, "axis_name": "devices"},
        dynamic_sampling=every_third,
    )
    params = params_of(policy)
    state = jax.tree.map(lambda leaf: leaf.reshape(num_devices, -1, *leaf.shape[1:]), collector.init(KEY, params))
    mapped = jax.vmap(collector.collect, in_axes=(0, None, None), axis_name="devices")
    _, episode, metrics = jax.jit(mapped)(state, params, KEY)
    # Of the first eight 0, 3 and 6 stay; 9, 12 and 15 of the second round come, and 18 and 21 of the third.
    assert episode.group.reshape(8, 2).tolist() == [[group] * 2 for group in (0, 9, 12, 3, 15, 18, 6, 21)]
    assert episode.keep.all() and metrics["rounds"].tolist() == [3.0] * num_devices


@pytest.mark.exhaustive
def test_returns_of_self_play_are_of_a_seat(speak, params_of):
    game = kuhn.make_environment()
    policy = speak(game)
    collector = make_dialogue_collector(game, policy, num_groups=2, group_size=4)
    params = params_of(policy)
    _, episode, metrics = jax.jit(collector.collect)(collector.init(KEY, params), params, KEY)
    turns = np.asarray(episode.agent)[:, :, 0][np.asarray(episode.valid)]
    assert {0, 1} >= set(turns.tolist())
    seats = sum(len(set(row[valid].tolist())) for row, valid in zip(np.asarray(episode.agent)[:, :, 0], episode.valid))
    assert float(metrics["episode_return"].count) == seats
