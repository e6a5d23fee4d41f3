"""Runs that begin with what an earlier run has learned."""

import jax
import numpy as np
import pytest

from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from jaxagents.training.launch import run
from jaxagents.training.load import load_policy
from jaxagents.training.starting import begin_from
from tests import CONFIGS

QUIET = [f"logging.{name}=false" for name in ("progress", "tensorboard", "curves", "report")]
CHOICES = ("world=tmaze", "algorithm=ppo", "policy=mlp", "policy.encoder.hidden_sizes=[8]", "quick=true")


@pytest.mark.slow
def test_a_run_begins_with_the_parameters_of_another(tmp_path):
    def composed(*overrides):
        return compose(CONFIGS, *CHOICES, "devices.compilation_cache=null", *QUIET, *overrides)

    earlier = tmp_path / "earlier"
    run(composed(), earlier)
    learned = load_policy(earlier).params
    experiment = begin_from(build(resolve(composed("seed=5"))), earlier)
    begun = experiment.stages[0].runner.init(5, 0).learner.params
    jax.tree.map(np.testing.assert_array_equal, begun, learned)
    fresh = build(resolve(composed("seed=5"))).stages[0].runner.init(5, 0).learner.params
    assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(fresh), jax.tree.leaves(learned), strict=True))
    two = begin_from(build(resolve(composed("seeds=2"))), earlier).stages[0].runner.init(0, 0).learner.params
    jax.tree.map(lambda both, one: np.testing.assert_array_equal(both, np.stack([one, one])), two, learned)
    with pytest.raises(
        ValueError, match=r"`start_from` must be a run of the same policy, .* is \[8, .* and not \[16, .*quick=false"
    ):
        begin_from(build(resolve(composed("policy.encoder.hidden_sizes=[16]"))), earlier)
    config = composed("seed=5", "start_from=" + str(earlier), "training.total_steps=4096")
    result = run(config, tmp_path / "later")
    assert result["status"] == "finished" and result["config_hash"] != build(resolve(composed("seed=5"))).digest
