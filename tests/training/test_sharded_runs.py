"""Parameters, critics, moments, copies and replay in shards: the run is that of one device, each has its share."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding

from jaxagents.data.buffers import make_prioritized_buffer
from jaxagents.environments.text.frozenlake import make_environment as make_lake
from jaxagents.environments.tmaze import make_environment
from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.generate import generate
from jaxagents.learners import dqn
from jaxagents.learners.optimizers import make_adam
from jaxagents.learners.policy_gradient import make_agent
from jaxagents.learners.ppo import make_ppo
from jaxagents.losses.aggregation import token_mean
from jaxagents.losses.regularizers import kl_k3
from jaxagents.losses.token_policy_gradient import ppo_clip
from jaxagents.networks.decoder import Decoder
from jaxagents.networks.torsos import MLP
from jaxagents.networks.transformer import Transformer
from jaxagents.ops import credit
from jaxagents.policies.actor_critic import as_policy, make_actor_critic
from jaxagents.policies.language_model import make_language_model
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.build import build, resolve
from jaxagents.training.devices import axis_name_of, place, place_on_mesh, select_devices
from jaxagents.training.loop import train
from jaxagents.training.mesh import axis_name_on, make_mesh
from jaxagents.training.program import make_program
from jaxagents.training.sharding import spec_by_rules
from jaxagents.values.q_function import make_q_function

HIDDEN = {"Dense_1/kernel$": ["tensor", "fsdp"]}
TRANSFORMER = {
    "embedding$": "tensor fsdp",
    "(qkv|query|key|value|up|gate)/kernel$": ["fsdp", "tensor"],
    "(attention/output|down)/kernel$": ["tensor", "fsdp"],
}


def ppo_program(axis_name):
    maze = make_environment(corridor_length=3)
    network = make_actor_critic(maze.observation_space, maze.action_space, encoder=MLP(hidden_sizes=(8, 8)))
    collector = make_rollout_collector(maze, as_policy(network), num_envs=8, num_steps=4)
    return make_program(collector, make_ppo(network, optax.adam(1e-2), num_minibatches=2, axis_name=axis_name))


def dqn_program(axis_name, learning_rate=1e-2):
    maze = make_environment(corridor_length=3)
    agent = dqn.make_agent(
        maze,
        value=partial(make_q_function, encoder=MLP(hidden_sizes=(8, 8))),
        optimizer=partial(make_adam, learning_rate=learning_rate),
        buffer=make_prioritized_buffer(capacity=128, batch_size=16, sequence_length=2, min_size=32, num_shards=8),
        updates_per_rollout=2,
        axis_name=axis_name,
    )
    collector = make_rollout_collector(maze, agent.policy, num_envs=8, num_steps=8)
    return make_program(collector, agent.make_learner(collector, 3))


def language_program(axis_name, speak, **options):
    lake = make_lake((4,), (0.2,), reward="dense", max_steps=6)
    agent = make_agent(
        lake,
        policy=partial(speak, context_turns=1, prompt=False),
        optimizer=partial(make_adam, learning_rate=1e-3, max_gradient_norm=1.0),
        advantage=credit.grpo,
        loss=partial(ppo_clip, clip_epsilon=0.2),
        aggregation=token_mean,
        regularizers={"reference": partial(kl_k3, coefficient=0.01)},
        reference=True,
        axis_name=axis_name,
        **options,
    )
    collector = make_dialogue_collector(lake, agent.policy, num_groups=4, group_size=4)
    return make_program(collector, agent.make_learner(collector, 3))


def run(runner, num_updates=3):
    state = runner.init(7)
    shares = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.addressable_shards[0].data.size / leaf.size
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.learner)
        if leaf.ndim
    }
    state, metrics = runner.run(state, num_updates)
    return jax.device_get(state.replace(key=None)), jax.device_get(metrics), shares


def run_alone(make):
    return run(place(make(None), mode="jit", devices=select_devices("jit", 1)))


@pytest.mark.exhaustive
def test_experience_is_bit_equal_where_nothing_is_learned():
    """What differs between numbers of devices is rounding, of priorities and gradients, and what follows from it."""
    make = partial(dqn_program, learning_rate=0.0)
    wanted = run_alone(make)[0].learner
    runner = place(make(axis_name_of("sharded")), mode="sharded", devices=select_devices("sharded", 4))
    actual = run(runner)[0].learner
    rounded = (".mu", ".nu", "priorit")  # Sums over other numbers of rows.
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(wanted), strict=True):
        name = jax.tree_util.keystr(path)
        compare = np.testing.assert_allclose if any(part in name for part in rounded) else np.testing.assert_array_equal
        compare(x, y, err_msg=name, **({"rtol": 1e-4, "atol": 1e-6} if compare is np.testing.assert_allclose else {}))


def assert_same(actual, wanted):
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(actual[0]), jax.tree.leaves(wanted[0]), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_allclose(x, y, atol=1e-5, rtol=1e-4, err_msg=jax.tree_util.keystr(path))
    for name, value in actual[1].items():
        if name == "train/explained_variance":
            continue  # Divides by a variance that is nearly zero here.
        np.testing.assert_allclose(value, wanted[1][name], atol=2e-5, rtol=1e-4, err_msg=name)


@pytest.fixture(scope="module")
def ppo_alone():
    return run_alone(ppo_program)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "rules"),
    [
        ({"data": 1, "fsdp": 2}, {}),
        ({"fsdp": 2, "tensor": 2}, HIDDEN),
        ({"data": 1, "fsdp": 8}, {}),
        ({"data": 1, "tensor": 2}, HIDDEN),
    ],
)
def test_ppo_in_shards_is_that_of_one_device(ppo_alone, sizes, rules):
    mesh = make_mesh(sizes)
    actual = run(place_on_mesh(ppo_program(axis_name_on(mesh)), mesh, rules=rules))
    assert_same(actual, ppo_alone)
    found = {name: share for name, share in actual[2].items() if name.endswith("Dense_1/kernel")}
    # Actor and critic, and two moments of each.
    assert len(found) == 6 and set(found.values()) == {1 / (mesh.shape["fsdp"] * mesh.shape["tensor"])}


@pytest.mark.exhaustive
def test_replay_and_target_networks_in_shards_are_those_of_one_device():
    mesh = make_mesh({"data": 2, "fsdp": 2})
    actual = run(place_on_mesh(dqn_program(axis_name_on(mesh)), mesh))
    assert_same(actual, run_alone(dqn_program))
    buffer = [share for name, share in actual[2].items() if name.startswith("buffer/")]
    kernels = [share for name, share in actual[2].items() if name.endswith("Dense_1/kernel")]
    assert buffer and set(buffer) == {1 / 4}  # By rows, over data and fsdp.
    assert len(kernels) == 4 and set(kernels) == {1 / 2}


@pytest.fixture(scope="module")
def language_alone(speak):
    return run_alone(partial(language_program, speak=speak))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"data": 1, "tensor": 2}, {"data": 2, "fsdp": 2, "tensor": 2}])
def test_a_language_agent_in_shards_is_that_of_one_device(language_alone, speak, sizes):
    mesh = make_mesh(sizes)
    actual = run(place_on_mesh(language_program(axis_name_on(mesh), speak=speak), mesh, rules=TRANSFORMER))
    assert_same(actual, language_alone)
    kernels = [share for name, share in actual[2].items() if name.endswith(("qkv/kernel", "down/kernel"))]
    # Policy, two moments, reference.
    assert len(kernels) == 8 and set(kernels) == {1 / (mesh.shape["fsdp"] * mesh.shape["tensor"])}


@pytest.mark.exhaustive
def test_bytes_per_device_fall_as_one_over_the_devices():
    def bytes_per_device(count):
        runner = place_on_mesh(ppo_program(None), make_mesh({"data": 1, "fsdp": count}))
        learner = runner.init(7).learner
        leaves = [leaf for leaf in jax.tree.leaves(learner) if leaf.ndim == 2]  # Biases of the heads are smaller.
        return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)

    alone = bytes_per_device(1)
    assert bytes_per_device(2) == alone / 2


def test_one_vector_of_all_moments_is_refused():
    program = ppo_program(None)
    vector = ppo_program(None)._replace(
        init=lambda key, start=None: program.init(key).replace(
            learner=program.init(key).learner.replace(
                opt_state=optax.flatten(optax.adam(1.0)).init(program.init(key).learner.params)
            )
        )
    )
    with pytest.raises(ValueError, match="`optimizer.flatten` must be false where a mesh splits parameters"):
        place_on_mesh(vector, make_mesh({"data": 1, "fsdp": 2}))


def test_rows_that_data_and_fsdp_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="`collector.num_envs` must be divisible by the device count, got 8 and 6"):
        place_on_mesh(ppo_program(None), make_mesh({"data": 3, "fsdp": 2}))


@pytest.mark.slow
def test_a_run_in_shards_is_saved_and_goes_on_alone(tmp_path, compose, rows_without_time):
    options = ["optimizer.flatten=false", "optimizer.anneal=false"]
    mesh = ["devices=sharded", "devices.mesh={data: 2, fsdp: 2}"]
    alone = train(build(resolve(compose(*options))), tmp_path / "alone")
    train(build(resolve(compose(*options, *mesh, "training.total_steps=192"))), tmp_path / "both")
    both = train(build(resolve(compose(*options))), tmp_path / "both")
    assert alone["steps"] == both["steps"] == 320
    logged = {}
    for name in ("alone", "both"):
        for row in rows_without_time(tmp_path / name):
            logged.setdefault((name, row["step"]), {}).update(row)
    steps = [step for name, step in logged if name == "alone"]
    assert len(steps) > 2
    for step in steps:  # The other one was evaluated where it stopped, too.
        row = logged["both", step]
        for name, value in logged["alone", step].items():
            if name != "train/explained_variance":
                np.testing.assert_allclose(row[name], value, rtol=1e-4, atol=1e-5, err_msg=f"{name} at {step}")


@pytest.mark.exhaustive
def test_keys_and_values_are_split_as_their_heads():
    decoder = Decoder(vocab_size=22, num_layers=2, features=24, num_heads=4, hidden_features=26, scan_layers=True)
    model = make_language_model(22, network=lambda vocab_size: decoder)
    mesh, shapes = make_mesh({"data": 1, "tensor": 2}), jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)),
        shapes,
        spec_by_rules(shapes, TRANSFORMER, mesh.shape),
    )

    def sample(params, prompt, keys):
        mask = jnp.ones(prompt.shape, bool)
        return generate(model, params, prompt, mask, keys=keys, max_new_tokens=5).tokens

    prompt, keys = jnp.zeros((3, 7), jnp.int32), jax.random.split(jax.random.key(0), 3)
    program = jax.jit(sample).lower(params, prompt, keys).compile().as_text()
    # Layers, rows, heads, tokens, features of a head.
    assert "f32[2,3,2,11,6]" in program and "f32[2,3,4,11,6]" not in program


@pytest.mark.exhaustive
@pytest.mark.parametrize(("sizes", "rules"), [({"data": 1, "fsdp": 4}, {}), ({"data": 1, "tensor": 4}, TRANSFORMER)])
def test_four_devices_share_arithmetic_and_memory_of_a_language_agent(speak, sizes, rules):
    network = partial(Transformer, num_layers=1, features=64, num_heads=4)
    speak = partial(speak, model=partial(make_language_model, network=network))

    def costs(runner):
        compiled = jax.jit(lambda state: runner.run(state, 1)).lower(runner.abstract).compile()
        return compiled.cost_analysis()["flops"], compiled.memory_analysis().argument_size_in_bytes

    make = partial(language_program, None, speak=speak, microbatch_tokens=10**6)  # What a loop repeats is counted once.
    alone = costs(place(make(), mode="jit", devices=select_devices("jit", 1)))
    actual = costs(place_on_mesh(make(), make_mesh(sizes), rules=rules))
    assert alone[0] > 1e6
    assert all(share <= 0.3 * whole for share, whole in zip(actual, alone, strict=True)), (actual, alone)
