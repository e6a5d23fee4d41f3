"""Games of several seats: payoffs and equilibria by hand or by trying everything, and moves that nobody sees early."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import bargaining, dilemmas, hanabi, meeting, notes
from jaxagents.environments.text.words import sentence

KEY = jax.random.key(0)
public_goods, commons = functools.cache(dilemmas.make_public_goods), functools.cache(dilemmas.make_commons)
LEVEL = {"level": jnp.int32(0)}
# Red 1, 2, 3 are cards 0, 1, 2, blue ones 3, 4, 5.
DECK = jnp.asarray([0, 1, 3, 4, 2, 5, 0, 3, 1, 4], jnp.int32)


def coins(*has, tenths):
    return {"has": jnp.asarray(has, jnp.int32), "tenths": jnp.int32(tenths), **LEVEL}


@pytest.mark.exhaustive
def test_public_goods_pay_what_is_kept_and_a_share_of_the_pot(hand):
    environment = public_goods(3, num_rounds=2)
    moves = ["give 4", "give 0", "give 2", "give 0", "give 0", "give 3"]
    texts, timesteps, _ = hand.play(environment, coins(4, 1, 3, tenths=15), moves)
    assert texts[:4] == [
        "player 0 has 4 pot times 1 5 tenths rounds 2",
        "player 1 has 1 pot times 1 5 tenths rounds 2",
        "player 2 has 3 pot times 1 5 tenths rounds 2",
        "player 0 has 4 pot times 1 5 tenths rounds 1 last 4 0 2",
    ]
    rewards = np.stack([t.reward for t in timesteps])
    np.testing.assert_allclose(rewards[3], [3, 4, 4])  # The pot of 6 becomes 9.
    np.testing.assert_allclose(rewards[6], [5.5, 2.5, 1.5])
    assert not rewards[[1, 2, 4, 5]].any() and bool(timesteps[6].terminated)
    assert float(timesteps[6].info["metrics"]["welfare"]) == pytest.approx(20.5 / 24)
    _, timesteps, _ = hand.play(environment, coins(4, 1, 3, tenths=15), ["give 5"])
    assert not bool(timesteps[1].info["valid"]) and int(timesteps[1].player) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("tenths", [16, 24])
def test_the_expert_plays_the_only_equilibrium_of_a_public_good(tenths):
    environment, task = public_goods(2, num_rounds=1), coins(3, 2, tenths=tenths)
    first, _ = environment.reset(KEY, task)

    def play(gave):
        state, timestep = first, None
        for seat in range(2):
            action = environment.text.rules.grammar.render(jnp.int32(0), gave[seat][None, None])
            state, timestep = environment.step(KEY, state, action)
        return timestep.reward

    profiles = jnp.stack(jnp.meshgrid(jnp.arange(4), jnp.arange(3), indexing="ij"), axis=-1)
    payoff = np.asarray(jax.jit(jax.vmap(jax.vmap(play)))(profiles))  # [4, 3, 2]
    best = (payoff[..., 0] == payoff[..., 0].max(axis=0)) & (payoff[..., 1] == payoff[..., 1].max(axis=1)[:, None])
    (equilibrium,) = np.argwhere(best)
    _, args, _ = environment.text.rules.expert(KEY, first.inner)
    np.testing.assert_array_equal(args[:, 0, 0], equilibrium)
    # 1.6 times is less than two seats: nobody gives, though all would be better off.
    assert equilibrium.tolist() == ([0, 0] if tenths == 16 else [3, 2])
    assert payoff[3, 2].sum() > payoff[0, 0].sum()


@pytest.mark.exhaustive
def test_what_is_left_of_a_commons_doubles(hand):
    task = {"stock": jnp.int32(8), "most": jnp.int32(5), **LEVEL}
    environment = commons(2, num_rounds=3, in_turn=True)
    moves = ["take 1", "take 1", "take 3", "take 4", "take 5", "take 4"]
    texts, timesteps, _ = hand.play(environment, task, moves)
    assert texts[1] == "player 1 stock 8 take up to 5 rounds 3 now 1"
    assert texts[2] == "player 0 stock 1 2 take up to 5 rounds 2 last 1 1"
    assert texts[4] == "player 0 stock 1 0 take up to 5 rounds 1 last 3 4"
    rewards = np.stack([t.reward for t in timesteps])
    np.testing.assert_array_equal(rewards[[2, 4, 6]], [[1, 1], [3, 4], [5, 4]])
    # Greed: 5 and 5 of 8 are 4 each, and nothing is left.
    _, timesteps, _ = hand.play(environment, task, ["take 5"] * 6)
    np.testing.assert_array_equal([t.reward.tolist() for t in timesteps[2::2]], [[4, 4], [0, 0], [0, 0]])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["public_goods", "meeting"])
def test_nobody_sees_a_move_before_all_have_moved(hand, name):
    if name == "meeting":
        environment, moves = meeting.make_environment(2), ("say park", "say cafe park")
        task = {"meet": jnp.int32(0), "others": jnp.asarray([1, 2], jnp.int32), **LEVEL}
    else:
        environment, moves, task = public_goods(3, num_rounds=2), ("give 4", "give 0"), coins(4, 1, 3, tenths=15)
    played = [hand.play(environment, task, [first])[1][1] for first in moves]
    np.testing.assert_array_equal(played[0].observation, played[1].observation)
    assert [int(t.player) for t in played] == [1, 1]


@pytest.mark.exhaustive
def test_who_meets_is_paid_and_messages_arrive(hand):
    environment = meeting.make_environment(3)
    task = {"meet": jnp.int32(2), "others": jnp.asarray([0, 1, 3], jnp.int32), **LEVEL}
    moves = ["say park beach", "say cafe beach", "say beach"]
    texts, timesteps, _ = hand.play(environment, task, [*moves, "go beach", "go beach", "go beach"])
    assert texts[0] == "player 0 open park beach" and texts[2] == "player 2 open beach tower"
    assert texts[4] == "player 1 open cafe beach heard park beach beach"
    np.testing.assert_array_equal(timesteps[-1].reward, [1, 1, 1])
    _, timesteps, _ = hand.play(environment, task, [*moves, "go beach", "go cafe", "go beach"])
    np.testing.assert_array_equal(timesteps[-1].reward, [0, 0, 0])
    assert bool(timesteps[-1].terminated)


@pytest.mark.exhaustive
@pytest.mark.parametrize("num_seats", [2, 3, 4])
def test_one_place_alone_is_open_to_all(hand, num_seats):
    tasks = hand.drawn_tasks(meeting.make_environment(num_seats, num_places=3 + num_seats % 3), 128, 0)
    for meet, others in zip(tasks["meet"], tasks["others"]):
        assert set.intersection(*({int(meet), int(other)} for other in others)) == {int(meet)}
        assert int(meet) not in others.tolist()


def test_every_choice_of_places_is_as_likely():
    sample = jax.jit(jax.vmap(meeting.make_environment(2).text.rules.sample, in_axes=(0, None)))
    tasks = jax.device_get(sample(jax.random.split(KEY, 2048), jnp.int32(0)))  # Before tasks are held out.
    first, second = ((tasks["others"] - tasks["meet"][:, None]) % 6).T
    found = np.zeros((6, 6))
    np.add.at(found, (first, second), 1 / 2048)
    # 20 pairs, each within five standard errors.
    np.testing.assert_allclose(found[1:, 1:][~np.eye(5, dtype=bool)], 1 / 20, atol=0.024)


def best_of_bargain(pie, less, offers, refused=0):
    """What both get if each does what is best for itself: all offers tried, the later ones first."""
    if refused == offers:
        return 0, 0
    here = max(pie - refused * less, 0)
    later, waits = best_of_bargain(pie, less, offers, refused + 1)  # Of who offers next, and of the other one.
    outcomes = [(keep, here - keep) if here - keep >= later else (waits, later) for keep in range(here + 1)]
    return max(outcomes)


def test_the_worth_of_an_offer_is_that_of_the_equilibrium():
    for pie, less, offers in ((9, 3, 3), (9, 1, 4), (4, 3, 4), (7, 2, 1), (5, 2, 2)):
        task = {"pie": pie, "less": less, "offers": offers}
        assert int(bargaining.worth(task, jnp.int32(0), 4)) == best_of_bargain(pie, less, offers)[0]
    # 3 is left for the last offer, 3 of 6 before, 6 of 9 at first.
    assert best_of_bargain(9, 3, 3) == (6, 3)


@pytest.mark.slow
def test_a_bargain_in_words(hand):
    environment = bargaining.make_environment()
    task = {"pie": jnp.int32(9), "less": jnp.int32(3), "offers": jnp.int32(3), **LEVEL}
    texts, timesteps, state = hand.play(environment, task, ["keep 8", "refuse", "keep 3", "accept"])
    assert texts == [
        "pie 9 less 3 offers 3",
        "pie 9 less 3 offers 3 they keep 8",
        "pie 6 less 3 offers 2",
        "pie 6 less 3 offers 2 they keep 3",
        "pie 6 less 3 offers 2 they keep 3",
    ]
    assert [int(t.player) for t in timesteps[:4]] == [0, 1, 1, 0]
    np.testing.assert_allclose(timesteps[-1].reward, [3 / 9, 3 / 9])
    _, timesteps, _ = hand.play(environment, task, ["keep 9", "refuse", "keep 6", "refuse", "keep 3", "refuse"])
    np.testing.assert_array_equal(timesteps[-1].reward, [0, 0])
    assert bool(timesteps[-1].terminated) and not bool(timesteps[-2].terminated)
    _, _, state = hand.play(environment, task, [])
    assert sentence(environment.text.words, environment.text.expert(KEY, state)[0]) == "keep 6"


@pytest.mark.exhaustive
def test_hanabi_can_be_won_and_lost(hand):
    environment = hanabi.make_environment()
    texts, timesteps, _ = hand.play(environment, {"deck": DECK, **LEVEL}, ["play 1"] * 6)
    assert texts[0] == "hints 3 lives 2 deck 6 table red 0 blue 0 they blue 1 blue 2 you ? ? ? ?"
    assert texts[1] == "hints 3 lives 2 deck 5 table red 1 blue 0 they red 2 red 3 you ? ? ? ?"
    np.testing.assert_allclose([t.reward.tolist() for t in timesteps[1:]], np.full((6, 2), 1 / 6), rtol=1e-5)
    assert bool(timesteps[-1].terminated) and float(timesteps[-1].info["metrics"]["score"]) == 6
    _, timesteps, _ = hand.play(environment, {"deck": DECK, **LEVEL}, ["play 2", "play 2"])  # Twos come second.
    assert bool(timesteps[-1].terminated) and float(timesteps[-1].info["metrics"]["lives"]) == 0


@pytest.mark.exhaustive
def test_hints_are_spent_and_come_back_and_the_deck_ends_the_game(hand):
    environment = hanabi.make_environment()
    moves = ["tell blue", "tell 2", "discard 2", "tell red", "tell 1"]
    texts, timesteps, _ = hand.play(environment, {"deck": DECK, **LEVEL}, moves)
    assert texts[1].endswith("you blue ? blue ?") and texts[2].endswith("you ? ? ? 2")
    assert texts[2].startswith("hints 1 lives 2 deck 6") and texts[3].startswith("hints 2 lives 2 deck 5")
    assert texts[3].endswith("they red 1 red 3 you blue ? blue ?")
    assert texts[4].endswith("you red ? red ?") and texts[5].startswith("hints 0")
    assert [bool(one) for one in timesteps[5].action_mask] == [True] * 4 + [False] * 5
    moves = ["tell blue", "tell 2", "tell 3", "tell 3", "tell 1", "tell 1", "tell 2"]
    moves = [action for hint in moves for action in (hint, "discard 1")]
    _, timesteps, _ = hand.play(environment, {"deck": DECK, **LEVEL}, moves)
    # Six cards, and a turn each after the last.
    assert [bool(t.terminated) for t in timesteps] == [False] * 14 + [True]


def test_nothing_is_discarded_at_full_hints_and_a_whole_colour_brings_one_back(hand):
    environment = hanabi.make_environment()
    moves = ["tell blue", *["play 1"] * 5]  # Blue 1, red 1, blue 2, red 2, red 3.
    texts, timesteps, _ = hand.play(environment, {"deck": DECK, **LEVEL}, moves)
    masks = np.stack([t.action_mask for t in timesteps])
    assert masks[0].tolist() == [True, True, False, False, False, True, True, True, False]
    assert masks[1, :4].all() and texts[5].startswith("hints 2 lives 2 deck 2 table red 2")
    assert texts[6].startswith("hints 3 lives 2 deck 1 table red 3") and not masks[6, 2:4].any()


@pytest.mark.parametrize(
    "make",
    [
        lambda: dilemmas.make_public_goods(6),
        lambda: dilemmas.make_commons(num_rounds=0),
        lambda: meeting.make_environment(num_places=2),
        lambda: bargaining.make_environment(max_offers=0),
    ],
)
def test_wrong_options_are_refused(make):
    with pytest.raises(ValueError, match="`(num_seats|max_offers)` must be"):
        make()


def test_a_hint_says_what_a_commons_bears(hand):
    """Of 9, four are there again in the next round: two for each. Who takes five leaves eight, which bear the same."""
    write = functools.partial(notes.with_notes, write=dilemmas.sustainable_share, cue="if all take more than")
    environment = dilemmas.make_commons(2, num_rounds=2, wrappers={"hint": write})
    task = {"stock": jnp.int32(9), "most": jnp.int32(4), **LEVEL}
    texts, _, _ = hand.play(environment, task, ["take 4", "take 1", "take 0"])
    assert texts[0].startswith("if all take more than 2 it will be empty . player 0 stock")
    assert texts[2].startswith("if all take more than 2 it will be empty . player 0 stock")
    texts, _, _ = hand.play(environment, task, ["take 4", "take 4", "take 0"])
    assert texts[2].startswith("if all take more than 0 it will be empty . player 0 stock")
