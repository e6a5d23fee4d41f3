"""Studies and papers: their YAML files, what they refuse, and that all arms of all of them compose."""

import pytest
import yaml

from jaxagents.papers.arms import compose_arms
from jaxagents.papers.expectations import Expectation
from jaxagents.papers.library import load_paper, load_study, paper_files, select_papers, study_files
from jaxagents.papers.registration import registered_content
from jaxagents.papers.study import choose_arms, make_paper, make_study, parse_seeds
from tests import CONFIGS

PAPERS = CONFIGS.parent / "experiments"
IDS = list(paper_files(PAPERS))
STUDY = """
id: family/lake
question: q
experiment: grpo_frozenlake
overrides: ["training.total_steps=64"]
metric: success
seeds: 10-17
start: warm_start
arms:
  baseline: []
  unused: ["loss=cispo"]
checks:
  - {arm: baseline, below: 0.9}
"""
PAPER = """
id: p
family: family
title: t
claim: c
study: lake
arms:
  treatment: ["loss=plain"]
  other: {experiment: spa_frozenlake, overrides: ["loss=cispo"]}
  inference: {function: {_target_: math.prod}}
  formula: {_target_: math.prod, number: 3}
headline:
  - {better: treatment, worse: baseline, margin: 0.05, confidence: 0.9, effect: 0.2}
secondary:
  - {metric: late(train/entropy), higher: other, lower: start, margin: 0.0}
  - {equal: [treatment, other], margin: 0.1}
  - {arm: formula, below: -3}
  - {arm: treatment, near: 0.5, margin: 0.05}
  - {metric: max(success), than: success, arm: baseline, margin: 0.1}
  - {metric: gap_*, wins: treatment, against: [other, formula], within: 0.01, above: 0.5}
minutes: 2
"""


def changed(text, **changes):
    values = yaml.safe_load(text) | changes
    return {name: value for name, value in values.items() if value is not ...}


def paper_with(study=None, **changes):
    return make_paper(changed(PAPER, **changes), make_study(changed(STUDY, **(study or {}))))


def test_a_study_and_a_paper_are_read():
    paper = paper_with()
    treatment, other, inference, formula, baseline = paper.arms  # Baselines that nothing names are left out.
    assert treatment[:2] == ("treatment", ("experiment=grpo_frozenlake", "training.total_steps=64", "loss=plain"))
    assert other.overrides == ("experiment=spa_frozenlake", "training.total_steps=64", "loss=cispo")
    assert inference.function == {"_target_": "math.prod"} and inference.overrides == baseline.overrides
    assert formula.function == {"_target_": "math.prod", "number": 3} and formula.overrides == ()
    assert paper.headline == (
        Expectation("success", "higher", ("treatment", "baseline"), 0.05, confidence=0.9, effect=0.2),
    )
    assert paper.secondary == (
        Expectation("late(train/entropy)", "higher", ("other", "start"), 0.0),
        Expectation("success", "equal", ("treatment", "other"), 0.1),
        Expectation("success", "below", ("formula",), -3.0),
        Expectation("success", "near", ("treatment",), 0.05, value=0.5),
        Expectation("max(success)", "higher", ("baseline", "baseline"), 0.1, than="success"),
        Expectation("gap_*", "wins", ("treatment", "other", "formula"), 0.5, tolerance=0.01),
    )
    assert paper.seeds == tuple(range(10, 18)) and paper_with(seeds="1-3").seeds == (1, 2, 3)
    assert paper.study.checks == (Expectation("success", "below", ("baseline",), 0.9),)


def test_a_paper_may_ask_for_a_start_of_every_seed():
    study, values = make_study(yaml.safe_load(STUDY)), yaml.safe_load(PAPER)
    first = make_paper(values, study)
    own = make_paper({**values, "start_seed": None}, study)
    assert (first.study.start_seed, own.study.start_seed, study.start_seed) == (0, None, 0)
    assert registered_content(first, {})["paper"] == {
        name: node for name, node in registered_content(own, {})["paper"].items() if name != "start_seed"
    }
    assert registered_content(own, {})["paper"]["start_seed"] is None


def test_every_expectation_is_told_in_words():
    lines = [expectation.describe() for expectation in (*paper_with().headline, *paper_with().secondary)]
    assert lines == [
        "success of treatment higher than of baseline by 0.05",
        "late(train/entropy) of other higher than of start by 0",
        "success of treatment and other equal within 0.1",
        "success of formula below -3",
        "success of treatment within 0.05 of 0.5",
        "max(success) of baseline higher than its success by 0.1",
        "treatment is best of other, formula in gap_*, or within 0.01, in at least 50%",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"claim": ...}, "`paper` must have the keys claim, which are missing"),
        ({"budgets": 1}, "`paper` has no key 'budgets'"),
        ({"expect": []}, "`paper` has no key 'expect'"),
        ({"headline": []}, "`headline` must be one or two expectations, got 0"),
        ({"headline": [{"arm": "other", "above": 0}] * 3}, "`headline` must be one or two expectations, got 3"),
        ({"seeds": "100-107"}, "`seeds` must be below 100, got 100: search seeds choose settings and count in no"),
        ({"seeds": [1, 2]}, "`seeds` must be at least 3, got 2"),
        ({"seeds": 5}, "`seeds` must be a range such as 10-17, or a list such as [10], got 5"),
        (
            {"looks": [4, 6]},
            "`looks` must rise from 2 or more to the number of seeds, 8, got [4, 6]; try [4, 8, 16, 32]",
        ),
        ({"seeds": [1, 1, 2]}, "`seeds` must be different whole numbers of at least 0"),
        ({"arms": {"baseline": []}}, "`arms.baseline` must have another name than the baselines of family/lake"),
        ({"arms": {"start": []}}, "`arms` must be named, and not 'start'"),
        ({"arms": {"a": [{"loss": "plain"}]}}, "`arms.a` must be a list of texts"),
        ({"arms": {"a": {"override": []}}}, "`arms.a` has no key 'override'"),
        ({"arms": {"a": {"function": {"number": 1}}}}, "`arms.a.function` must have a `_target_`"),
        (
            {"headline": [{"better": "treatmnt", "worse": "baseline", "margin": 0}]},
            "`headline[0]` must be about the arms treatment, other, inference, formula, baseline, unused, start, got "
            "'treatmnt'; try treatment",
        ),
        ({"headline": [{"better": "treatment", "worse": "other"}]}, "`headline[0]` must be {better: a, worse: b"),
        ({"headline": ["x"]}, "`headline[0]` must be {better: a, worse: b"),
        ({"secondary": [{"equal": ["treatment", "other"], "margin": -1}]}, "a margin of at least 0, got 0.95 and -1"),
        ({"secondary": [{"arm": "other", "above": 0, "confidence": 95}]}, "a confidence between 0 and 1"),
    ],
)
def test_a_wrong_paper_is_refused(changes, message):
    for special in "([{*":
        message = message.replace(special, f"\\{special}")
    with pytest.raises(ValueError, match=message):
        paper_with(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": ...}, "`study` must have the keys question"),
        ({"budget": "steps"}, "`budget` must be one of episodes, turns, tokens, env_steps, none, got 'steps'"),
        ({"experiment": ...}, "`arms.baseline` must have an experiment"),
        ({"overrides": "loss=plain"}, "`overrides` must be a list of texts"),
        (
            {"checks": [{"arm": "treatment", "above": 0}]},
            "must be about the arms baseline, unused, start, got 'treatment'",
        ),
        ({"when_quick": {"steps": 1}}, "`when_quick` has no key 'steps'"),
        ({"seeds_at_once": 0}, "`seeds_at_once` must be a positive number"),
        ({"version": 0}, "`version` must be a whole number of at least 1, got 0"),
        ({"arms": {"baseline": {"_target_": "f", "version": "b"}}}, "`arms.baseline.version` must be a whole number"),
    ],
)
def test_a_wrong_study_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_study(changed(STUDY, **changes))


def test_seeds_are_ranges_or_lists():
    with pytest.raises(ValueError, match="got 3-1; try 1-3"):
        parse_seeds("seeds", "3-1")
    assert parse_seeds("seeds", "3-5") == (3, 4, 5) and parse_seeds("seeds", [7, 2]) == (7, 2)
    assert make_study(changed(STUDY, seeds=..., deterministic=True)).seeds == (0,)


@pytest.fixture
def library(tmp_path):
    """Returns `configs` with a study of three papers, and one of another family."""
    for family, names in (("family", ("gigpo", "nft", "spin")), ("games", ("jpsro",))):
        for kind in ("papers", "studies"):
            (tmp_path / kind / family).mkdir(parents=True, exist_ok=True)
        study = "lake" if family == "family" else "field"
        written = changed(STUDY, id=...)
        (tmp_path / "studies" / family / f"{study}.yaml").write_text(yaml.safe_dump(written))
        for name in names:
            values = changed(PAPER, id=..., family=..., study=study)
            (tmp_path / "papers" / family / f"{name}.yaml").write_text(yaml.safe_dump(values))
    return tmp_path


def test_papers_are_selected_by_id_family_and_study(library):
    assert select_papers(library, ["spin", "gigpo"]) == ["spin", "gigpo"]
    assert select_papers(library, ["family/*"]) == ["gigpo", "nft", "spin"]
    assert select_papers(library, ["all"]) == ["gigpo", "jpsro", "nft", "spin"]
    assert select_papers(library, studies=["lake"]) == select_papers(library, studies=["family/lake"])
    assert select_papers(library, ["nft"], ["field"]) == ["nft", "jpsro"]
    with pytest.raises(ValueError, match="`paper` must be a file of experiments/papers, got 'gipo'; try gigpo"):
        select_papers(library, ["gipo"])
    with pytest.raises(ValueError, match="`study` must be a file of experiments/studies, got 'lak'; try lake"):
        select_papers(library, studies=["lak"])


def test_the_nearest_names_are_offered(library):
    paper = load_paper(library, "spin")
    assert (paper.id, paper.family, paper.study.id) == ("spin", "family", "family/lake")
    with pytest.raises(ValueError, match="`paper` must be a file of experiments/papers, got 'gipo'; try gigpo"):
        load_paper(library, "gipo")
    with pytest.raises(ValueError, match="`study` must be a file of experiments/studies, got 'feld'; try field"):
        load_study(library, "feld")
    with pytest.raises(ValueError, match="`arms` must be of the paper spin, got 'base_line'; try baseline"):
        choose_arms(paper, ["base_line"])
    assert [arm.name for arm in choose_arms(paper, ["baseline", "treatment"])] == ["treatment", "baseline"]


def test_a_wrong_file_is_named(library):
    path = library / "papers" / "family" / "nft.yaml"
    path.write_text(path.read_text() + "budgets: 1")
    with pytest.raises(ValueError, match="nft.yaml: `paper` has no key 'budgets'"):
        load_paper(library, "nft")
    path.write_text("title: [")
    with pytest.raises(ValueError, match="nft.yaml: while parsing"):
        load_paper(library, "nft")
    path.write_text("- a")
    with pytest.raises(ValueError, match="nft.yaml: it must hold keys and values"):
        load_paper(library, "nft")
    (library / "studies" / "family" / "lake.yaml").write_text("question: 1")
    with pytest.raises(ValueError, match="lake.yaml: `study` must have the keys"):
        load_paper(library, "spin")


@pytest.mark.slow
@pytest.mark.parametrize("paper_id", IDS)
def test_every_arm_of_every_paper_composes(paper_id):
    paper = load_paper(PAPERS, paper_id)
    for quick in (True, False):
        arms = compose_arms(paper, CONFIGS, quick=quick)
        assert len({arm.address for arm in arms.values()}) == len(arms), "Two arms are the same."
    assert paper.minutes > 0 and "Run: python experiments/reproduce.py" in paper_files(PAPERS)[paper_id].read_text()


def test_ids_are_unique_and_studies_are_used():
    assert len(IDS) == len(list((PAPERS / "papers").glob("*/*.yaml"))) > 0
    used = {load_paper(PAPERS, paper_id).study.id for paper_id in IDS}
    assert used | {name for name in study_files(PAPERS) if load_study(PAPERS, name).methods} == set(study_files(PAPERS))


@pytest.mark.parametrize("paper_id", IDS)
def test_an_arm_of_every_paper_is_its_method(paper_id):
    arms = load_paper(PAPERS, paper_id).arms
    assert any(f"+method={paper_id}" in arm.overrides or (arm.function or {}).get("method") == paper_id for arm in arms)
