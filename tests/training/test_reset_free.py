"""Practice without resets as it is configured: a judge from demonstrations, and prior data in the same buffer."""

import jax
import pytest

from jaxagents.ops.packing import unpack_rows
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from tests import CONFIGS

PLAYED = (
    "{_target_: jaxagents.rollouts.demonstrations.make_demonstrations, environment: '${environment}', "
    "behavior: '${demonstrator}', num_rows: 4, num_steps: 64}"
)
JUDGE = f"{{_target_: jaxagents.learners.robofume.make_success_judge, dataset: {PLAYED}, num_updates: 2}}"
WITH_RETURNS = f"{{_target_: jaxagents.data.datasets.make_dataset_with_returns, dataset: {PLAYED}}}"
PRACTICE = ("world=tabletop", "algorithm=rlpd", "collector=reset_free", "quick=true", f"collector.judge={JUDGE}")


def build_with(*overrides):
    return build(resolve(compose(CONFIGS, *PRACTICE, *overrides)))


@pytest.mark.slow
def test_practice_is_judged_and_shares_its_buffer_with_prior_data():
    (stage,) = build_with("~learner.buffer.dataset", f"+learner.buffer.dataset={WITH_RETURNS}").stages
    for kept in stage.runner.abstract.learner.buffer:  # What is played, and prior data.
        assert "return_to_go" in jax.eval_shape(unpack_rows, kept.experience).extras


@pytest.mark.slow
def test_prior_data_without_returns_are_refused():
    with pytest.raises(ValueError, match="must have the arrays that rollouts have, got .*return_to_go.* missing"):
        build_with()
