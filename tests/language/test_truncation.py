"""Truncation of distributions against sorting and against `transformers`; draws among what is left."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import arithmetic
from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.generate import Sampling, sample_token
from jaxagents.language.truncation import truncate
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from tests import CONFIGS

V = 1000
SETTINGS = [
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": V + 5},
    {"top_p": 0.01},
    {"top_p": 0.9},
    {"top_p": 0.9, "temperature": 1.7},
    {"top_p": 1.0},
    {"min_p": 0.05},
    {"min_p": 0.1, "temperature": 0.5},
    {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.6, "min_p": 0.02, "temperature": 1.3},
]


def make_logits(kind):
    logits = 3.0 * np.asarray(jax.random.normal(jax.random.key(0), (6, V)))
    if kind == "ties":
        logits = np.round(logits)
    if kind == "equal":
        logits = np.full_like(logits, -4.0)
    if kind == "grammar":  # Row i allows some tokens only, row 0 a single one.
        allowed = np.array(jax.random.bernoulli(jax.random.key(1), 0.03, logits.shape))
        allowed[0] = np.arange(V) == 77
        logits = np.where(allowed, logits, -np.inf)
    return logits.astype(np.float32)


def kept_by_sorting(row, top_k=None, top_p=None, min_p=None, temperature=1.0):
    """Keeps tokens one after the other, from the most probable one on, in float64."""
    probability = np.exp((row.astype(np.float64) - row.max()) / temperature)
    order = np.argsort(-row, kind="stable")
    kept = order[:top_k] if top_k else order
    kept = np.flatnonzero(row >= row[kept[-1]])
    kept = kept[np.argsort(-row[kept], kind="stable")]
    if top_p is not None and top_p < 1.0:
        mass = np.cumsum(probability[kept])
        last = kept[np.argmax(mass >= top_p * mass[-1])]
        kept = kept[row[kept] >= row[last]]
    if min_p is not None:
        kept = kept[probability[kept] >= np.float32(min_p) * (1 - 1e-6)]
    return sorted(token for token in kept if np.isfinite(row[token]))


@pytest.mark.parametrize("kind", ["different", "ties", "equal", "grammar"])
def test_it_keeps_what_sorting_keeps(kind):
    logits = make_logits(kind)

    @jax.jit
    def run(logits):
        return [truncate(logits, **settings) for settings in SETTINGS]

    for settings, found in zip(SETTINGS, run(logits), strict=True):
        for row, out in zip(logits, np.asarray(found), strict=True):
            assert np.flatnonzero(np.isfinite(out)).tolist() == kept_by_sorting(row, **settings), settings
            np.testing.assert_array_equal(out[np.isfinite(out)], row[np.isfinite(out)])


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_keeps_what_the_warpers_of_transformers_keep(settings):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    warpers = [
        ("temperature", transformers.TemperatureLogitsWarper),
        ("top_k", transformers.TopKLogitsWarper),
        ("top_p", transformers.TopPLogitsWarper),
        ("min_p", transformers.MinPLogitsWarper),
    ]
    # Of equal tokens, the top-p of transformers keeps the ones that its sort puts last.
    for kind in ("different", "grammar") if "top_p" in settings else ("different", "ties", "equal", "grammar"):
        logits = make_logits(kind)
        scores = torch.from_numpy(logits.copy())
        for name, warper in warpers:
            scores = warper(settings[name])(None, scores) if name in settings else scores
        kept = np.isfinite(np.asarray(truncate(logits, **settings)))
        np.testing.assert_array_equal(kept, np.isfinite(scores.numpy()), err_msg=kind)


def draws_of(uniforms, logits, **settings):
    """Returns what is drawn at evenly spread uniform numbers: tokens [N], both log-probabilities [N]."""
    rows = jnp.broadcast_to(jnp.asarray(logits), (len(uniforms), len(logits)))
    return jax.jit(sample_token)(rows, jnp.asarray(uniforms), Sampling(**settings))


# Blocks of 256, one of them, and blocks of blocks.
@pytest.mark.parametrize("size", [V, 256, pytest.param(70_000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 1.5}, {"top_k": 30, "top_p": 0.8, "min_p": 0.02, "temperature": 1.5}], ids=str
)
def test_draws_are_as_frequent_as_their_probabilities(size, settings):
    logits = np.array(3.0 * jax.random.normal(jax.random.key(5), (size,)))
    logits[[0, 1, 2, -1]] = -np.inf
    uniforms = (np.arange(512, dtype=np.float32) + 0.5) / 512
    token, log_prob, sampling_log_prob = map(np.asarray, draws_of(uniforms, logits, **settings))
    probability = np.zeros(size)
    kept = kept_by_sorting(logits, **settings)
    heat = settings.get("temperature", 1.0)
    probability[kept] = np.exp((logits[kept].astype(np.float64) - logits.max()) / heat)
    probability /= probability.sum()
    np.testing.assert_allclose(sampling_log_prob, np.log(probability[token]), atol=1e-4)
    whole = np.exp(logits.astype(np.float64) - logits.max())
    np.testing.assert_allclose(log_prob, np.log(whole[token] / whole.sum()), atol=1e-4)
    # Each uniform number is in the token's part of the cumulative distribution, up to rounding.
    cumulative = np.cumsum(probability)
    assert np.all(uniforms <= cumulative[token] + 1e-5)
    assert np.all(uniforms >= cumulative[token] - probability[token] - 1e-5)


@pytest.mark.parametrize("size", [256, 70_000])
def test_nothing_without_probability_is_drawn_at_the_ends(size):
    logits = np.full(size, -np.inf, np.float32)
    logits[[size // 3, size // 2]] = 0.0
    token, *_ = draws_of(np.array([0.0, np.nextafter(np.float32(1.0), np.float32(0.0))]), logits)
    assert token.tolist() == [size // 3, size // 2]


def test_settings_of_each_row_and_no_sort():
    logits = make_logits("different")
    top_p = jnp.linspace(0.1, 0.99, 6)
    together = truncate(logits, top_p=top_p, min_p=jnp.full(6, 0.01))
    rows = jax.vmap(lambda row, share: truncate(row, top_p=share, min_p=0.01))(logits, top_p)
    np.testing.assert_array_equal(together, rows)
    program = jax.jit(partial(truncate, top_k=50, top_p=0.9, min_p=0.01)).lower(logits).compile().as_text()
    assert " sort(" not in program
    counts = jnp.arange(1, 7)
    assert jnp.sum(truncate(logits, top_k=counts) > -jnp.inf, axis=-1).tolist() == counts.tolist()


def test_only_what_is_left_is_said(speak):
    sums = arithmetic.make_environment((1,), (2,), operations=("+",))
    policy = speak(sums, context_turns=1, prompt=False)
    params = jax.tree.map(lambda leaf: leaf * 2.0, policy.init(jax.random.key(7)))
    # The most probable token alone is as probable as it.
    collector = make_dialogue_collector(sums, policy, num_groups=2, group_size=4, temperature=1.2, min_p=1.0)
    assert dict(collector.tempering) == {"temperature": 1.2, "min_p": 1.0}
    state = collector.init(jax.random.key(0), params)
    _, episode, _ = jax.jit(collector.collect)(state, params, jax.random.key(1))
    np.testing.assert_allclose(episode.sampling_log_prob, 0.0, atol=1e-6)
    assert np.all(np.asarray(episode.behavior_log_prob)[np.asarray(episode.action_mask)] < 0.0)


def test_what_leaves_nothing_out_is_no_restriction(speak):
    sums = arithmetic.make_environment((1,), (2,), operations=("+",))
    make = partial(make_dialogue_collector, sums, speak(sums, context_turns=1, prompt=False))
    assert not make(num_groups=2, group_size=4, temperature=1.0, top_p=1.0, min_p=0.0).tempering


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:The samples of `collector`")
def test_min_p_is_chosen_in_a_config_and_trains_on_two_devices():
    chosen = ("world=frozenlake", "algorithm=grpo", "collector.min_p=0.05", "quick=true")
    sizes = ("devices=sharded", "devices.num_devices=2", "devices.compilation_cache=null")
    stage = build(resolve(compose(CONFIGS, *chosen, *sizes))).stages[-1]
    state, metrics = stage.runner.run(stage.runner.init(0, 1), 1)
    assert int(state.update) == 1 and np.isfinite(metrics["train/loss"])
    assert 0 < int(metrics["rollout/episodes"]) == stage.steps_per_update


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_p": 1.5}, "`min_p` must be from 0.0 to 1.0, got 1.5"),
        ({"top_p": -0.1}, "`top_p` must be from 0.0 to 1.0, got -0.1"),
        ({"top_k": 0}, "`top_k` must be at least 1, got 0"),
    ],
)
def test_refused(speak, settings, message):
    sums = arithmetic.make_environment((1,), (2,), operations=("+",))
    with pytest.raises(ValueError, match=message):
        make_dialogue_collector(
            sums, speak(sums, context_turns=1, prompt=False), num_groups=1, group_size=1, **settings
        )
