"""Base agents and what GRPO adds to them: one base for all seeds, nothing trained twice, and the table."""

import pytest
import yaml

from jaxagents.papers import world_gains
from jaxagents.papers.world_gains import measure_gains
from jaxagents.training.store import holds, read_fields, write_record
from jaxagents.training.world_pages import GAIN_COLUMNS, gain_rows, write_world_table
from tests import CONFIGS, ROOT


@pytest.mark.parametrize("name", ["cartpole", "text_kuhn"])
def test_a_world_that_is_not_judged_by_episodes_in_words_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=f"`names` must be worlds in words whose episodes succeed or fail, got {name}"):
        next(measure_gains(CONFIGS, tmp_path, tmp_path, names=[name], seeds=[0]))


def test_the_table_has_means_over_seeds_and_what_was_gained(tmp_path):
    rows = [
        {
            "world": "bandit",
            "seed": seed,
            "num_episodes": 512,
            "base": {"success": 0.25, "episode_return": -0.5},
            "grpo": {"success": success, "episode_return": 2.0 * success},
            "minutes": {"clock": 3.0 + seed, "processors": 5.0},
            "base_minutes": {"clock": 1.0, "processors": 2.0} if seed == 0 else None,
        }
        for seed, success in ((0, 0.5), (1, 0.75))
    ]
    # 12.7062 standard errors of two seeds, 0.125: 1.588.
    shown = [
        "bandit",
        "0, 1",
        "512",
        "0.25",
        "0.625 (-0.963 to 2.21)",
        "0.375 (-1.21 to 1.96)",
        "-0.5, 1.25",
        "1.75 (-1.43 to 4.93)",
        "1.0",
        "4.0",
        "5.0",
    ]
    assert gain_rows(rows) == [shown]
    for row in rows:
        write_record(tmp_path / "grpo" / f"bandit-{row['seed']}.json", "x", row)
    lines = write_world_table(tmp_path).read_text().splitlines()
    assert f"| {' | '.join(GAIN_COLUMNS)} |" in lines and f"| `bandit` | {' | '.join(shown[1:])} |" in lines


@pytest.mark.exhaustive
def test_all_seeds_start_from_one_base_and_what_is_there_is_not_trained_again(tmp_path, monkeypatch):
    heard = []
    settings = {"names": ["bandit"], "num_episodes": 4, "overrides": ["quick=true"], "say": heard.append}
    places = (CONFIGS, tmp_path / "rows", tmp_path / "cache")
    first = next(measure_gains(*places, seeds=[0, 1], **settings))  # Killed before the second seed.
    assert len(heard) == 1 and first["base_minutes"]["clock"] > 0.0
    again, second = measure_gains(*places, seeds=[0, 1], **settings)
    assert again == first and len(heard) == 1 and second["seed"] == 1 and second["base_minutes"] is None
    assert second["base_params"] == first["base_params"] and second["base"] == first["base"]
    assert 0.0 <= second["grpo"]["success"] <= 1.0

    def refuse(*args, **options):
        raise AssertionError("It is there.")

    monkeypatch.setattr(world_gains, "train_seeds", refuse)
    assert [*measure_gains(*places, seeds=[0, 1], **settings)] == [first, second]
    with pytest.raises(AssertionError, match="It is there."):  # Other settings are other runs.
        next(measure_gains(*places, seeds=[0], **settings | {"base_seed": 1}))


@pytest.mark.exhaustive
def test_stored_rows_are_those_of_the_settings_of_today(monkeypatch):
    folder = ROOT / "experiments/results/worlds"
    rows = [read_fields(path) for path in sorted((folder / "grpo").glob("*.json"))]
    choices = yaml.safe_load((CONFIGS / "evaluate.yaml").read_text())["grpo"]["choices"]
    monkeypatch.setattr(world_gains, "kept", lambda path, asked, make: holds(path, asked))
    for episodes in sorted({row["num_episodes"] for row in rows}):  # The household was judged by half of them.
        names = sorted({row["world"] for row in rows if row["num_episodes"] == episodes})
        settings = {"names": names, "seeds": [0, 1, 2], "choices": choices, "num_episodes": episodes}
        assert all(measure_gains(CONFIGS, folder, "", **settings)), names
