"""How many lines an algorithm is: its file, and the definitions that hardly any other algorithm's file reaches."""

import ast
import pathlib
import statistics

import pytest

from jaxagents.papers.closure import _parse, find_targets, reach
from jaxagents.training.build import resolve
from jaxagents.training.composition import compose

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
PARTS = ("learner", "collector", "evaluation", "optimizer", "policy", "value", "preference", "task_source")
# A world that fits; cartpole fits most.
WORLDS = {
    "pendulum": "awac bc cql crossq ddpg diffusion_policy droq hg_dagger iql mbpo mpo pets pgpe redq rlpd sac "
    "sampled_muzero td3 td3_bc",
    "frozenlake": "dapo dpo grpo ipo kto orpo raft reinforce rest_em rloo rpo sft simpo spin",
    "gridworld": "accel plr robust_plr sfl",
    "quest": "e3b e3b_noveld hg_dagger noveld pvp q_shaping",
    "quest_levels": "dicode xland",
    "craft_lands": "envgen",
    "halls": "count_product",
    "cartpole_skills": "diayn",
    "bernoulli_bandit": "rl2",
    "tic_tac_toe": "alphazero gumbel_alphazero",
    "two_step_game": "mansa qmix vdn",
    "tmaze": "r2d2",
    "tabletop": "co_rft robofume",
}
WORLD_OF = {name: world for world, names in WORLDS.items() for name in names.split()}
MORE = {"co_rft": ["environment=tabletop_chunks"], "mansa": ["environment=two_step_game_calls"]}
CODE = ("learners", "losses", "ops", "policies", "values", "search", "networks", "language", "data", "rollouts")


def count_lines(statement, source):
    """Counts the lines of a statement that have code, without docstrings, comments and blank lines."""
    begin = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", []))])
    lines = set(range(begin, statement.end_lineno + 1))
    for node in ast.walk(statement):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return sum(bool(source[line - 1].split("#")[0].strip()) for line in lines)


def definitions_of(algorithm):
    """Returns the definitions that the parts of an algorithm reach, apart from environments and the machinery."""
    choices = [f"world={WORLD_OF.get(algorithm, 'cartpole')}", *MORE.get(algorithm, ())]
    config = resolve(compose(CONFIGS, *choices, f"algorithm={algorithm}"))
    found, _ = reach(set(find_targets({name: config.get(name) for name in PARTS})))
    return {(module, name) for module, name in found if module.split(".")[1] in CODE}


def lines_of_algorithms(most=1):
    """Returns lines by algorithm: of its file, and of the definitions that at most `most` algorithms reach."""
    names = sorted(path.stem for path in (CONFIGS / "algorithm").glob("*.yaml"))
    reached = {name: definitions_of(name) for name in names}
    users = {each: sum(each in other for other in reached.values()) for each in set().union(*reached.values())}
    counts = {}
    for name in names:
        text = (CONFIGS / "algorithm" / f"{name}.yaml").read_text().splitlines()
        code = 0
        for module, definition in (each for each in reached[name] if users[each] <= most):
            source = (ROOT / (module.replace(".", "/") + ".py")).read_text().splitlines()
            code += sum(count_lines(statement, source) for statement in _parse(module).definitions.get(definition, ()))
        counts[name] = sum(bool(line.split("#")[0].strip()) for line in text), code
    return counts


def test_lines_are_counted_without_docstrings_comments_and_blanks():
    source = ["@decorator", "def f(x):", '    """Says', '    so."""', "", "    # why", "    return (", "        x)"]
    assert count_lines(ast.parse("\n".join(source)).body[0], source) == 4


@pytest.mark.slow
def test_the_median_algorithm_has_at_most_sixty_lines_of_its_own():
    counts = {name: sum(each) for name, each in lines_of_algorithms().items()}
    assert statistics.median(counts.values()) <= 60, counts
