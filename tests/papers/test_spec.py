"""Papers: their YAML files, what they refuse, and that all arms of all of them compose."""

import pathlib

import pytest
import yaml

from jaxagents.papers.arms import compose_arm
from jaxagents.papers.spec import Expectation, choose_arms, load_paper, make_paper, paper_files

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
IDS = list(paper_files(CONFIGS / "paper"))
PAPER = """
id: p
title: t
claim: c
experiment: lm_frozenlake
overrides: ["training.total_steps=64"]
arms:
  treatment: ["loss=plain"]
  other: {experiment: spa_frozenlake, overrides: ["loss=cispo"]}
  study: {_target_: math.prod, number: 3}
  baseline: []
metric: success
higher_is_better: false
start: warm_start
expect:
  - {better: treatment, worse: baseline, margin: 0.05, confidence: 0.9}
  - {metric: std(train/entropy), higher: other, lower: start, margin: 0.0}
  - {equal: [treatment, other], margin: 0.1}
  - {arm: study, below: -3}
minutes: 2
when_quick: {seeds: 2, overrides: ["training.total_steps=32"]}
"""


def changed(**changes):
    values = yaml.safe_load(PAPER) | changes
    return {name: value for name, value in values.items() if value is not ...}


def test_a_paper_is_read():
    paper = make_paper(yaml.safe_load(PAPER))
    treatment, other, study, baseline = paper.arms
    assert treatment[:2] == ("treatment", ("experiment=lm_frozenlake", "training.total_steps=64", "loss=plain"))
    assert other[:2] == ("other", ("experiment=spa_frozenlake", "training.total_steps=64", "loss=cispo"))
    assert study.target == {"_target_": "math.prod", "number": 3} and baseline.overrides[1:] == paper.overrides
    assert paper.expect == (
        Expectation("success", "lower", ("treatment", "baseline"), 0.05, 0.9),
        Expectation("std(train/entropy)", "higher", ("other", "start"), 0.0, 0.95),
        Expectation("success", "equal", ("treatment", "other"), 0.1, 0.95),
        Expectation("success", "below", ("study",), -3.0, 0.95),
    )
    assert paper.when_quick.seeds == 2 and paper.when_full.overrides == () and paper.seeds == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"claim": ...}, "`paper` must have the keys claim, which are missing"),
        ({"budgets": 1}, "`paper` has no key 'budgets'; try budget"),
        ({"budget": "steps"}, "`paper.budget` must be one of episodes, env_steps, none, got 'steps'"),
        ({"seeds": 0}, "`paper.seeds` must be a positive number, got 0"),
        ({"expect": []}, "`expect` must have an entry, got none"),
        ({"arms": {}}, "`arms` must be named"),
        ({"arms": {"start": []}}, "`arms` must be named, and not 'start'"),
        ({"experiment": ...}, "`arms.treatment` must have an experiment"),
        ({"overrides": "loss=plain"}, "`overrides` must be a list of texts"),
        ({"arms": {"a": [{"loss": "plain"}]}}, "`arms.a` must be a list of texts"),
        ({"arms": {"a": {"override": []}}}, "`arms.a` has no key 'override'"),
        ({"expect": [{"better": "treatment", "worse": "nobody", "margin": 0}]}, "`expect` must be about the arms"),
        ({"expect": [{"better": "treatment", "worse": "other"}]}, "`expect` must be better, worse, margin"),
        ({"expect": [{"better": "treatment", "worse": "other", "margin": 0, "metric": "x"}]}, "of the paper's metric"),
        ({"expect": [{"equal": ["treatment", "other"], "margin": -1}]}, "a margin of at least 0, got 0.95, -1"),
        ({"expect": [{"arm": "other", "above": 0, "confidence": 95}]}, "a confidence between 0 and 1"),
        ({"when_quick": {"steps": 1}}, "`when_quick` has no key 'steps'"),
    ],
)
def test_refused(changes, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make_paper(changed(**changes))


def test_a_wrong_file_is_named(tmp_path):
    (tmp_path / "family").mkdir()
    (tmp_path / "family" / "q.yaml").write_text(PAPER + "budgets: 1")
    with pytest.raises(ValueError, match="q.yaml: `paper` has no key 'budgets'"):
        load_paper(tmp_path, "q")
    (tmp_path / "family" / "q.yaml").write_text("title: [")
    with pytest.raises(ValueError, match="q.yaml: while parsing"):
        load_paper(tmp_path, "q")


def test_the_nearest_papers_are_offered(tmp_path):
    for name in ("gigpo", "nft", "spin"):
        (tmp_path / name[0]).mkdir()
        (tmp_path / name[0] / f"{name}.yaml").write_text(PAPER)
    assert load_paper(tmp_path, "spin").id == "spin"
    with pytest.raises(ValueError, match="`paper` must be a file of configs/paper, got 'gipo'; try gigpo.$"):
        load_paper(tmp_path, "gipo")
    with pytest.raises(ValueError, match="try gigpo or nft or spin"):
        load_paper(tmp_path, "zzz")


def test_arms_are_chosen_by_name_in_the_order_of_the_paper():
    paper = make_paper(yaml.safe_load(PAPER))
    assert choose_arms(paper, None) == list(paper.arms)
    assert [arm.name for arm in choose_arms(paper, ["baseline", "treatment"])] == ["treatment", "baseline"]
    with pytest.raises(ValueError, match="`arms` must be of the paper p, got 'base_line'; try baseline"):
        choose_arms(paper, ["base_line"])


@pytest.mark.parametrize("paper_id", IDS)
def test_every_arm_of_every_paper_composes(paper_id):
    paper = load_paper(CONFIGS / "paper", paper_id)
    for variant, quick in ((paper.when_quick, True), (paper.when_full, False)):
        changes = {"overrides": variant.overrides, "arguments": variant.arguments}
        arms = [compose_arm(paper, arm, CONFIGS, **changes, quick=quick) for arm in paper.arms]
        assert len({arm.digest for arm in arms}) == len(arms), "Two arms are the same."
    assert paper.seeds >= 3 or paper.deterministic
    assert paper.minutes > 0


def test_ids_are_unique_over_families():
    assert len(IDS) == len(list((CONFIGS / "paper").glob("*/*.yaml"))) > 0
