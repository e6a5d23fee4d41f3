"""Algorithms that are compositions of options: their commands are traced, from playing to the step of the optimiser."""

import pathlib

import jax
import pytest

from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose

CONFIGS = pathlib.Path(__file__).resolve().parent.parent.parent / "configs"
STEPS = ["collector=stepwise", "collector.num_groups=4"]
SHORT = "+learner.rewards.length={_target_: jaxagents.ops.length_rewards.group_length, _partial_: true}"
COMMANDS = {
    "vineppo": ["algorithm=rloo", *STEPS, "verifier@collector.verifier=outcome"],
    "prime": ["algorithm=rloo", "learner=implicit_rewards", "advantage=rloo_turn", "advantage.discount=1.0"],
}
BUILT = {
    "eto": ["algorithm=spin", "pairs=expert_against_failures"],
    "luffy": ["algorithm=grpo", "learner=demonstrated", "collector=demonstrated", "loss=luffy"],
    "step_dpo": ["algorithm=dpo", "pairs=best_against_others", *STEPS],
    "reinforce_plus_plus": ["algorithm=grpo", "advantage=reinforce_plus_plus", "learner.reference=true"],
    "expert_iteration": ["algorithm=rest_em", "learner.restart=false"],
    "gspo": ["algorithm=grpo", "loss=gspo"],
    "opo": ["algorithm=grpo", "advantage=opo"],
    "dr_grpo": ["algorithm=grpo", "advantage=dr_grpo", "aggregation=constant", SHORT],
    "star": ["algorithm=rest_em", "collector.group_size=1"],
}


def composed(*choices):
    return resolve(compose(CONFIGS, "world=frozenlake", *choices, "stages=[]", "quick=true"))


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT)
def test_choices_fit_together(name):
    assert composed(*BUILT[name])["learner"]["_target_"].startswith("jaxagents.learners.")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_chunk_of_updates_can_be_traced(name):
    runner = build(composed(*COMMANDS[name])).stages[-1].runner
    before, (after, metrics) = runner.abstract, jax.eval_shape(lambda state: runner.run(state, 1), runner.abstract)
    assert jax.tree.map(lambda leaf: leaf.shape, after.learner) == jax.tree.map(lambda leaf: leaf.shape, before.learner)
    assert metrics
