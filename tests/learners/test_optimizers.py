"""Steps of optimisers: what learns and what stays; Adam and chains against optax's own optimisers."""

from functools import partial
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.optimizers import (
    apply_updates,
    carry_over,
    init_optimizer,
    learning_rate_of,
    make_adam,
    make_chain,
    make_separate,
    matching,
    of_each_agent,
    take_if,
    warmup,
)
from jaxagents.ops.schedules import linear_schedule

PARAMS = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([[3.0]])}
GRADIENTS = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[-4.0]])}  # Of global norm 5.


def run(optimizer, num_steps=3, state=None):
    """Returns parameters after each step, with gradients that grow."""
    params, state, history = PARAMS, optimizer.init(PARAMS) if state is None else state, []
    for step in range(num_steps):
        gradients = jax.tree.map(lambda leaf, scale=1.0 + step: leaf * scale, GRADIENTS)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        history.append(params)
    return history


def assert_close(actual, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), actual, expected)


def test_first_step_is_the_learning_rate_times_the_sign():
    first = run(make_adam(learning_rate=0.1, epsilon=1e-8), 1)[0]
    assert_close(first, {"a": np.array([0.9, -2.0]), "b": np.array([[3.1]])})


def test_epsilon_damps_small_gradients():
    first = run(make_adam(learning_rate=0.1, epsilon=1.0), 1)[0]
    assert_close(first, {"a": np.array([1.0 - 0.1 * 3.0 / 4.0, -2.0]), "b": np.array([[3.0 + 0.1 * 4.0 / 5.0]])})


@pytest.mark.parametrize(
    ("options", "oracle"),
    [
        ({}, optax.adam(0.1, eps=1e-5)),
        ({"max_gradient_norm": 1.0}, optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1, eps=1e-5))),
        ({"weight_decay": 0.3}, optax.adamw(0.1, eps=1e-5, weight_decay=0.3)),
        ({"num_updates": 3, "anneal": True}, optax.adam(optax.linear_schedule(0.1, 0.0, 3), eps=1e-5)),
    ],
    ids=["plain", "clipped", "decayed", "annealed"],
)
def test_agrees_with_optax(options, oracle):
    assert_close(run(make_adam(learning_rate=0.1, **options)), run(oracle))


def test_clipping_reaches_adam_after_the_norm_changed():
    # Gradients of norm 5, 10, 15: clipped they are all the same, and every step of Adam is the full one.
    history = run(make_adam(learning_rate=0.1, epsilon=1e-8, max_gradient_norm=1.0))
    assert_close([params["a"][0] for params in history], [0.9, 0.8, 0.7])
    free = run(make_adam(learning_rate=0.1, epsilon=1e-8))
    assert float(free[-1]["a"][0]) > 0.7 + 1e-3


def test_the_norm_of_gradients_is_that_before_clipping_whether_flat_or_not():
    grads = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}
    for flatten in (False, True):
        optimizer = make_adam(max_gradient_norm=1.0, flatten=flatten)
        assert optimizer.flat is flatten
        assert float(apply_updates(grads, grads, optimizer.init(grads), optimizer)[2]) == 5.0


def test_annealing_ends_at_zero():
    history = run(make_adam(4, learning_rate=0.1, anneal=True, max_gradient_norm=1.0, epsilon=1e-8), 6)
    values = np.array([1.0, *(float(params["a"][0]) for params in history)])
    np.testing.assert_allclose(-np.diff(values), [0.1, 0.075, 0.05, 0.025, 0.0, 0.0], atol=1e-6)


def test_learning_rate_is_an_array_of_the_state():
    optimizer = make_adam(learning_rate=0.1, epsilon=1e-8)
    state = optimizer.init(PARAMS)
    assert float(optax.tree_utils.tree_get(state, "learning_rate")) == pytest.approx(0.1)
    changed = optax.tree_utils.tree_set(state, learning_rate=jnp.float32(0.5))
    assert_close(run(optimizer, 1, changed)[0]["a"], [0.5, -2.0])
    programs = [
        str(jax.make_jaxpr(made.update)(GRADIENTS, made.init(PARAMS), PARAMS))
        for made in (optimizer, make_adam(learning_rate=0.7, epsilon=1e-8))
    ]
    assert programs[0] == programs[1]


@pytest.mark.parametrize("num_updates", [None, 0])
def test_annealing_needs_the_length_of_the_run(num_updates):
    with pytest.raises(ValueError, match=f"`num_updates` must be positive when `anneal` is true, got {num_updates}"):
        make_adam(num_updates, anneal=True)


def test_a_step_goes_down_the_mean_gradient_of_all_devices():
    optimizer = optax.sgd(0.5)
    step = partial(apply_updates, optimizer=optimizer, axis_name="devices")
    gradients = jax.tree.map(lambda leaf: jnp.stack([leaf, 3.0 * leaf]), GRADIENTS)  # Of mean 2 g, of norm 10.
    params, _, norm = jax.vmap(step, in_axes=(0, None, None), axis_name="devices")(
        gradients, PARAMS, optimizer.init(PARAMS)
    )
    np.testing.assert_allclose(params["a"], [[-2.0, -2.0]] * 2)
    np.testing.assert_allclose(norm, [10.0, 10.0])


@pytest.mark.parametrize("trainable", [{"a": True, "b": False}, partial(matching, pattern="^a")], ids=["tree", "path"])
def test_what_is_frozen_stays_and_takes_no_part(trainable):
    """Not even weight decay moves it, its gradient is not clipped with the others, and it has no moments."""
    optimizer = make_adam(learning_rate=0.1, weight_decay=0.3, max_gradient_norm=1.0)
    opt_state = init_optimizer(optimizer, PARAMS, trainable)
    assert sum(leaf.size for leaf in jax.tree.leaves(opt_state)) == 1 + 2 * PARAMS["a"].size + 2
    params, _, norm = apply_updates(GRADIENTS, PARAMS, opt_state, optimizer, trainable=trainable)
    alone = make_adam(learning_rate=0.1, weight_decay=0.3, max_gradient_norm=1.0)
    expected, _ = alone.update({"a": GRADIENTS["a"]}, alone.init({"a": PARAMS["a"]}), {"a": PARAMS["a"]})
    assert_close(params, {"a": PARAMS["a"] + expected["a"], "b": PARAMS["b"]})
    assert float(norm) == 3.0


def test_refuses_flags_that_do_not_fit():
    with pytest.raises(ValueError, match="`trainable` must be a prefix pytree of bool of the parameters, got {'c'"):
        init_optimizer(optax.sgd(0.1), PARAMS, {"c": True})
    with pytest.raises(ValueError, match="`pattern` must find a parameter, got 'c'; there are a, b."):
        matching(PARAMS, pattern="c")


def test_moments_go_on_in_another_stage_while_rate_and_schedule_are_its_own():
    earlier, later = (make_adam(4, learning_rate=rate, anneal=True) for rate in (0.1, 0.7))
    _, state, _ = apply_updates(GRADIENTS, PARAMS, earlier.init(PARAMS), earlier)
    state = carry_over(later.init(PARAMS), state)
    assert float(optax.tree_utils.tree_get(state, "learning_rate")) == pytest.approx(0.7)
    assert [int(count) for _, count in optax.tree_utils.tree_get_all_with_path(state, "count")][:2] == [1, 0]
    np.testing.assert_allclose(optax.tree_utils.tree_get(state, "mu")["a"], 0.1 * GRADIENTS["a"], rtol=1e-6)
    # Another optimiser begins anew.
    other = optax.sgd(0.1, momentum=0.9)
    assert_close(carry_over(other.init(PARAMS), state), other.init(PARAMS))


CHAIN = {
    "clip": partial(optax.clip_by_global_norm, max_norm=1.0),
    "adam": partial(optax.scale_by_adam, b1=0.8, b2=0.95),
    "decay": partial(optax.add_decayed_weights, weight_decay=0.3, mask=partial(matching, pattern="^a")),
}


def test_chains_agree_with_optax():
    made = make_chain(3, transforms=CHAIN, learning_rate=0.1, schedule=partial(warmup, warmup_fraction=0.34))
    oracle = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(1.0, b1=0.8, b2=0.95, weight_decay=0.3, mask={"a": True, "b": False}),
        optax.scale_by_schedule(lambda step: jnp.array([0.0, 0.1, 0.05])[step]),
    )
    assert_close(run(made), run(oracle))


def test_numbers_of_chains_are_arrays():
    programs = []
    for max_norm, b1, rate in ((1.0, 0.8, 0.1), (2.0, 0.9, 0.3)):
        transforms = {
            "clip": partial(optax.clip_by_global_norm, max_norm=max_norm),
            "adam": partial(optax.scale_by_adam, b1=b1),
        }
        made = make_chain(transforms=transforms, learning_rate=rate)
        programs.append(str(jax.make_jaxpr(made.update)(GRADIENTS, made.init(PARAMS), PARAMS)))
    assert programs[0] == programs[1]


@pytest.mark.parametrize("cosine", [False, True])
def test_warm_up_rises_and_falls(cosine):
    schedule = warmup(10, warmup_fraction=0.2, final_factor=0.5, cosine=cosine)
    values = [float(schedule(step)) for step in (0, 1, 2, 4, 6, 10, 20)]
    quarter = 0.5 + 0.5 * (0.5 + 0.5 * 2**-0.5) if cosine else 0.875
    np.testing.assert_allclose(values, [0.0, 0.5, 1.0, quarter, 0.75, 0.5, 0.5], rtol=1e-6)


def test_warm_up_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="`num_updates` must be positive for a schedule, got None."):
        warmup(None)
    with pytest.raises(ValueError, match=r"`warmup_fraction` must be in \[0, 1\).*, got 1 and 0.0; try 0.1 and 0."):
        warmup(10, warmup_fraction=1)


def test_trainable_may_be_any_mapping_as_configs_give_it():
    params = {"torso": jnp.ones(2), "head": jnp.ones(2)}
    flags = MappingProxyType({"torso": False, "head": True})
    optimizer = optax.sgd(1.0)
    opt_state = init_optimizer(optimizer, params, flags)
    after, _, _ = apply_updates(params, params, opt_state, optimizer, trainable=flags)
    np.testing.assert_array_equal(after["torso"], 1.0)
    np.testing.assert_array_equal(after["head"], 0.0)


def test_parts_are_clipped_and_moved_by_themselves():
    optimizer = make_separate(
        optimizer=lambda num_updates: optax.chain(optax.clip_by_global_norm(1.0), optax.trace(0.5)),
        names=("one", "other"),
    )
    params = {"one": jnp.zeros(2), "other": jnp.zeros(1)}
    state = optimizer.init(params)
    grads = {"one": jnp.array([30.0, 40.0]), "other": jnp.array([0.5])}
    updates, state = optimizer.update(grads, state, params)
    np.testing.assert_allclose(updates["one"], [0.6, 0.8])
    np.testing.assert_allclose(updates["other"], [0.5])  # Which the other one does not shrink.
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, grads), state)
    np.testing.assert_allclose(updates["one"], [0.3, 0.4])
    np.testing.assert_allclose(updates["other"], [0.25])


@pytest.mark.parametrize("flatten", [False, True])
def test_schedules_go_on_where_steps_are_skipped(flatten):
    """Of ten steps of a rate that falls to zero, the fifth and the tenth are taken: at 0.6 and 0.1 of the start."""
    optimizer = make_adam(10, learning_rate=0.5, anneal=True, flatten=flatten)
    params, numbers = PARAMS, linear_schedule(start=1.0, end=0.0, num_updates=10)
    state, memory, taken = optimizer.init(params), numbers.init(10), []
    for index in range(10):
        stepped, after, _ = apply_updates(GRADIENTS, params, state, optimizer)
        due = jnp.bool_(index % 5 == 4)
        new = (stepped, after, numbers.update(memory, ()))
        moved, state, memory = take_if(due, new, (params, state, memory))
        taken.append(float(params["a"][0] - moved["a"][0]))
        params = moved
    np.testing.assert_allclose(taken, np.array([0.0] * 4 + [0.3] + [0.0] * 4 + [0.05]), rtol=1e-4, atol=1e-7)
    assert float(numbers.apply(memory)[0]) == 0.0
    # Adam has seen two gradients.
    assert [int(s.count) for s in jax.tree.leaves(state, is_leaf=_is_adam) if _is_adam(s)] == [2]


def _is_adam(node):
    return isinstance(node, optax.ScaleByAdamState)


def test_norms_of_gradients_are_of_each_agent():
    optimizer = of_each_agent(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0)), 2)
    params = {"a": jnp.zeros((2, 1)), "b": jnp.zeros((2, 1))}
    grads = {"a": jnp.array([[0.15], [30.0]]), "b": jnp.array([[0.2], [40.0]])}
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    # Of the agents' own losses, twice as much: 0.3 and 0.4 stay, 60 and 80 become a vector of length 1.
    np.testing.assert_allclose(updates["a"], [[-0.3], [-0.6]], rtol=1e-6)
    np.testing.assert_allclose(updates["b"], [[-0.4], [-0.8]], rtol=1e-6)


@pytest.mark.parametrize("flatten", [False, True])
def test_the_learning_rate_is_that_of_the_step_that_follows(flatten):
    """A step of Adam along a constant gradient is as long as the rate; the last of four has a quarter of it."""
    optimizer = make_adam(4, learning_rate=0.1, anneal=True, max_gradient_norm=1.0, epsilon=1e-8, flatten=flatten)
    params, state, rates, steps = PARAMS, optimizer.init(PARAMS), [], []
    for _ in range(4):
        rates.append(float(learning_rate_of(optimizer, state)["learning_rate"]))
        moved, state, _ = apply_updates(GRADIENTS, params, state, optimizer)
        steps.append(float(params["a"][0] - moved["a"][0]))
        params = moved
    np.testing.assert_allclose(rates, [0.1, 0.075, 0.05, 0.025], rtol=1e-6)
    np.testing.assert_allclose(steps, rates, rtol=1e-4)


def test_learning_rates_of_warm_up_of_parts_of_agents_and_of_others():
    chain = make_chain(
        10, transforms={"sgd": optax.identity}, learning_rate=0.4, schedule=partial(warmup, warmup_fraction=0.2)
    )
    state = chain.init(PARAMS)
    assert float(learning_rate_of(chain, state)["learning_rate"]) == 0.0
    state = apply_updates(GRADIENTS, PARAMS, state, chain)[1]
    assert float(learning_rate_of(chain, state)["learning_rate"]) == pytest.approx(0.2)
    # A population changes rates in the state.
    changed = optax.tree_utils.tree_set(state, learning_rate=jnp.float32(0.8))
    assert float(learning_rate_of(chain, changed)["learning_rate"]) == pytest.approx(0.4)
    parts = make_separate(10, optimizer=partial(make_adam, learning_rate=0.3, anneal=True), names=("a", "b"))
    state = apply_updates(GRADIENTS, PARAMS, parts.init(PARAMS), parts)[1]
    assert float(learning_rate_of(parts, state)["learning_rate"]) == pytest.approx(0.27)
    agents = of_each_agent(make_adam(learning_rate=0.3), 2)
    state = optax.tree_utils.tree_set(agents.init({"a": jnp.zeros((2, 1))}), learning_rate=jnp.array([0.3, 0.1]))
    assert float(learning_rate_of(agents, state)["learning_rate"]) == pytest.approx(0.2)
    assert learning_rate_of(optax.sgd(0.1), optax.sgd(0.1).init(PARAMS)) == {}
