"""Settings of every test: eight virtual CPU devices, strict rank promotion, compilations kept between runs."""

import ctypes
import gc
import os
import pathlib
import sys

_CACHE = pathlib.Path(__file__).resolve().parent.parent / ".cache" / "jax"

# XLA reads these when its backend starts, so they are set before jax is imported; subprocesses of tests inherit them.
os.environ["JAX_PLATFORMS"] = "cpu"
# Tests compile much and compute little: kernels without optimisation, from the older emitters, take half the time.
_FLAGS = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}".strip()
# Collectives between virtual devices can hang when the thread pool has fewer threads than devices.
os.environ["PJRT_NPROC"] = "32"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # Tests compile many small things.

from functools import partial  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Frees the compiled programs of a file after its tests: all of them together take more than 4 GiB."""
    yield
    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # Gives memory that is free back to the system.


@pytest.fixture(scope="session")
def lake():
    """Returns a 4x4 lake with short episodes."""
    from jaxagents.environments.text.frozenlake import make_environment

    return make_environment((4,), (0.2,), max_steps=6)


@pytest.fixture(scope="session")
def speak():
    """Returns `(environment, value_head=False, **options) -> LanguagePolicy` of a tiny model."""
    from jaxagents.language.policy import make_language_policy
    from jaxagents.language.tokenizers import word_level
    from jaxagents.networks.transformer import Transformer
    from jaxagents.policies.language_model import make_language_model

    def make(environment, value_head=False, **options):
        network = partial(Transformer, num_layers=1, features=16, num_heads=2, value_head=value_head)
        defaults = {"tokenizer": word_level, "model": partial(make_language_model, network=network)}
        return make_language_policy(environment, **defaults | options)

    return make


@pytest.fixture(scope="session")
def params_of():
    """Returns `(policy) -> params` that are far from uniform, so that mistakes in contexts show."""

    def make(policy):
        return jax.tree.map(lambda leaf: leaf * 3.0, policy.init(jax.random.key(7)))

    return make


@pytest.fixture(scope="session")
def kuhn_speaker():
    """Returns `(environment, **options) -> LanguagePolicy` of Kuhn poker whose parameters are a table.

    The parameters are `{"bet": [4, 3], "illegal": []}`: the probability of a bet by situation (opening, after a pass,
    after a bet, after pass and bet) and card, and that of another word in place of any move. Moves always end.
    """
    import jax.numpy as jnp

    from jaxagents.language.policy import make_language_policy
    from jaxagents.language.tokenizers import word_level
    from jaxagents.types import LanguageModel

    def make(environment, **options):
        tokenizer = word_level(environment.text.words)
        token = {word: tokenizer.encode(word)[0] for word in ("jack", "queen", "king", "pass", "bet", "moves")}
        size, act, end = tokenizer.vocab_size, tokenizer.marks["act"], tokenizer.marks["end"]

        def hide(tokens, seen, mask):
            """The last token, and how often each token is seen."""
            bag = jnp.einsum("bsw,bwv->bsv", mask.astype(jnp.float32), jax.nn.one_hot(seen, size))
            return jnp.concatenate([jax.nn.one_hot(tokens, size), bag], axis=-1)

        def extend(params, cache, tokens, *, positions, index, mask):
            cache = jax.lax.dynamic_update_slice(cache, tokens, (0, index))
            return cache, hide(tokens, cache, mask)

        def logits(params, hidden):
            last, bag = hidden[..., :size], hidden[..., size:]
            cards = jnp.stack([bag[..., token[card]] for card in ("jack", "queen", "king")], axis=-1) > 0
            passed, raised = bag[..., token["pass"]] > 0, bag[..., token["bet"]] > 0
            situation = jnp.where(passed & raised, 3, jnp.where(raised, 2, jnp.where(passed, 1, 0)))
            bet = params["bet"][situation, jnp.argmax(cards, axis=-1)]
            good = 1.0 - params["illegal"]
            move = jnp.zeros((*bet.shape, size)).at[..., token["bet"]].set(good * bet)
            move = move.at[..., token["pass"]].set(good * (1.0 - bet)).at[..., token["moves"]].set(1.0 - good)
            stop = jnp.broadcast_to(jax.nn.one_hot(end, size), move.shape)
            return jnp.log(jnp.where(last[..., act, None] > 0, move, stop) + 1e-30)

        model = LanguageModel(
            init=lambda key: {"bet": jnp.full((4, 3), 0.5), "illegal": jnp.zeros(())},
            apply=lambda params, tokens, *, positions, mask: hide(tokens, tokens, mask),
            init_cache=lambda batch_size, length: jnp.zeros((batch_size, length), jnp.int32),
            extend=extend,
            logits=logits,
            value=None,
            vocab_size=size,
        )
        defaults = {"context_turns": 1, "prompt": False}
        return make_language_policy(
            environment, tokenizer=lambda words: tokenizer, model=lambda vocab_size: model, **defaults | options
        )

    return make
