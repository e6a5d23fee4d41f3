"""Confirmations: what is registered follows from what was measured, and fresh seeds decide."""

import dataclasses
import json
import re
import threading

import pytest
from omegaconf import OmegaConf

from jaxagents.papers import confirm as confirm_module
from jaxagents.papers.batch import compose_batch, read_batch, run_batch
from jaxagents.papers.batch_page import write_batch_page
from jaxagents.papers.batch_table import measure_batch
from jaxagents.papers.claims import Claim, read_confirmed
from jaxagents.papers.confirm import (
    CONFIRMATIONS_FILE,
    confirm_batch,
    confirmation_changes,
    confirmed_paper,
    margin_of,
    read_claim,
    read_confirmations,
)
from jaxagents.papers.execution import read_paper_runs, run_papers
from jaxagents.papers.judge import judge
from jaxagents.papers.leases import leased
from jaxagents.papers.registration import REGISTRATIONS_FILE, read_registrations
from jaxagents.papers.reproduce import run_study
from jaxagents.papers.study import Paper, make_study
from jaxagents.reporting.statistics import Interval
from jaxagents.training.methods import Method
from tests import CONFIGS, ROOT
from tests.papers.requests import STUDY, TARGET, request

SEEDS = tuple(range(100, 108))
METHODS = {
    name: Method(name, name, "s", {"Study": "s"} | claim, {}, {}, {**TARGET, "offset": offset})
    for name, offset, claim in (
        ("up", 1.0, {"Claim": "above base"}),
        ("down", -1.0, {"Claim": "above base"}),
        ("same", 0.0, {"Claim": "score above base"}),
        ("silent", 1.0, {}),
    )
}


@pytest.fixture
def measured(calls, tmp_path, monkeypatch):
    """Returns a batch, its rows and its arms, measured on search seeds."""
    arms = {name: {"method": name} for name in METHODS}
    record = {"seeds": "0-7", "arms": {"base": TARGET}, "methods": [arms], "smallest_effect": 0.3}
    study = make_study(STUDY | record | {"metrics": ["curve", "of_arms_that_nobody_confirms"]})
    of = Paper("f/s", "f", "q", "", study, (*study.arms, *study.methods), (), 0.0, SEEDS)
    monkeypatch.setattr("jaxagents.papers.arms._with_function", _with_function)
    asked = request(tmp_path)
    assert run_batch(of, asked) == {}
    composed, broken = compose_batch(of, asked)
    rows, _ = measure_batch(of, read_batch(asked.results, "f/s"), composed, broken)
    return of, rows, composed, asked


def _with_function(study, arm, config_folder):
    name = (arm.function or {}).get("method")
    return arm._replace(function=METHODS[name].function) if name else arm


def confirm(measured, arms=None):
    of, rows, composed, asked = measured
    return confirm_batch(of, rows, METHODS, composed, asked.results, arms=arms)


def test_what_is_separated_is_registered_by_the_rule_and_decided_by_fresh_seeds(measured, calls, tmp_path):
    of, rows, composed, asked = measured
    made = confirm(measured)
    assert set(made) == {"up", "down"}  # `same` is not separated, `silent` claims nothing.
    up, down = made["up"], made["down"]
    assert (up.kind, up.rival, up.margin) == ("higher", "base", 0.5) and len(up.seeds) >= 8
    assert down.margin == 0.3  # Measured on the wrong side: the smallest effect.
    assert (
        list(up.seeds) == [*range(24)]
        and up.looks == [8, 24]
        and up.power >= 0.9
        and set(up.settings) == {"up", "base"}
    )
    papers = [confirmed_paper(of, record, METHODS[record.paper]) for record in made.values()]
    before = len(calls)
    assert run_papers(papers, asked) == {} and min(calls[before:])[0] < 100
    assert not (asked.results / REGISTRATIONS_FILE).exists()
    verdicts = {paper.id: judge(paper, read_paper_runs(paper, CONFIGS, asked.results)) for paper in papers}
    assert {name: one.word for name, one in verdicts.items()} == {"up": "reproduced", "down": "not reproduced"}
    claims = [Claim(paper, {}, verdicts[paper.id]) for paper in papers]
    page = write_batch_page(asked.results, of, rows, [], [claims[0], claims[1]._replace(number=2)]).read_text()
    assert re.search(r"\| up \| score of up higher than of base by 0.5 \| reproduced \| 1.* \| 8 \|", page)
    assert "| down (registration 2) | score of down higher" in page
    assert "fresh seeds" not in write_batch_page(asked.results, of, rows, []).read_text()
    assert {seed for seed, _ in calls[before:]} == {*range(8)}  # The first look decides.
    assert confirmation_changes(up, composed) == []


def test_a_registration_stays_and_a_change_by_hand_is_flagged(measured):
    _, _, composed, asked = measured
    first = confirm(measured)["up"]
    assert confirm(measured)["up"] == first
    path = asked.results / CONFIRMATIONS_FILE
    stored = json.loads(path.read_text())
    stored["up"][-1]["margin"] = 0.1
    path.write_text(json.dumps(stored))
    record = read_confirmations(asked.results)["up"]
    assert confirmation_changes(record, composed) == ["the record, by hand"]
    other = {**composed, "up": composed["up"]._replace(settings="another")}
    assert confirmation_changes(first, other) == ["up"]


def test_arms_that_are_named_are_registered_whatever_came_out(measured):
    assert set(confirm(measured, ["same"])) == {"same"}
    with pytest.raises(ValueError, match="`silent` must claim `score above|below|equal to <arm>` .* got 'nothing'"):
        confirm(measured, ["silent"])
    with pytest.raises(ValueError, match="`arms` must be of f/s, got 'upp'; try up"):
        confirm(measured, ["upp"])


def test_another_arm_of_a_registered_method_is_refused(measured, monkeypatch):
    """Where arms are named; the rule, which goes through all of them, takes the first."""
    made = confirm(measured)
    monkeypatch.setattr(confirm_module, "method_of", lambda *_: METHODS["up"])
    with pytest.raises(
        ValueError, match="`arms` must have one arm of up, got 'same': its claim is registered with up; register=true"
    ):
        confirm(measured, arms=["up", "same"])
    assert confirm(measured) == {"up": made["up"]}


def test_seeds_that_vary_more_than_arms_are_paired(measured):
    of, rows, composed, asked = measured
    base = {seed: 2.0 * (seed - 100) for seed in SEEDS}
    values = {"base": base, "up": {seed: value + 1.0 + 0.01 * (-1) ** seed for seed, value in base.items()}}
    rows = [row._replace(values=values.get(row.arm, row.values)) for row in rows]
    up = confirm_batch(of, rows, METHODS, composed, asked.results, arms=["up"])["up"]
    assert up.margin == 0.5 and up.looks == [8, 24] and up.measured[1] > 0.9  # Welch's interval: -3.9 to 5.9.


def test_a_claim_that_the_batch_speaks_against_is_looked_at_early(measured):
    """Its first look needs no power: it is there to end what fails."""
    of, rows, composed, asked = measured
    noise = {seed: 0.9 * (-1) ** seed for seed in SEEDS}
    for name, shift, looks in (("down", -1.0, [8, 24]), ("up", 0.2, [])):
        values = {name: {seed: shift + noise[seed] for seed in SEEDS}, "base": dict.fromkeys(SEEDS, 0.0)}
        noisy = [row._replace(values=values.get(row.arm, row.values)) for row in rows]
        record = confirm_batch(of, noisy, METHODS, composed, asked.results, arms=[name])[name]
        assert record.looks == looks and record.power < 0.9


def test_seeds_that_the_arm_has_played_are_not_fresh(measured):
    of, _, composed, asked = measured
    first = confirm(measured, ["up"])["up"]
    run_papers([confirmed_paper(of, first, METHODS["up"])], asked)
    (asked.results / CONFIRMATIONS_FILE).unlink()
    again = confirm(measured, ["up"])["up"]
    assert again.seeds == [*range(8, 32)] and again.margin == first.margin


def test_seeds_whose_runs_of_the_rival_are_known_are_not_fresh(measured):
    of, _, composed, asked = measured
    down = confirm(measured, ["down"])["down"]
    run_papers([confirmed_paper(of, down, METHODS["down"])], asked)
    assert confirm(measured, ["up"])["up"].seeds == [*range(8, 32)]  # Base was run with 0 to 7 for `down`.


def test_a_claim_whose_arm_was_changed_is_registered_anew_and_the_first_record_stays(measured):
    of, rows, composed, asked = measured
    first = confirm(measured, ["up"])["up"]
    assert first.number == 1
    assert (
        confirm_batch(of, rows, METHODS, composed, asked.results, arms=["up"], anew=True)["up"] == first
    )  # No change.
    other = {**composed, "up": composed["up"]._replace(settings="another", address="elsewhere")}
    assert confirm_batch(of, rows, METHODS, other, asked.results, arms=["up"])["up"] == first
    again = confirm_batch(of, rows, METHODS, other, asked.results, arms=["up"], anew=True)["up"]
    assert again.number == 2 and again.seeds == [*range(24, 48)] and again.settings["up"] == "another"
    assert read_confirmations(asked.results)["up"] == again and confirmation_changes(again, other) == []
    stored = json.loads((asked.results / CONFIRMATIONS_FILE).read_text())["up"]
    assert [record["seeds"][0] for record in stored] == [0, 24] and "number" not in stored[0]
    for _ in range(2):
        again = confirm_batch(of, rows, METHODS, other, asked.results, arms=["up"], anew=True)["up"]
    assert again.number == 2


def test_without_fresh_seeds_nothing_is_registered(measured, monkeypatch):
    monkeypatch.setattr(confirm_module, "SEARCH_SEEDS", 31)
    of, rows, composed, asked = measured
    confirm(measured, ["up"])
    other = {**composed, "up": composed["up"]._replace(settings="another")}
    with pytest.raises(ValueError, match="`up` must have 8 fresh seeds from 0 to 30, got 7: of the others, runs of up"):
        confirm_batch(of, rows, METHODS, other, asked.results, arms=["up"], anew=True)


def test_a_confirmed_method_that_was_renamed_is_named(measured):
    of, _, _, asked = measured
    record = confirm(measured, ["up"])["up"]
    others = {name: method for name, method in METHODS.items() if name != "up"}
    with pytest.raises(ValueError, match="`configs/method` must have up, which was confirmed, .* try .*confirmations"):
        read_confirmed(record, of, others, CONFIGS, asked.results)
    assert read_confirmed(record, of, METHODS, CONFIGS, asked.results).describe() == "not run"


def test_fresh_seeds_are_above_all_that_were_registered(measured):
    asked = measured[-1]
    content = {"seeds": [10, 11, 14]}
    record = {"hash": "h", "commit": None, "time": "t", "content": content}
    (asked.results / REGISTRATIONS_FILE).write_text(json.dumps({"p": [record]}))
    assert read_registrations(asked.results)["p"][0].content == content
    assert confirm(measured)["up"].seeds[0] == 15


def test_the_rule():
    assert margin_of("higher", Interval(0.2, 0.1, 0.3), 0.05) == (0.1, 0.2)
    assert margin_of("lower", Interval(-0.2, -0.3, -0.1), 0.05) == (0.1, -0.2)
    assert margin_of("higher", Interval(0.2, -0.1, 0.5), 0.05) == (0.05, 0.1)
    assert margin_of("higher", Interval(-0.2, -0.3, -0.1), 0.05) == (0.05, 0.1)
    assert margin_of("equal", Interval(0.2, 0.1, 0.3), 0.05) == (0.05, 0.0)


@pytest.mark.parametrize(
    ("claim", "read"),
    [
        ("above grpo", ("success", "higher", "grpo")),
        ("success above grpo; and faster", ("success", "higher", "grpo")),
        ("below grpo.", ("success", "lower", "grpo")),
        ("equal to rft", ("success", "equal", "rft")),
        ("above grpo, its baseline", ("success", "higher", "grpo")),
        ("above rft and above grpo", ("success", "higher", "rft")),
        ("mean(train/entropy) below grpo", ("mean(train/entropy)", "lower", "grpo")),
    ],
)
def test_claims_are_read(claim, read):
    method = Method("m", "m", "s", {"Claim": claim}, {}, {})
    assert read_claim(method, ["success", "mean(train/entropy)"], ["grpo", "rft"]) == read


@pytest.mark.parametrize("claim", ["", "better than grpo", "above ppo", "return above grpo", "steps below start"])
def test_claims_that_no_run_can_show_are_refused(claim):
    with pytest.raises(ValueError, match=r"`m` must claim `success above.*, or another of steps in its header"):
        read_claim(Method("m", "m", "s", {"Claim": claim}, {}, {}), ["success", "steps"], ["grpo", "start"])


def test_a_claim_of_another_metric_is_confirmed_by_what_was_seen_of_it(measured, monkeypatch):
    of, _, composed, asked = measured  # The last value of the curve is the offset, the same for all seeds.
    noise = {"up": (0.01, 2), "base": (0.02, 2), "same": (0.03, 4), "down": (0.0, 1), "silent": (0.0, 1)}
    rows = []
    for row in measured[1]:
        size, period = noise[row.arm]
        curve = {seed: size * (2 * (seed % period) // period) + (row.arm == "up") for seed in SEEDS}
        rows.append(row._replace(further={"curve": curve}))
    claims = {"up": "curve above base", "same": "curve above base"}
    for name, claim in claims.items():
        monkeypatch.setitem(METHODS, name, METHODS[name]._replace(fields={"Study": "s", "Claim": claim}))
    record = confirm((of, rows, composed, asked), ["up"])["up"]
    assert record.metric == "curve" and record.margin == pytest.approx(0.4975, abs=1e-3) and record.kind == "higher"
    paper = confirmed_paper(of, record, METHODS["up"])
    assert paper.headline[0].metric == "curve" and paper.headline[0].arms == ("up", "base")
    assert run_papers([paper], asked) == {}
    assert judge(paper, read_paper_runs(paper, CONFIGS, asked.results)).word == "reproduced"
    assert confirmation_changes(read_confirmations(asked.results)["up"], composed) == []
    with pytest.raises(ValueError, match="`same` claims curve, of which the study names no smallest effect"):
        confirm((of, rows, composed, asked), ["same"])
    reported = []
    rows = [row._replace(p=0.001) if row.arm == "same" else row for row in rows]
    made = confirm_batch(of, rows, METHODS, composed, asked.results, say=reported.append)  # The rule goes on.
    assert set(made) == {"up", "down"} and len(reported) == 1 and "Not registered: `same` claims curve" in reported[0]


def test_too_few_runs_are_not_confirmed(calls, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxagents.papers.arms._with_function", _with_function)
    study = make_study(STUDY | {"seeds": "0-7", "arms": {"base": TARGET}, "methods": [{"up": {"method": "up"}}]})
    of = Paper("f/s", "f", "q", "", study, (*study.arms, *study.methods), (), 0.0, SEEDS[:4])
    asked = request(tmp_path)
    run_batch(of, asked)
    composed, _ = compose_batch(of, asked)
    rows, _ = measure_batch(of, read_batch(asked.results, "f/s"), composed, {})
    with pytest.raises(ValueError, match="`up` must be measured on 8 seeds before it is confirmed, got fewer of up"):
        confirm_batch(of, rows, METHODS, composed, asked.results, arms=["up"])


def test_claims_of_two_processes_at_once_are_all_kept(measured):
    """Who registers waits for who is at it."""
    results = measured[3].results
    with leased(results, "confirmations"):
        other = threading.Thread(target=confirm, args=(measured, ["up"]))
        other.start()
        other.join(0.5)
        assert other.is_alive() and read_confirmations(results) == {}
    other.join()
    confirm(measured, ["down"])
    assert set(read_confirmations(results)) == {"up", "down"}


def test_a_record_keeps_the_metric_of_the_study(measured):
    of, _, _, _ = measured
    record = confirm(measured, ["up"])["up"]
    later = dataclasses.replace(of, study=dataclasses.replace(of.study, metric="curve"))
    assert confirmed_paper(later, record, METHODS["up"]).headline[0].metric == "score" == record.metric


@pytest.mark.parametrize(("more", "name"), [({"status": True}, "status=true"), ({"trial": ("a=1",)}, "overrides=")])
def test_claims_are_registered_about_the_committed_arms_alone(more, name, tmp_path):
    config = OmegaConf.create({"confirm": True, "status": bool(more.get("status"))})
    with pytest.raises(ValueError, match=f"`confirm` must be alone: .*{name}"):
        run_study("turns", ROOT / "experiments", request(tmp_path, overrides=more.get("trial", ())), config, ROOT)
