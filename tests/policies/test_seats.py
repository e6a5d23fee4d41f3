"""Every seat's words have the probability that they have under a model with the merged adapter of this seat alone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.bargaining import make_environment as make_bargaining
from jaxagents.environments.text.dilemmas import make_public_goods
from jaxagents.environments.text.kuhn import make_environment as make_kuhn
from jaxagents.environments.text.notes import with_names_of_seats
from jaxagents.language.dialogue import make_dialogue
from jaxagents.networks.adapters import full, ia3, lora
from jaxagents.policies.contexts import score_tokens, to_rows, unfold
from jaxagents.policies.seats import adapters_of_seats, find_seat, names_of_seats, with_adapters_of_seats

LORA = (lora(rank=2), lora(rank=3, alpha=5.0, pattern=r"(qkv|up)/kernel$"))
KEY = jax.random.key(3)
CONTEXTS = {"prompt": {}, "history": {"prompt": False}, "markov": {"context_turns": 1, "prompt": False}}


def adapters(num_seats):
    return dict(zip(names_of_seats(num_seats), (LORA * 2)[:num_seats], strict=True))


def trained(together, base, seed):
    """Returns adapters that change something, another thing in every seat."""
    own = together.init(jax.random.key(seed), base)
    leaves, tree = jax.tree.flatten(own)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    return tree.unflatten([leaf + 0.3 * jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)])


def log_probs(policy, params, episode):
    score = partial(score_tokens, policy.model, layout=policy.layout, fields=("log_prob",))
    return unfold(policy.layout, jax.jit(lambda params: score(params, to_rows(episode)).log_prob)(params))


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_seat_speaks_as_the_model_with_its_merged_adapter(speak, params_of, context):
    environment = make_kuhn(illegal="no_op", max_steps=4)  # Asked again after garbage.
    plain = speak(environment, **CONTEXTS[context])
    policy, together = with_adapters_of_seats(plain, environment), adapters_of_seats(adapters(2))
    base = params_of(plain)
    own = trained(together, base, 0)
    params = together.merge(base, own)
    # Seat 0 says something, which is garbage, then passes, and seat 1 says something twice.
    script = (
        jnp.full((4, 2, environment.action_space.shape[0]), -1).at[:, 1, 0].set(environment.text.words.index("pass"))
    )
    play = partial(make_dialogue(environment, policy, group_size=2), num_rows=3)
    episode = jax.jit(play)(params, KEY, jnp.arange(4), script=script)
    output = np.asarray(episode.action_mask)
    np.testing.assert_allclose(log_probs(policy, params, episode)[output], episode.behavior_log_prob[output], atol=1e-4)
    for number, (name, adapter) in enumerate(adapters(2).items()):
        alone = log_probs(plain, adapter.merge(base, own[name]), episode)
        by_seat = [output & np.asarray(episode.agent == seat) for seat in (number, 1 - number)]
        assert all(mask.sum() >= 8 for mask in by_seat)
        np.testing.assert_allclose(alone[by_seat[0]], episode.behavior_log_prob[by_seat[0]], atol=1e-4)
        assert np.abs(alone[by_seat[1]] - episode.behavior_log_prob[by_seat[1]]).max() > 0.1


@pytest.mark.slow
def test_what_is_no_turn_of_a_game_is_read_without_adapters(speak, params_of):
    environment = make_kuhn()
    plain = speak(environment)
    policy, together = with_adapters_of_seats(plain, environment), adapters_of_seats(adapters(2))
    base = params_of(plain)
    params = together.merge(base, trained(together, base, 0))
    for length in (5, plain.layout.prompt + plain.layout.turn):
        tokens = jax.random.randint(KEY, (1, length), 0, plain.model.vocab_size)
        options = {"positions": jnp.arange(length)[None], "mask": jnp.tril(jnp.ones((1, length, length), bool))}
        wanted = plain.model.apply(base, tokens, **options)
        np.testing.assert_allclose(policy.model.apply(params, tokens, **options), wanted, atol=1e-5)


def test_the_first_name_counts_and_the_longer_one():
    names = (((1, 2), (3,)), ((1, 2, 4),), ((5,),))
    rows = [[9, 1, 2, 5], [9, 1, 2, 4], [3, 5, 0, 0], [5, 3, 0, 0], [2, 1, 0, 1], [0, 0, 1, 2]]
    np.testing.assert_array_equal(find_seat(jnp.array(rows), names), [0, 1, 0, 2, -1, 0])


def test_names_of_one_word_and_of_two(speak):
    game = make_public_goods(num_seats=3)
    assert with_adapters_of_seats(speak(game, prompt=False), game).layout.prompt == 0
    silent = make_bargaining()
    with pytest.raises(ValueError, match="must say 'player 0' .* 'bargaining' does not; try .wrapper=seats"):
        with_adapters_of_seats(speak(silent), silent)
    named = make_bargaining(wrappers={"seats": with_names_of_seats})
    assert with_adapters_of_seats(speak(named), named)


def test_other_adapters_are_refused(speak):
    for adapter, kind in ((ia3(), "ia3"), (lora(magnitude=True), "DoRA"), (full(pattern="value"), "full")):
        with pytest.raises(
            ValueError, match=f"`adapters` must be LoRA without magnitudes, got .*{kind}.* of seat_1; try"
        ):
            adapters_of_seats({"seat_0": lora(), "seat_1": adapter})
    value = adapters_of_seats({"seat_0": lora(pattern="value_layer/.*kernel$")})
    base = speak(make_kuhn(), value_head=True).init(KEY)
    with pytest.raises(ValueError, match="must change projections of layers only, got params/value_layer"):
        value.init(KEY, base)
