"""Every family gives what `transformers` gives: logits, greedy text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.language.checkpoints.read import load_language_model
from jaxagents.language.generate import Sampling, generate

torch = pytest.importorskip("torch", reason="needs the extra hf: PyTorch is compared with")
QUICK = ("llama3", "gemma3")
SLOW = ("gpt2", "llama2", "llama_biased", "qwen2", "qwen2_5_long", "qwen3", "gemma2")
NAMES = [*QUICK, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in SLOW)]
NEW = 8


def logits_of(model, params, tokens):
    rows, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length), (rows, length))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (rows, length, length))

    @jax.jit
    def compute(params):
        return model.logits(params, model.apply(params, jnp.asarray(tokens), positions=positions, mask=mask))

    return np.asarray(compute(params))


@pytest.mark.parametrize("family", NAMES)
def test_logits_and_greedy_text_are_those_of_transformers(saved, tokens, family):
    folder, theirs = saved(family)
    with torch.no_grad():
        inputs = torch.as_tensor(tokens)
        wanted = theirs(inputs).logits.numpy()
        text = theirs.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=NEW, do_sample=False, eos_token_id=None
        ).numpy()
    model = load_language_model(path=folder)
    params = model.init(jax.random.key(0))
    logits = logits_of(model, params, tokens)
    difference = np.abs(logits - wanted).max()
    print(f"{family}: largest difference of logits {difference:.1e} of {np.abs(wanted).max():.1f}")
    assert difference < 1e-4
    assert np.std(wanted) > 0.1  # A model that says the same everywhere would agree with anything.
    own = jax.jit(
        lambda params: generate(
            model,
            params,
            jnp.asarray(tokens),
            jnp.ones(tokens.shape, bool),
            keys=jax.random.split(jax.random.key(0), 2),
            max_new_tokens=NEW,
            sampling=Sampling(greedy=True),
        )
    )(params)
    np.testing.assert_array_equal(own.tokens, text[:, tokens.shape[1] :])
