"""Tests of the benchmark of games."""

import pytest
from omegaconf import OmegaConf

from jaxagents.benchmarks import suites
from jaxagents.benchmarks.games import METHODS, cfr_subject, exploitability_of
from jaxagents.benchmarks.peers.openspiel import openspiel_subject
from jaxagents.games.definitions.kuhn import kuhn
from jaxagents.games.extensive_form import compile_game
from tests import CONFIGS


def test_subjects_count_iterations():
    game = compile_game(kuhn())
    mine = cfr_subject("mine", game, METHODS["cfr_plus"](), num_iterations=20)
    theirs = openspiel_subject("theirs", "kuhn_poker", num_iterations=5)
    assert [mine.run(), theirs.run()] == [20, 5]
    assert mine.compile_seconds > 0.0 and theirs.compile_seconds == 0.0
    assert exploitability_of(game, METHODS["cfr_plus"](), num_iterations=20) < 0.1


@pytest.mark.slow
def test_both_solvers_get_equally_far(monkeypatch):
    monkeypatch.setattr(suites, "METHODS", {name: METHODS[name] for name in ("cfr_plus", "vad_cfr")})
    config = OmegaConf.create({**OmegaConf.load(CONFIGS / "benchmark.yaml"), "suite": "games", "quick": True})
    rows, values = suites.run_suite(config, CONFIGS)
    assert list(rows) == ["kuhn_poker/cfr_plus", "kuhn_poker/openspiel_cfr_plus", "kuhn_poker/vad_cfr"]
    ratio = rows["kuhn_poker/cfr_plus"]["per_second"] / rows["kuhn_poker/openspiel_cfr_plus"]["per_second"]
    assert values["kuhn_poker/cfr_plus/ratio_to_openspiel"] == pytest.approx(ratio)
    assert abs(values["kuhn_poker/cfr_plus/gap_to_openspiel"]) < 1e-12
    assert values["kuhn_poker/vad_cfr/exploitability"] == pytest.approx(11 / 24)  # Within its warm start.
