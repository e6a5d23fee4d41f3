"""What goes together: checkpoints and their own tokens, worlds and splits that leave tasks on both sides."""

import json

import jax.numpy as jnp
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from jaxagents.training.fitting import read_variables, require_fit, require_tasks, to_plain
from jaxagents.types import EpisodeView, Stateful, TokenStatistics
from tests import CONFIGS

GPT2 = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 64, "layer_norm_epsilon": 1e-5}


def test_variables_of_the_environment_are_read_and_not_written(monkeypatch):
    monkeypatch.setenv("A_TOKEN", "secret, 'quoted'")
    written = {
        "environment": {"_target_": "a", "token": "${oc.env:A_TOKEN}", "url": "http://x/${oc.env:A_TOKEN}?${name}"},
        "other": "${environment.token}",
        "fallback": "${oc.env:NOT_THERE,${oc.env:A_TOKEN,/tmp}/x}",
        "name": "run",
        "run_dir": "/runs/${oc.env:A_TOKEN}",
    }
    plain = to_plain(OmegaConf.create(written))
    assert plain["run_dir"] == "/runs/secret, 'quoted'"  # Where it is, is no secret.
    assert "secret" not in str({name: node for name, node in plain.items() if name != "run_dir"})
    read = read_variables(plain)
    token = "secret, 'quoted'"
    assert read["environment"] == {"_target_": "a", "token": token, "url": f"http://x/{token}?run"}
    assert (read["other"], read["fallback"]) == (token, f"{token}/x")
    assert OmegaConf.create({"a": "${oc.env:A_TOKEN}"}).a == token  # As before, elsewhere.
    assert read_variables({"name": "run"}) == {"name": "run"}


def config_of(folder, tokenizer):
    policy = {
        "_target_": "jaxagents.language.policy.make_language_policy",
        "model": {"_target_": "jaxagents.language.checkpoints.read.load_language_model", "path": str(folder)},
        "tokenizer": {"_target_": f"jaxagents.language.tokenizers.{tokenizer}", "_partial_": True},
    }
    return {"learner": {"policy": policy}, "collector": {}}


@pytest.mark.parametrize(
    ("rows", "files", "message"),
    [
        (512, ["tokenizer.json"], "got 'byte_level' of 261 tokens for .* with 512, .* try tokenizer=huggingface, or"),
        (261, ["tokenizer.json"], "got 'byte_level' of 261 tokens for .* with 261, .* try tokenizer=huggingface, or"),
        (512, [], "got 'byte_level' of 261 tokens for .* with 512, .* try copying tokenizer.json of the model there"),
    ],
)
def test_bytes_over_the_rows_of_other_tokens_are_refused(lake, tmp_path, rows, files, message):
    (tmp_path / "config.json").write_text(json.dumps(GPT2 | {"vocab_size": rows}))
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=f"`tokenizer` must be that of the checkpoint, {message}") as raised:
        require_fit(config_of(tmp_path, "byte_level"), lake)
    assert "\n" not in str(raised.value)
    config = config_of(tmp_path, "byte_level")
    require_fit(
        {**config, "learner": {**config["learner"], "source": str(tmp_path)}}, lake
    )  # learner=chat brings its own.


def test_an_exported_model_of_bytes_goes_on_with_bytes(lake, tmp_path):
    # As written: a tokenizer of ours is no file.
    (tmp_path / "config.json").write_text(json.dumps(GPT2 | {"vocab_size": 261}))
    require_fit(config_of(tmp_path, "byte_level"), lake)
    with pytest.raises(ValueError, match="`tokenizer` must be that of the checkpoint, got 'word_level' of"):
        require_fit(config_of(tmp_path, "word_level"), lake)


def test_options_that_leave_no_task_on_one_side_are_refused_where_a_run_is_built():
    chosen = ["world=guess_number", "algorithm=grpo", "environment.largest=[15]", "environment.num_starts=1"]
    message = "must leave level 0 of 'guess_number' tasks on both sides, got 0.001 and all of 1024"
    with pytest.raises(ValueError, match=message):
        build(resolve(compose(CONFIGS, *chosen, "environment.held_out_fraction=0.001")))
    judged = "jaxagents.environments.text.guess_number.make_environment"
    judged = f"evaluation.environment={{_target_: {judged}, largest: [15], num_starts: 1, held_out_fraction: 0.001}}"
    with pytest.raises(ValueError, match=message):
        build(resolve(compose(CONFIGS, *chosen, judged)))


def test_worlds_without_a_split_of_their_own_are_left_alone(lake):
    require_tasks(None, lake)
    require_tasks({"sizes": [4]}, lake)


def fits_groups_of_one(slot, node, lake):
    target = "jaxagents.language.collect.make_dialogue_collector"
    learner = {"policy": {"_target_": "jaxagents.language.policy.make_language_policy", "model": {}}, slot: node}
    try:
        require_fit({"learner": learner, "collector": {"_target_": target, "group_size": 1}}, lake)
    except ValueError as error:
        assert f"`collector.group_size` must be at least 2 for {slot}={node['_target_'].split('.')[-1]}" in str(error)
        return False
    return True


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONFIGS / "advantage").glob("*.yaml")))
def test_advantages_that_are_zero_in_groups_of_one_are_refused_there(name, lake, make_episode):
    node = OmegaConf.to_container(OmegaConf.load(CONFIGS / "advantage" / f"{name}.yaml"))
    node |= {"discounts": [0.99]} if name == "reinforce_by_seat" else {}  # This episode has one seat.
    episode = make_episode([[1.0, 2.0], [0.5, 0.0]], [[2, 1], [3, 0]], group=[0, 1])
    episode = episode.replace(fingerprint=jnp.arange(4, dtype=jnp.uint32).reshape(2, 2))  # No state comes again.
    ones, halves = (jnp.full(episode.tokens.shape, value) for value in (1.0, 0.5))
    statistics = TokenStatistics(log_prob=-ones * jnp.arange(1.0, 3.0)[:, None, None], value=halves)
    view = EpisodeView(episode=episode, policy=statistics, reference=TokenStatistics(log_prob=-halves))
    estimator = instantiate(node)
    credit = estimator.apply(estimator.init(1), view)[0] if isinstance(estimator, Stateful) else estimator(view)
    assert fits_groups_of_one("advantage", node, lake) == bool(jnp.any(credit.advantage != 0.0))


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONFIGS / "pairs").glob("*.yaml")))
def test_pairs_of_a_group_are_refused_in_groups_of_one(name, lake):
    node = OmegaConf.to_container(OmegaConf.load(CONFIGS / "pairs" / f"{name}.yaml"))
    assert fits_groups_of_one("pairs", node, lake) == name.startswith("expert_")
