"""The JaxMARL adapter: padding, masks, and what ends an episode."""

import jax
import jax.numpy as jnp
import pytest

from jaxagents.environments.adapters import jaxmarl
from jaxagents.environments.teams import team_view
from jaxagents.environments.wrappers import episode_statistics
from jaxagents.types import Box

KEY = jax.random.key(0)


def play(environment, actions):
    step = jax.jit(environment.step)
    state, timestep = jax.jit(lambda: environment.reset(KEY, environment.sample_task(KEY)))()
    timesteps = [timestep]
    for action in actions:
        state, timestep = step(KEY, state, action)
        timesteps.append(timestep)
    return timesteps


def test_particle_worlds_are_truncated_at_the_very_limit_with_everybody_alive():
    environment = jaxmarl.make_environment("MPE_simple_spread_v3", max_steps=2)
    timesteps = play(environment, [jnp.zeros(3, jnp.int32)] * 2)
    assert [bool(t.truncated) for t in timesteps] == [False, False, True]
    assert not bool(timesteps[-1].terminated) and bool(timesteps[-1].info["agent_mask"].all())
    assert timesteps[-1].reward.shape == (3,)


def test_shorter_observations_are_padded_with_zeros():
    environment = jaxmarl.make_environment("MPE_simple_tag_v3")
    assert environment.observation_space.shape == (16,) and environment.num_agents == 4
    # The last two numbers of a predator are the velocity of the prey, which the prey's own observation lacks.
    _, timestep = play(environment, [jnp.ones(4, jnp.int32)])
    assert not timestep.observation[3, 14:].any() and timestep.observation[:3, 14:].any(axis=1).all()


def test_opposed_teams_have_a_return_each():
    environment = jaxmarl.make_environment("MPE_simple_tag_v3")
    assert environment.teams == {"good_agents": (3,), "adversaries": (0, 1, 2)}
    assert jaxmarl.make_environment("MPE_simple_spread_v3").teams == {}
    first, *steps = play(episode_statistics(environment), [jnp.array([1, 2, 3, 4])] * 3)
    metrics, reward = steps[-1].info["metrics"], sum(step.reward for step in steps)
    assert sorted(metrics) == sorted(first.info["metrics"]) and len(metrics) == 6
    assert abs(float(metrics["episode_return_adversaries"]) - float(reward[:3].mean())) < 1e-4
    assert abs(float(metrics["episode_return_good_agents"]) - float(reward[3])) < 1e-4
    assert abs(float(metrics["episode_return_agent_1"]) - float(reward[1])) < 1e-4
    assert abs(float(steps[-1].info["episode_return"]) - float(reward.mean())) < 1e-4


def test_continuous_actions_are_stretched_to_the_bounds_of_every_number():
    """The first of three agents pushes with 0 to 0.5, the others with 0 to 1: all get there by -1 to 1."""
    box = pytest.importorskip("jaxmarl.environments.spaces").Box
    plain = {"action_type": "Continuous"}
    assert jaxmarl.make_environment("MPE_simple_spread_v3", **plain).action_space == Box((5,), 0.0, 1.0)
    spaces = {f"agent_{i}": box(0.0, 0.5 if i == 0 else 1.0, (5,)) for i in range(3)}
    environment = jaxmarl.make_environment("MPE_simple_spread_v3", action_spaces=spaces, **plain)
    assert environment.action_space == Box((5,), -1.0, 1.0)
    # The second number of an action pushes left, the first nowhere.
    still, moved = (
        play(environment, [jnp.full((3, 5), -1.0).at[:, 1].set(left)])[-1].observation[:, 0] for left in (-1.0, 1.0)
    )
    push = moved - still
    assert abs(float(push[0] / push[1]) - 0.5) < 1e-4 and abs(float(push[2] / push[1]) - 1.0) < 1e-4


def test_actions_that_an_agent_lacks_are_masked():
    environment = jaxmarl.make_environment("MPE_simple_speaker_listener_v4")
    (timestep,) = play(environment, [])
    assert timestep.action_mask.tolist() == [[True, True, True, False, False], [True] * 5]


@pytest.mark.slow
def test_the_state_of_the_world_is_what_a_team_sees():
    battle = jaxmarl.make_environment("HeuristicEnemySMAX", scenario="3m")
    team = team_view(battle)
    first = jax.eval_shape(lambda: team.reset(jax.random.key(0), team.sample_task(jax.random.key(0))))[1]
    own, state = (team.observation_space[name].shape[0] for name in ("own", "team"))
    assert own == battle.observation_space.shape[0] and state != 3 * own
    assert first.observation["team"].shape == (3, state) and "world_state" not in first.info


@pytest.mark.exhaustive
def test_a_battle_ends_by_termination_when_one_side_is_dead():
    environment = jaxmarl.make_environment("HeuristicEnemySMAX", scenario="3m")
    assert environment.name == "HeuristicEnemySMAX-3m"
    # Standing still loses against the scripted enemies.
    timesteps = play(environment, [jnp.full(3, 4)] * 60)
    end = next(i for i, timestep in enumerate(timesteps) if bool(timestep.terminated))
    assert not bool(timesteps[end].truncated) and not bool(timesteps[end].info["success"])
    assert not timesteps[end].info["agent_mask"].any() and timesteps[0].info["agent_mask"].all()
    # The dead may only do nothing.
    assert timesteps[end].action_mask[:, 4].all() and int(timesteps[end].action_mask.sum()) == 3


@pytest.mark.exhaustive
@pytest.mark.parametrize(("coefficient", "expected"), [(0.0, 0.0), (0.5, 1.5)])
def test_overcooked_is_truncated_and_pays_shaped_rewards_on_request(coefficient, expected):
    environment = jaxmarl.make_environment(
        "overcooked", layout="cramped_room", max_steps=5, shaped_reward_coefficient=coefficient
    )
    # The left cook takes an onion in the west, steps east below the pot and fills it, which the suite values at 3.
    left, interact, right, up, stay = 3, 5, 2, 0, 4
    timesteps = play(environment, [jnp.asarray([action, stay]) for action in (left, interact, right, up, interact)])
    assert [t.reward.tolist() for t in timesteps] == [[0.0, 0.0]] * 5 + [[expected, 0.0]]
    assert bool(timesteps[-1].truncated) and not bool(timesteps[-1].terminated)
    assert bool(timesteps[-1].info["agent_mask"].all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "HeuristicEnemySMAX", "scenario": "3marines"},
            "`name` must be an environment of SMAX, got '3marines'",
        ),
        ({"name": "overcooked", "layout": "cramped"}, "of Overcooked, got 'cramped'; try cramped_room"),
    ],
)
def test_refuses_unknown_maps(arguments, message):
    with pytest.raises(ValueError, match=message):
        jaxmarl.make_environment(**arguments)


def test_particle_worlds_and_battles_are_drawn():
    spread = jaxmarl.make_environment("MPE_simple_spread_v3")
    frame = spread.render(spread.reset(KEY, spread.sample_task(KEY))[0])
    assert {*"012"} <= {*frame} and 1 <= frame.count("o") <= 3
    battle = jaxmarl.make_environment("HeuristicEnemySMAX", scenario="3m")
    frame = battle.render(battle.reset(KEY, battle.sample_task(KEY))[0])
    assert 1 <= frame.count("A") <= 3 and 1 <= frame.count("E") <= 3 and "x" not in frame
    assert frame.splitlines()[-1] == "health of allies 135, of enemies 135"  # Three marines of 45 each.
