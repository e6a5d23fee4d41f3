"""The table of worlds: experts and random actions where the chances are known, and agents where they were trained."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.bandit import make_environment
from jaxagents.training import world_suite
from jaxagents.training.composition import compose
from jaxagents.training.launch import run
from jaxagents.training.world_pages import write_world_pages, write_world_table
from jaxagents.training.world_suite import evaluate_worlds, make_scripted, newest_run, print_worlds
from tests import CONFIGS


def test_experts_always_pull_the_best_arm_and_random_actions_one_of_them():
    environment = make_environment(num_arms=(2, 4), min_gaps=(0.0, 0.0))
    play = jax.jit(make_scripted(environment, num_episodes=1024, held_out=True))
    for level, arms in enumerate((2, 4)):
        expert, drawn = np.asarray(play(jax.random.key(1), level)).mean(axis=1)
        assert expert == 1.0
        # Four standard errors of 1,024 draws are at most 0.0625.
        assert abs(drawn - 1 / arms) < 0.0625


def test_a_world_that_is_not_in_words_is_refused():
    for name in ("cartpole", "text_kuhn"):
        with pytest.raises(ValueError, match=f"`names` must be worlds in words with one seat, got {name}; try"):
            next(evaluate_worlds(CONFIGS, names=[name]))


def test_worlds_that_were_played_with_the_same_settings_are_not_played_again(tmp_path, monkeypatch):
    played = []

    def half_of_them(environment, *, num_episodes, held_out):
        played.append(environment.name)
        return lambda key, level: jnp.stack([jnp.ones(num_episodes, bool), jnp.arange(num_episodes) % 2 == 0])

    monkeypatch.setattr(world_suite, "make_scripted", half_of_them)
    names, kept = ["bandit", "guess_number"], {"folder": tmp_path / "kept", "num_episodes": 4}
    first = next(evaluate_worlds(CONFIGS, names=names, **kept))  # Killed after the first world.
    rows = [*evaluate_worlds(CONFIGS, names=names[:1], **kept), *evaluate_worlds(CONFIGS, names=names, **kept)]
    assert [row["world"] for row in rows] == ["bandit", *names] and rows[0] == rows[1] == first
    assert played == ["bandit", "guess_number"]
    assert [*evaluate_worlds(CONFIGS, names=names, folder=kept["folder"], num_episodes=8)][0]["random"]["mean"] == 0.5
    assert len(played) == 4
    lines = write_world_table(kept["folder"]).read_text().splitlines()
    assert "| world | level | expert | random |" in lines and sum("guess_number" in line for line in lines) == 1


def test_the_newest_run_of_a_folder_is_taken(tmp_path):
    assert newest_run(tmp_path) is None
    for number, name in enumerate(("b", "a")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.yaml").write_text("")
        pathlib.os.utime(folder / "config.yaml", (number, number))
    assert newest_run(tmp_path) == tmp_path / "a"
    assert newest_run(tmp_path / "b") == tmp_path / "b"


@pytest.mark.exhaustive
def test_agents_are_shown_in_the_world_that_they_were_trained_in(tmp_path, capsys):
    overrides = ["world=bandit", "algorithm=sft", "quick=true", "devices.compilation_cache=null"]
    run(compose(CONFIGS, *overrides), tmp_path / "sft_bandit" / "first")
    agents = {"sft": f"{tmp_path}/sft_{{world}}", "other": f"{tmp_path}/none"}
    rows = [*evaluate_worlds(CONFIGS, names=["bandit", "guess_number"], agents=agents, num_episodes=8)]
    assert [(row["world"], row["level"]) for row in rows] == [("bandit", 0), ("guess_number", 0)]
    assert 0.0 <= rows[0]["sft"]["mean"] <= 1.0 and rows[0]["other"] is None
    assert rows[1]["sft"] is None and rows[1]["expert"]["mean"] == 1.0
    capsys.readouterr()
    print_worlds(rows)
    printed = capsys.readouterr().out
    pages = [path.read_text() for path in write_world_pages(tmp_path / "pages", CONFIGS, rows)]
    assert [page.splitlines()[0] for page in pages] == ["# bandit", "# guess_number"]
    assert "| level | expert | random | sft | other |" in pages[0] and "agent: " in pages[0]
    assert "largest=[15]" in pages[1] and "reward of the last turn: 1.0" in pages[1]
    assert "guess_number" in printed and "random" in printed
