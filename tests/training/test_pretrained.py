"""A run starts from a checkpoint of transformers, and no compiled program holds its weights."""

import math

import jax
import numpy as np
import pytest
import torch
import transformers
from jax.extend.core import ClosedJaxpr

from jaxagents.language.checkpoints import read
from jaxagents.language.checkpoints.read import load_language_model
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose as compose_run
from tests import ROOT

SIZES = {  # As many rows as the world has words.
    "vocab_size": 37,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(folder)
    return folder


def compose(folder, *overrides):
    sizes = ("collector.num_groups=4", "collector.group_size=2", "training.total_steps=8", "evaluation.num_episodes=2")
    model = (
        "model=huggingface",
        "tokenizer=word",
        f"model.path={folder}",
        "model.dtype=float32",
        "stages=[]",
        "name=tiny",
    )
    cache = "devices.compilation_cache=null"
    return compose_run(ROOT / "configs", "world=arithmetic", "algorithm=grpo", *sizes, *model, cache, *overrides)


def largest_constant(function, *arguments):
    """Returns the size of the largest array that a program holds itself, 0 where it holds none."""

    def sizes(program):
        yield from (np.size(constant) for constant in program.consts)
        for equation in program.jaxpr.eqns:
            for value in jax.tree.leaves(list(equation.params.values())):
                if isinstance(value, ClosedJaxpr):
                    yield from sizes(value)

    return max(sizes(jax.make_jaxpr(function)(*arguments)), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2])
def test_a_run_trains_the_checkpoint_and_compiles_none_of_it(folder, seeds):
    experiment = build(resolve(compose(folder, f"seeds={seeds}", "model.value_head=true", "advantage=gae_turn")))
    (stage,) = experiment.stages
    key = jax.random.key(3)
    weights = load_language_model(stage.policy.model.vocab_size, path=folder).init(key)["params"]
    state = stage.runner.init(3)
    params = jax.device_get(state.learner.params["params"])
    values = params.pop("value_layer")["Dense_0"]["kernel"]
    assert np.std(values) > 0.0
    if seeds > 1:
        assert np.any(values[0] != values[1])  # What no checkpoint holds is drawn anew for each.
    layers = [weights.pop(f"layers_{i}") for i in range(SIZES["num_hidden_layers"])]
    weights["layers"] = jax.tree.map(lambda *leaves: np.stack(leaves), *layers)

    def same(own, wanted):
        np.testing.assert_array_equal(own, wanted if seeds == 1 else np.stack([wanted] * seeds))

    jax.tree.map(same, params, weights)
    assert largest_constant(stage.policy.init, key) <= 1
    train = largest_constant(lambda state: stage.runner.run(state, 1), stage.runner.abstract)
    evaluate = largest_constant(stage.evaluate, stage.runner.abstract.learner.params)
    assert max(train, evaluate) < weights["embedding"].size  # Tables of the world are smaller.
    state, metrics = stage.runner.run(state, 1)
    assert np.all(metrics["train/gradient_norm"] > 0.0)
    after = jax.device_get(state.learner.params["params"]["layers"]["down"]["kernel"])
    assert np.all(np.isfinite(after)) and np.any(after != params["layers"]["down"]["kernel"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("learner", [(), ("learner=adapted",)], ids=["whole", "adapter"])
def test_tensors_go_straight_to_their_shards(folder, monkeypatch, learner):
    largest, read_part = {}, read._read_part

    def spy(part, *arguments, **named):
        block = read_part(part, *arguments, **named)
        largest[part.shape] = max(largest.get(part.shape, 0), block.size)
        return block

    on_mesh = ("devices=fsdp", "devices.num_devices=4", "optimizer.flatten=false")
    (stage,) = build(resolve(compose(folder, *on_mesh, *learner))).stages
    monkeypatch.setattr(read, "_read_part", spy)
    params = stage.runner.init(3).learner.params
    params = params["base"] if learner else params
    assert all(
        shard.data.size == leaf.size // 4 for leaf in jax.tree.leaves(params) for shard in leaf.addressable_shards
    )
    # No more of a tensor was ever read at once than one device holds of it: a quarter, of one layer.
    assert largest and all(4 * size <= math.prod(shape) for shape, size in largest.items())
    wanted = load_language_model(stage.policy.model.vocab_size, path=folder, scan_layers=True).init(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), jax.device_get(wanted))
