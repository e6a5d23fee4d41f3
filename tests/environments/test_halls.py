import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from jaxagents.environments.contexts import limited
from jaxagents.environments.halls import draw_hall, make_environment
from jaxagents.environments.quest_expert import distance, find_ways
from tests import CONFIGS


def test_a_hall_by_hand():
    environment = make_environment()
    state, _ = environment.reset(jax.random.key(0), draw_hall(jnp.int32(3), jnp.int32(7), jnp.int32(2)))
    assert environment.render(state).splitlines() == [
        *["############"] * 2,
        "###.........",
        "###...#####.",
        "###@..#####G",
        *["############"] * 7,
    ]


def test_ways_are_as_long_as_they_were_drawn_and_one_in_six_layouts_is_locked():
    environment = make_environment(min_length=4, max_length=9)

    def look(key):
        task = environment.sample_task(key)
        state, _ = environment.reset(key, task)
        return task["key"][0] >= 0, jnp.sum(~task["walls"]), distance(find_ways(task), state.inner)

    locked, free, steps = map(np.asarray, jax.jit(jax.vmap(look))(jax.random.split(jax.random.key(0), 256)))
    # A hall of h x h cells and its way out, then the corridor of l: 2 (h - 1) + 1 + l steps.
    known = {(h * h + 1 + length, 2 * h - 1 + length) for h in range(1, 6) for length in range(4, 10)}
    assert {*zip(free[~locked].tolist(), steps[~locked].astype(int).tolist(), strict=True)} <= known
    assert np.unique(steps[~locked]).size >= 12
    # Six rows of five cells and the door.
    assert set(free[locked].tolist()) == {31} and np.all(steps[locked] <= 36)
    assert 0.1 < locked.mean() < 0.25


def test_the_one_layout_of_the_default_is_locked():
    config = OmegaConf.load(CONFIGS / "environment" / "halls.yaml")
    task = limited(make_environment(), 1, seed=config.seed).sample_task(jax.random.key(5))
    row, column = task["door"]
    assert task["key"][0] >= 0 and row >= 0 and not task["walls"][row, column]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_length": 0}, "must be from 1 to 17, in this order, got 0 and 12; try 8 and 12"),
        ({"min_length": 9, "max_length": 8}, "in this order, got 9 and 8"),
        ({"max_length": 18}, "got 8 and 18"),
        ({"max_steps": 20}, "`max_steps` must be at least the 21 steps of the longest way, got 20"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_environment(**settings)
