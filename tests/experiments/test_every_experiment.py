"""Every experiment, and every world with every algorithm that fits it, runs from its config to its report."""

import json
import math

import pytest
from omegaconf import OmegaConf

from jaxagents.learners.settings import SettingsState
from jaxagents.reporting.loggers import read_metrics
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from jaxagents.training.launch import run
from jaxagents.training.listing import fitting_worlds
from jaxagents.training.stages import stage_configs
from tests import CONFIGS

FITS = fitting_worlds(CONFIGS)  # The worlds of each algorithm.
EXPERIMENTS = {path.stem: [f"experiment={path.stem}"] for path in sorted((CONFIGS / "experiment").glob("*.yaml"))}
COMPOSED = {f"{a}_{world}": [f"world={world}", f"algorithm={a}"] for a, worlds in FITS.items() for world in worlds}
TUNED = {name for name in EXPERIMENTS if name in COMPOSED}  # Of a pair: they are built, the other experiments run.

# Trained as desk, meeting, breakout and reacher are, in environments of adapters that contracts play: composed only.
ALIKE = (
    "chat",  # Trained in test_chat_runs.
    *("ant", "asterix", "craftax_classic", "freeway", "hopper", "seaquest", "walker2d"),
    *("bargaining", "carrying", "code_calls", "commons", "detection", "edit_streams", "errands", "hanabi", "market"),
    *("public_goods", "scene", "search_sets", "shop", "text_leduc"),
)


def _run_pairs():
    """Returns pairs with every algorithm of words and every world, and preferences in a game.

    Worlds are run with imitation, PPO, or the first algorithm that fits. All pairs are composed. Algorithms of arrays
    train and are evaluated in `training/test_array_runs.py`.
    """
    of_words = [name for name, worlds in FITS.items() if worlds and {*worlds} <= {*FITS["grpo"]}]
    quick = ("arithmetic", "bandit", "frozenlake")
    run = {("dpo", "text_kuhn")}
    for index, name in enumerate(of_words):
        places = [world for world in quick if world in FITS[name]]
        run.add((name, places[index % len(places)]))
    for world in sorted({world for worlds in FITS.values() for world in worlds} - {*ALIKE, *quick}):
        names = [name for name, worlds in FITS.items() if world in worlds]
        run.add((min(names, key=lambda name: (name != "sft", name != "ppo")), world))
    return {f"{algorithm}_{world}" for algorithm, world in run}


SHOWN = ("grpo_frozenlake", "ppo_breakout", "r2d2_tmaze", "sac_pendulum")  # Experiments of a pair that run.
RUN = sorted(_run_pairs() - {*SHOWN})


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


def test_every_world_fits_an_algorithm():
    worlds = {path.stem: path.read_text() for path in (CONFIGS / "world").glob("*.yaml")}
    # Simulators on the host need packages of their own, and have tests of their own.
    in_arrays = {name for name, text in worlds.items() if "override /collector: host" not in text}
    assert in_arrays == {world for names in FITS.values() for world in names}


@pytest.mark.parametrize(
    ("name", "choices"),
    [*EXPERIMENTS.items(), *(pytest.param(*item, marks=pytest.mark.exhaustive) for item in COMPOSED.items())],
)
def test_it_composes_under_its_name(name, choices):
    config = resolve(compose(CONFIGS, *choices, "quick=true"))
    assert config["name"] == name and config["run_dir"].startswith(f"runs/{name}/")
    for stage in stage_configs(config).values():
        assert stage["training"]["total_steps"] <= 2048 and stage["environment"]["_target_"]


@pytest.mark.parametrize("world", ["arithmetic", "frozenlake", "household", "text_tic_tac_toe"])
def test_an_algorithm_is_the_same_in_every_world(world):
    """What was tuned for both is an experiment."""
    plain = OmegaConf.to_container(OmegaConf.load(CONFIGS / "learner" / "policy_gradient.yaml"))
    assert OmegaConf.to_container(compose(CONFIGS, f"world={world}", "algorithm=grpo").learner) == plain


def test_what_was_tuned_for_a_pair_is_chosen_by_name():
    tuned = compose(CONFIGS, "experiment=grpo_frozenlake").learner
    assert tuned.num_minibatches == 2 and tuned.rewards.invalid.penalty == 0.1
    plain, tuned = (compose(CONFIGS, *choices) for choices in (COMPOSED["dqn_cartpole"], EXPERIMENTS["dqn_cartpole"]))
    assert (tuned.training.total_steps, plain.training.total_steps) == (60_000, 500_000)


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
        (["world=cartpole", "algorithm=pvp"], "`cost_to_go` must be chosen for .*; the algorithm fits world=quest."),
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
    with pytest.raises(ValueError, match=message) as error:
        build(resolve(compose(CONFIGS, *choices, "quick=true")))
    assert "\n" not in str(error.value)


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
    while path[0] not in _settings(state).numbers:
        state = state.inner
    assert state.settings.numbers[path[0]][path[1]].shape == ()


def _settings(state):
    return getattr(state, "settings", SettingsState(numbers={}, memory={}))


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
    while name not in _settings(state).memory:
        state = state.inner
    assert state.settings.memory[name].end.shape == ()


@pytest.mark.parametrize(
    "choices", [("algorithm=kto",), ("algorithm=grpo", "learner=adapted", "advantage=reinforce", "stages=[]")]
)
def test_an_episode_per_task_is_enough_where_none_are_compared(choices):
    build(resolve(compose(CONFIGS, "world=frozenlake", *choices, "quick=true", "when_quick.collector.group_size=1")))


@pytest.mark.usefixtures("memory_of_test")
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(TUNED))
def test_numbers_of_a_pair_fit_its_program(name):
    assert build(resolve(compose(CONFIGS, *EXPERIMENTS[name], "quick=true"))).stages


@pytest.mark.usefixtures("memory_of_test")
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*RUN, *(name for name in EXPERIMENTS if name not in TUNED or name in SHOWN)])
def test_it_trains_evaluates_and_reports(name, tmp_path):
    # Pictures take a second each, transcripts a program of their own: experiments have them.
    is_experiment = name not in RUN
    quiet = () if is_experiment else ("logging.curves=false", "logging.transcripts=false")
    choices = EXPERIMENTS[name] if is_experiment else COMPOSED[name]
    config = compose(CONFIGS, *choices, "quick=true", "devices.compilation_cache=null", *quiet)
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
    assert "<html" in report and ('class="curves"' in report) == is_experiment
