"""Every experiment, and every world with every algorithm that fits it, runs from its config to its report."""

import json
import math

import pytest
from omegaconf import OmegaConf

from jaxagents.reporting.loggers import read_metrics
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from jaxagents.training.launch import run
from jaxagents.training.stages import stage_configs
from tests import CONFIGS

LANGUAGE = ("dapo", "grpo", "ppo", "reinforce", "rloo", "sft")
SELF_TRAINING = ("raft", "rest_em")
PREFERENCES = ("dpo", "ipo", "kto", "orpo", "rpo", "simpo", "spin")
TEAMS = ("dqn", "ppo", "qmix", "vdn")
CONTROL = ("crossq", "ddpg", "dreamer", "droq", "mbpo", "mpo", "pets", "redq", "sac", "sampled_muzero", "td3")
EXPLORATION = ("count_bonus", "e3b", "icm", "noveld", "rnd")
EVOLUTION = ("cma_es", "open_es", "pgpe")
GRADIENTS = ("a2c", "appo", "awr", "impala", "meta_gradients", "ppg", "ppo", "vmpo")
VALUES = ("c51", "dqn", "iqn", "munchausen_dqn", "noisy_dqn", "pqn", "qr_dqn", "rainbow")
MINATAR = ("asterix", "freeway", "seaquest", "space_invaders")
OFFLINE = ("awac", "bc", "cql", "dagger", "diffusion_policy", "gail", "iql", "rlpd", "td3_bc")
# World -> the algorithms that fit it.
PAIRS = {
    **dict.fromkeys(
        ("arithmetic", "bandit", "frozenlake", "household", "sokoban"), (*LANGUAGE, *SELF_TRAINING, *PREFERENCES)
    ),
    # Like those, and not tuned for each algorithm.
    **dict.fromkeys(("code", "countdown", "crafting", "guess_number", "lists"), ("grpo", "sft")),
    **dict.fromkeys(("brief", "mastermind", "screen", "screens", "search"), ("grpo", "sft")),
    **dict.fromkeys(("desk", "market", "prompts", "shop", "tools", "twentyq", "union"), ("grpo", "sft")),
    **dict.fromkeys(("code_calls", "edit_streams", "errands", "scene", "search_sets"), ("grpo", "sft")),
    # Of several seats.
    **dict.fromkeys(
        ("bargaining", "carrying", "commons", "hanabi", "meeting", "public_goods", "text_leduc"), ("grpo", "sft")
    ),
    # Values and demonstrations are those of one seat.
    **dict.fromkeys(("text_kuhn", "text_tic_tac_toe"), sorted({*LANGUAGE, *PREFERENCES} - {"ppo", "spin"})),
    "breakout": (*GRADIENTS, *VALUES),
    **dict.fromkeys(MINATAR, ("dqn", "ppo", "pqn", "qr_dqn")),
    **dict.fromkeys(("ant", "hopper", "walker2d"), ("ppo", "sac", "td3")),
    **dict.fromkeys(("craftax_classic", "xland"), ("ppo",)),
    "cartpole": (
        "bc",
        "dagger",
        "airl",
        "decision_transformer",
        "plain_dqn",
        "discrete_cql",
        "gail",
        "dreamer",
        "muzero",
        *EVOLUTION,
        *EXPLORATION,
        *GRADIENTS,
        *VALUES,
    ),
    "bernoulli_bandit": ("ppo", "rl2"),
    "cartpole_skills": ("diayn",),
    "gridworld": ("accel", "plr", "ppo", "robust_plr", "sfl"),
    "pendulum": (*CONTROL, *GRADIENTS, *OFFLINE),
    "craft": ("ppo", "rnd"),
    "craft_lands": ("envgen", "robust_plr"),
    "halls": ("count_bonus", "count_product", "count_product_normalized", "e3b_noveld", "ppo"),
    "quest": ("e3b", "e3b_noveld", "hg_dagger", "noveld", "ppo", "pvp", "q_shaping"),
    "quest_levels": ("dicode", "sfl", "xland"),
    "tabletop": ("bc", "ppo", "robofume", "sac"),
    "reacher": (*CONTROL, *GRADIENTS),
    **dict.fromkeys(("lbf", "lbf_pair", "overcooked", "spread", "tag", "two_step_game"), TEAMS),
    **dict.fromkeys(("connect_four", "tic_tac_toe"), ("alphazero", "dqn", "gumbel_alphazero", "ppo")),
    "smax_3m": ("ppo",),  # A policy with memory that has no Q-function.
    "tmaze": ("dqn", "ppo", "r2d2"),
}
SLOW_WORLDS = (
    *("craft", "craft_lands", "halls", "household", "quest", "quest_levels", "reacher", "sokoban", "text_tic_tac_toe"),
)
EXPERIMENTS = {path.stem: [f"experiment={path.stem}"] for path in sorted((CONFIGS / "experiment").glob("*.yaml"))}
COMPOSED = {f"{a}_{world}": [f"world={world}", f"algorithm={a}"] for world, names in PAIRS.items() for a in names}
EVERYTHING = COMPOSED | EXPERIMENTS
TUNED = {
    f"{algorithm}_{world}"
    for world, names in PAIRS.items()
    for algorithm in names
    if (CONFIGS / "tuned" / "pair" / f"{world}_{algorithm}.yaml").exists()
}

# Trained as desk, meeting, breakout and reacher are, in environments of adapters that contracts play: composed only.
ALIKE = (
    *("ant", "asterix", "craftax_classic", "freeway", "hopper", "seaquest", "walker2d"),
    *("bargaining", "carrying", "code_calls", "commons", "edit_streams", "errands", "hanabi", "market"),
    *("public_goods", "scene", "search_sets", "shop", "text_leduc"),
)


def _run_pairs():
    """Returns pairs with every world and every algorithm of words, and preferences in a game.

    An algorithm is run where fewest others are, and in a world that takes long to compile only if it has no other. A
    world that no algorithm was given is run with imitation, or with its least used algorithm. All pairs are composed.
    Algorithms of arrays train and are evaluated in `training/test_array_runs.py`.
    """
    algorithms = sorted({*LANGUAGE, *SELF_TRAINING, *PREFERENCES})
    run, uses = set(), dict.fromkeys([*PAIRS, *(name for names in PAIRS.values() for name in names)], 0)

    def choose(world, algorithm):
        run.add((world, algorithm))
        uses[world] += 1
        uses[algorithm] += 1

    for algorithm in algorithms:
        fitting = [world for world in PAIRS if algorithm in PAIRS[world]]
        choose(min(fitting, key=lambda world: (world in SLOW_WORLDS, world in ALIKE, uses[world])), algorithm)
    for world in (world for world in PAIRS if not uses[world] and world not in ALIKE):
        choose(world, min(PAIRS[world], key=lambda name: (name != "sft", uses[name])))
    return {f"{algorithm}_{world}" for world, algorithm in run} | {"dpo_text_kuhn"}


RUN = _run_pairs()

pytestmark = pytest.mark.usefixtures("memory_of_test")


def _surrogate(width):
    target = "jaxagents.losses.policy_gradient.clipped_surrogate"
    return f"{{_target_: {target}, _partial_: true, clip_epsilon: {width}}}"


def _falling(start):
    return f"{{_target_: jaxagents.ops.schedules.linear_schedule, start: {start}, end: 0.0}}"


_ENTROPY = (
    "+learner.regularizers.entropy={_target_: jaxagents.losses.regularizers.entropy_bonus, _partial_: true, "
    f"coefficient: {_falling(0.01)}}}"
)


def _huber(delta):
    return f"{{_target_: jaxagents.losses.value.huber_loss, _partial_: true, delta: {delta}}}"


def test_every_world_and_algorithm_is_in_the_table():
    worlds = {path.stem: path.read_text() for path in (CONFIGS / "world").glob("*.yaml")}
    # Simulators on the host need packages of their own, and have tests of their own.
    assert {name for name, text in worlds.items() if "override /collector: host" not in text} == set(PAIRS)
    algorithms = {path.stem for path in (CONFIGS / "algorithm").glob("*.yaml")}
    assert algorithms == {name for names in PAIRS.values() for name in names} | {
        "co_rft",  # In worlds of chunks.
        "mansa",  # In worlds of calls.
    }
    for path in (CONFIGS / "tuned" / "pair").glob("*.yaml"):
        assert any(path.stem == f"{world}_{name}" for world in PAIRS for name in algorithms), path.stem
    assert {path.stem for path in (CONFIGS / "tuned" / "policy_gradient").glob("*.yaml")} <= set(PAIRS)


@pytest.mark.parametrize(
    "name", [*EXPERIMENTS, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in COMPOSED)]
)
def test_it_composes_under_its_name(name):
    config = resolve(compose(CONFIGS, *EVERYTHING[name], "quick=true"))
    assert config["name"] == name and config["run_dir"].startswith(f"runs/{name}/")
    for stage in stage_configs(config).values():
        assert stage["training"]["total_steps"] <= 2048 and stage["environment"]["_target_"]


_WITHOUT_POLICY_GRADIENT = {
    **dict.fromkeys(PREFERENCES, ("preference",)),
    **dict.fromkeys(SELF_TRAINING, ("supervised", "iterated")),  # The second one builds on the first.
}


@pytest.mark.parametrize(
    ("world", "algorithm"), [(w, a) for w, names in PAIRS.items() for a in names if a in _WITHOUT_POLICY_GRADIENT]
)
def test_worlds_give_others_no_numbers_of_policy_gradients(world, algorithm):
    files = [OmegaConf.load(CONFIGS / "learner" / f"{name}.yaml") for name in _WITHOUT_POLICY_GRADIENT[algorithm]]
    documented = {str(key) for file in files for key in file} - {"defaults"}
    assert set(compose(CONFIGS, f"world={world}", f"algorithm={algorithm}").learner) == documented


@pytest.mark.parametrize("learner", ["policy_gradient", "interleaved", "partnered", "progress"])
def test_numbers_of_a_world_reach_every_policy_gradient(learner):
    """But no learner of another stage."""
    config = compose(CONFIGS, "world=frozenlake", "algorithm=grpo", f"learner={learner}")
    assert config.learner.num_minibatches == 2 and config.learner.rewards.invalid.penalty == 0.1
    assert compose(CONFIGS, "world=frozenlake", "algorithm=dapo", f"learner={learner}").learner.num_minibatches == 4
    assert compose(CONFIGS, "world=bandit", "algorithm=grpo", f"learner={learner}").learner.num_minibatches == 1
    assert "num_minibatches" not in config.warm_start.learner


def test_what_is_tuned_for_a_pair_is_there_in_this_pair_alone():
    tuned, other = (resolve(compose(CONFIGS, "world=cartpole", f"algorithm={name}")) for name in ("dqn", "ppo"))
    assert (tuned["training"]["total_steps"], tuned["collector"]["num_envs"]) == (60_000, 8)
    assert (other["training"]["total_steps"], other["collector"]["num_envs"]) == (500_000, 4)


@pytest.mark.parametrize(
    "environment", ["cartpole", "tmaze", "pendulum", pytest.param("mpe_spread", marks=pytest.mark.exhaustive)]
)
def test_nothing_leaks_into_an_environment_that_is_named_alone(environment):
    config = resolve(compose(CONFIGS, f"environment={environment}", "quick=true"))
    assert config["name"] == f"ppo_{environment}"
    assert build(config).stages[0].environment.text is None


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (["world=frozenlake", "algorithm=dqn"], "`environment` must be of arrays .*, got frozenlake, .* in words; try"),
        (["world=frozenlake", "algorithm=sac"], "`environment` must be of arrays .*, got frozenlake, .* in words; try"),
        (["environment=frozenlake"], "`environment` must be of arrays .*, got frozenlake, .* in words; try"),
        (
            ["environment=gridworld"],
            r"`encoder` must give one row .* of shape \(8, 8, 3\), got .* \(8, 8, 64\); try policy=grid",
        ),
        (["world=frozenlake"], "`advantage` must be chosen for `learner.advantage`, got nothing; .* algorithm=grpo"),
        (
            ["world=frozenlake", "algorithm=rloo", "when_quick.collector.group_size=1"],
            "`collector.group_size` must be at least 2 for advantage=rloo, .* got 1; try collector.group_size=8",
        ),
        (
            ["world=frozenlake", "algorithm=rloo", "learner=adapted", "when_quick.collector.group_size=1"],
            "`collector.group_size` must be at least 2 for advantage=rloo, .* got 1; try collector.group_size=8",
        ),
        (
            ["world=frozenlake", "algorithm=grpo", "learner=seats"],
            "`environment` must have several seats for an adapter each, got one in 'frozenlake'; try learner=adapted",
        ),
        (
            ["world=text_kuhn", "algorithm=grpo", "learner=seats", "+adapter@learner.adapters.seat_2=lora"],
            "`adapters` must be of seats of 'kuhn_poker', seat_0, seat_1, got seat_2",
        ),
        (
            ["world=frozenlake", "algorithm=dpo", "when_quick.collector.group_size=1"],
            "`collector.group_size` must be at least 2 for pairs=success_against_failure, .* algorithm=kto",
        ),
        (
            [
                *("world=bandit", "algorithm=sft", "tokenizer=bytes", "learner@warm_start.learner=adapted"),
                *("collector@warm_start.collector=transcripts", "warm_start.collector.paths=[chat.jsonl]"),
                *("~when_quick.warm_start.collector",),
            ],
            "`learner` must imitate transcripts, got policy gradients; try learner=supervised, or .*inner=supervised",
        ),
        (["world=cartpole", "algorithm=grpo"], "`environment` must be in words .*, got CartPole-v1; try"),
        (["world=cartpole", "algorithm=dpo"], "`environment` must be in words .*, got CartPole-v1; try"),
        (
            ["world=text_kuhn", "algorithm=spin"],
            "`collector` must have keys that .* got partner, .* ~collector.partner",
        ),
        (["world=cartpole", "algorithm=sft"], "`warm_start` must be chosen for .*, got nothing"),
        (["world=cartpole", "algorithm=sac"], "`action_space` must be a Box of rank 1, got Discrete"),
        (["world=pendulum", "algorithm=dqn"], "`action_space` must be Discrete, got Box"),
        (["world=cartpole", "algorithm=iql"], "`action_space` must be a Box of rank 1, got Discrete"),
        (["world=pendulum", "algorithm=discrete_cql"], "`action_space` must be Discrete, got Box"),
        (["world=cartpole", "algorithm=pvp"], "`cost_to_go` must be chosen for .*, got nothing"),
        (["world=cartpole", "algorithm=q_shaping"], "`advice` must be chosen for .*, got nothing"),
        (["world=reacher", "algorithm=bc"], "`demonstrator` must be chosen for .*, got nothing"),
        (["world=pendulum", "algorithm=alphazero"], "`action_space` must be Discrete for a tree search"),
        (["world=cartpole", "algorithm=ppo", "evaluation=search"], "`environment` must be a game that one agent plays"),
        (
            ["world=cartpole", "algorithm=ppo", "evaluation=model_search"],
            "`collector.num_simulations` must be chosen for .*, got nothing; an evaluation that plans",
        ),
        (
            ["environment=tic_tac_toe", "algorithm=alphazero", "policy=grid_mlp"],
            "`environment` must have one stream of rewards, got 2",
        ),
        (
            ["world=tic_tac_toe", "algorithm=alphazero", "when_quick.collector.num_simulations=0"],
            "`num_simulations` must be at",
        ),
        (["world=cartpole", "algorithm=qmix"], "`num_agents` must be at least 1, got 0; try `learner=dqn`"),
        (["world=spread", "algorithm=mansa"], "`environment` must have actions that call the central learner"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(choices, message):
    with pytest.raises(ValueError, match=message) as told:
        build(resolve(compose(CONFIGS, *choices, "quick=true")))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("choices", "path"),
    [
        (["world=cartpole", "algorithm=ppo", f"learner.loss={_surrogate(0.3)}"], ("loss", "clip_epsilon")),
        (["world=cartpole", "algorithm=dqn", f"learner.loss={_huber(0.3)}"], ("loss", "delta")),
        (["world=cartpole", "algorithm=appo", f"learner.loss={_surrogate(0.3)}"], ("loss", "clip_epsilon")),
    ],
)
def test_losses_are_chosen_on_the_command_line_and_their_numbers_are_arrays(choices, path):
    state = build(resolve(compose(CONFIGS, *choices, "quick=true"))).stages[0].runner.abstract.learner
    while not hasattr(state, "slots"):
        state = state.inner
    assert state.slots[path[0]][path[1]].shape == ()


@pytest.mark.parametrize(
    ("choices", "name"),
    [
        (["world=cartpole", "algorithm=ppo", f"learner.entropy_coefficient={_falling(0.02)}"], "entropy_coefficient"),
        (["world=cartpole", "algorithm=dqn", "learner.epsilon.end=0.1"], "epsilon"),
        (["world=cartpole", "algorithm=pqn"], "epsilon"),
        (["world=cartpole", "algorithm=ppo", f"learner.loss={_surrogate(_falling(0.3))}"], "loss.clip_epsilon"),
        (["world=pendulum", "algorithm=sac", f"learner.target_entropy={_falling(-2.0)}"], "target_entropy"),
        (["world=cartpole", "algorithm=rainbow"], "importance_exponent"),
        (["world=bandit", "algorithm=grpo", "stages=[]", _ENTROPY], "regularizer/entropy.coefficient"),
    ],
)
def test_schedules_are_chosen_on_the_command_line(choices, name):
    """The memory of one is an array of the state: another number is the same program."""
    state = build(resolve(compose(CONFIGS, *choices, "quick=true"))).stages[0].runner.abstract.learner
    while name not in state.memory:
        state = state.inner
    assert state.memory[name].end.shape == ()


@pytest.mark.parametrize(
    "choices", [("algorithm=kto",), ("algorithm=grpo", "learner=adapted", "advantage=reinforce", "stages=[]")]
)
def test_an_episode_per_task_is_enough_where_none_are_compared(choices):
    build(resolve(compose(CONFIGS, "world=frozenlake", *choices, "quick=true", "when_quick.collector.group_size=1")))


def test_a_policy_of_teams_with_memory_has_no_mixture():
    with pytest.raises(ValueError, match="`value` must be feed-forward .*, got one with .*; try policy=mlp"):
        build(resolve(compose(CONFIGS, "world=smax_3m", "algorithm=qmix", "quick=true")))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(TUNED - RUN))
def test_numbers_of_a_pair_fit_its_program(name):
    assert build(resolve(compose(CONFIGS, *EVERYTHING[name], "quick=true"))).stages


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in EVERYTHING if name in RUN or name in EXPERIMENTS])
def test_it_trains_evaluates_and_reports(name, tmp_path):
    # Pictures take a second each, transcripts a program of their own: experiments have them.
    quiet = () if name in EXPERIMENTS else ("logging.curves=false", "logging.transcripts=false")
    config = compose(CONFIGS, *EVERYTHING[name], "quick=true", "devices.compilation_cache=null", *quiet)
    result = run(config, tmp_path)
    assert (result["experiment"], result["run_dir"]) == (name, str(tmp_path))
    assert json.loads((tmp_path / "result.json").read_text())["evaluation"] == result["evaluation"]
    evaluation = result["evaluation"]
    assert "episode_return" in evaluation and all(math.isfinite(value) for value in evaluation.values())
    rows = read_metrics(tmp_path)
    losses = {name: row[name] for row in rows for name in row if name.startswith("train/") and name.endswith("loss")}
    assert losses and all(math.isfinite(loss) for loss in losses.values())
    assert rows[-1]["step"] == result["steps"] > 0
    checkpoints = {path.parent.name for path in (tmp_path / "checkpoints").rglob("last")}
    stages = [stage["name"] for stage in config.stages]
    assert checkpoints == (set(stages) if len(stages) > 1 else {"checkpoints"})
    report = (tmp_path / "report.html").read_text()
    assert "<html" in report and ('class="curves"' in report) == (name in EXPERIMENTS)
