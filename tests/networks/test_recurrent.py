import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxagents.networks.gated_transformer import GTrXL
from jaxagents.networks.recurrent import GRU, LRU, Stack, linear_recurrence

T, B, F, H = 7, 2, 3, 4
MODULES = {
    "gru": GRU(H),
    "lru": LRU(H),
    "gtrxl": GTrXL(H, num_heads=2, window=T),
    "stack": Stack([GRU(5), LRU(H, state_size=6, r_min=0.5, r_max=0.9)]),
}
FEATURES = jax.random.normal(jax.random.key(0), (T, B, F))
FIRST = jnp.zeros((T, B), bool).at[3, 0].set(True).at[5, 1].set(True)


@pytest.fixture(scope="module", params=MODULES, name="network")
def _network(request):
    """Returns `(module, params, compiled apply, a carry that is not zero)`."""
    module = MODULES[request.param]
    carry = module.initial_carry((B,))
    params = jax.jit(module.init)(jax.random.key(1), carry, FEATURES, FIRST)
    apply = jax.jit(module.apply)
    carry, _ = apply(params, carry, jax.random.normal(jax.random.key(2), FEATURES.shape), jnp.zeros_like(FIRST))
    return module, params, apply, carry


def _assert_close(actual, expected):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), actual, expected)


def test_single_steps_equal_one_sequence(network):
    _, params, apply, carry = network
    expected = apply(params, carry, FEATURES, FIRST)
    outputs = []
    for t in range(T):
        carry, output = apply(params, carry, FEATURES[t : t + 1], FIRST[t : t + 1])
        outputs.append(output)
    _assert_close((carry, jnp.concatenate(outputs)), expected)


def test_initial_params_do_not_depend_on_the_length(network):
    module, params, _, carry = network
    _assert_close(jax.jit(module.init)(jax.random.key(1), carry, FEATURES[:1], FIRST[:1]), params)


def test_one_step_has_no_loop(network):
    module, params, _, carry = network
    jaxpr = str(jax.make_jaxpr(module.apply)(params, carry, FEATURES[:1], FIRST[:1]))
    assert "while" not in jaxpr and "scan" not in jaxpr


def test_reset_equals_a_fresh_start(network):
    module, params, apply, carry = network
    final, outputs = apply(params, carry, FEATURES, FIRST)
    fresh_final, fresh = apply(params, module.initial_carry((B,)), FEATURES[3:], FIRST[3:])
    _assert_close(outputs[3:, 0], fresh[:, 0])
    _assert_close(jax.tree.map(lambda x: x[0], final), jax.tree.map(lambda x: x[0], fresh_final))
    assert jnp.abs(outputs[3:5, 1] - fresh[:2, 1]).max() > 1e-3  # Not yet reset: history matters.


def test_gradient_stops_at_first(network):
    _, params, apply, carry = network

    def later(carry, features):
        outputs = apply(params, carry, features, FIRST)[1]
        return outputs[3:, 0].sum() + outputs[5:, 1].sum()

    to_carry, to_features = jax.jit(jax.grad(later, argnums=(0, 1)))(carry, FEATURES)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(to_carry))
    assert (to_features[:3, 0] == 0).all() and (to_features[:5, 1] == 0).all()
    assert (to_features[3:, 0] != 0).any(-1).all() and (to_features[5:, 1] != 0).any(-1).all()


def test_gradient_flows_through_time_and_to_every_parameter(network):
    _, params, apply, carry = network
    never = jnp.zeros((T, B), bool)
    last = lambda params, features: apply(params, carry, features, never)[1][-1].sum()  # noqa: E731
    to_params, to_features = jax.jit(jax.grad(last, argnums=(0, 1)))(params, FEATURES)
    assert (to_features[0] != 0).any()
    for leaf in jax.tree.leaves(to_params):
        assert jnp.isfinite(leaf).all() and (leaf != 0).any()


def test_a_bad_carry_is_forgotten(network):
    _, params, apply, carry = network
    bad = jax.tree.map(lambda x: x * jnp.inf, carry)
    first = FIRST.at[0].set(True)
    _assert_close(apply(params, bad, FEATURES, first), apply(params, carry, FEATURES, first))


def test_any_number_of_batch_axes_and_vmap(network):
    module, params, apply, _ = network
    features = jax.random.normal(jax.random.key(4), (T, 2, 3, F))
    first = jax.random.bernoulli(jax.random.key(5), 0.3, (T, 2, 3))
    carry, outputs = apply(params, module.initial_carry((2, 3)), features, first)
    flat = apply(params, module.initial_carry((6,)), features.reshape(T, 6, F), first.reshape(T, 6))
    _assert_close(outputs, flat[1].reshape(outputs.shape))
    _assert_close(carry, jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), flat[0]))
    single = jax.vmap(lambda *args: module.apply(params, *args), in_axes=(0, 1, 1), out_axes=(0, 1))
    by_vmap = jax.jit(jax.vmap(single, in_axes=(0, 1, 1), out_axes=(0, 1)))(
        module.initial_carry((2, 3)), features, first
    )
    _assert_close((carry, outputs), by_vmap)


def test_initial_carry_is_real_and_keeps_its_type(network):
    module, params, apply, _ = network
    carry = module.initial_carry((B,))
    final, outputs = apply(params, carry, FEATURES, FIRST)
    assert outputs.shape == (T, B, H)
    for before, after in zip(jax.tree.leaves(carry), jax.tree.leaves(final), strict=True):
        assert before.shape == after.shape and before.dtype == after.dtype == jnp.float32
        assert (before == 0).all()


def test_gru_equals_the_cell_of_flax():
    module = GRU(H)
    carry = jax.random.normal(jax.random.key(1), (B, H))
    params = jax.jit(module.init)(jax.random.key(2), carry, FEATURES, FIRST)["params"]
    params = {**params, "recurrent_bias": jnp.arange(4.0), "input_bias": jnp.arange(12.0)}
    to_reset, to_update, to_new = jnp.split(params["recurrent_kernel"], 3, axis=-1)
    kernels, biases = jnp.split(params["input_kernel"], 3, axis=-1), jnp.split(params["input_bias"], 3)
    cell_params = {
        **{name: {"kernel": k, "bias": b} for name, k, b in zip(("ir", "iz", "in"), kernels, biases)},
        **{"hr": {"kernel": to_reset}, "hz": {"kernel": to_update}},
        "hn": {"kernel": to_new, "bias": params["recurrent_bias"]},
    }
    hidden, outputs = carry, []
    for t in range(T):
        hidden = jnp.where(FIRST[t][:, None], 0.0, hidden)
        hidden, output = nn.GRUCell(H).apply({"params": cell_params}, hidden, FEATURES[t])
        outputs.append(output)
    _assert_close(jax.jit(module.apply)({"params": params}, carry, FEATURES, FIRST), (hidden, jnp.stack(outputs)))


def test_gru_recurrent_kernels_are_orthogonal():
    kernel = jax.jit(GRU(H).init)(jax.random.key(0), jnp.zeros((B, H)), FEATURES, FIRST)["params"]["recurrent_kernel"]
    for block in jnp.split(kernel, 3, axis=-1):
        np.testing.assert_allclose(block.T @ block, np.eye(H), atol=1e-5)


def test_linear_recurrence_by_hand():
    inputs = jnp.array([1.0, 2.0, 3.0, 4.0])[:, None]
    first = jnp.array([False, False, True, False])
    states = linear_recurrence(jnp.array([0.5]), inputs, first, jnp.array([8.0]))
    # 4 + 1, 2.5 + 2, reset: 3, 1.5 + 4.
    np.testing.assert_allclose(states[:, 0], [5.0, 4.5, 3.0, 5.5])


def test_lru_equals_the_recurrence_written_out():
    module = LRU(H, state_size=5)
    carry = tuple(jax.random.normal(key, (B, 5)) for key in jax.random.split(jax.random.key(1)))
    features = jax.random.normal(jax.random.key(2), (T, B, H))  # As wide as the block: no encoder.
    variables = jax.jit(module.init)(jax.random.key(3), carry, features, FIRST)
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables["params"])
    assert "encoder" not in p

    u = np.asarray(features, np.float64)
    u = (u - u.mean(-1, keepdims=True)) / np.sqrt(u.var(-1, keepdims=True) + 1e-6)
    decay = np.exp(-np.exp(p["nu"]) + 1j * np.exp(p["theta"]))
    into = p["B"]["kernel"][:, :5] + 1j * p["B"]["kernel"][:, 5:]
    out = p["C"]["kernel"][:5] + 1j * p["C"]["kernel"][5:]
    x = np.asarray(carry[0]) + 1j * np.asarray(carry[1])
    expected = []
    for t in range(T):
        x = np.where(np.asarray(FIRST[t])[:, None], 0.0, x)
        x = decay * x + np.exp(p["log_gamma"]) * (u[t] @ into)
        y = np.asarray(nn.gelu((x @ out).real + p["D"] * u[t]))
        gate = y @ p["gate"]["kernel"] + p["gate"]["bias"]
        expected.append(features[t] + gate[:, :H] / (1 + np.exp(-gate[:, H:])))
    _assert_close(jax.jit(module.apply)(variables, carry, features, FIRST), ((x.real, x.imag), np.stack(expected)))


def test_lru_starts_on_its_ring_with_unit_variance():
    module = LRU(512, r_min=0.4, r_max=0.8, max_phase=0.5)
    inputs = jnp.zeros((1, 1, 512)), jnp.zeros((1, 1), bool)
    params = jax.jit(module.init)(jax.random.key(0), module.initial_carry((1,)), *inputs)["params"]
    modulus, phase = np.exp(-np.exp(params["nu"])), np.exp(params["theta"])
    assert modulus.min() > 0.4 - 1e-6 and modulus.max() < 0.8 + 1e-6 and phase.max() < 0.5 + 1e-6
    # Uniform on the ring: the mean of the squared modulus is (0.16 + 0.64) / 2.
    np.testing.assert_allclose((modulus**2).mean(), 0.4, atol=0.03)
    np.testing.assert_allclose(phase.mean(), 0.25, atol=0.03)
    np.testing.assert_allclose(np.exp(2.0 * params["log_gamma"]), 1.0 - modulus**2, rtol=1e-4)


def test_lru_on_the_whole_disc_is_finite():
    module = LRU(4, r_min=0.0, r_max=1.0)
    carry, features = module.initial_carry((1,)), jnp.ones((1000, 1, 4))
    outputs, _ = jax.jit(module.init_with_output)(jax.random.key(0), carry, features, jnp.zeros((1000, 1), bool))
    assert jnp.isfinite(outputs[1]).all()


def test_lists_are_accepted_and_modules_hash():
    assert hash(Stack([GRU(5), LRU(H)])) == hash(Stack((GRU(5), LRU(H))))


def test_refusals(network):
    module, params, apply, carry = network
    with pytest.raises(ValueError, match=r"`first` must have the leading axes .* got \(7,\) and \(7, 2, 3\)"):
        apply(params, carry, FEATURES, FIRST[:, 0])
    with pytest.raises(ValueError, match=r"`carry` must be .*try `initial_carry"):
        apply(params, module.initial_carry((1,)), FEATURES, FIRST)
    with pytest.raises(ValueError, match="0 <= r_min < r_max <= 1, got 0.9 and 0.5"):
        LRU(4, r_min=0.9, r_max=0.5)
