"""Registrations: what counts of the files, and what is flagged."""

import shutil
import subprocess

import pytest

from jaxagents.papers.arms import compose_arms, settings_of
from jaxagents.papers.registration import (
    REGISTRATIONS_FILE,
    changes_since,
    read_registrations,
    register,
    registered_content,
)
from jaxagents.papers.study import make_paper, make_study
from tests import CONFIGS

STUDY = {"question": "q", "metric": "success", "seeds": "0-2", "experiment": "x", "arms": {"b": [], "other": ["k=1"]}}
PAPER = {
    "title": "t",
    "claim": "c",
    "study": "s",
    "minutes": 1,
    "arms": {"a": ["k=2"]},
    "headline": [{"better": "a", "worse": "b", "margin": 0.1}],
}


RESOLVED = {"a": "0123456789abcdef", "b": "fedcba9876543210"}


def paper_of(study=None, **changes):
    source = STUDY | (study or {})
    return make_paper(PAPER | changes | {"id": "p", "family": "f"}, make_study(source | {"id": "f/s"}), source)


def test_what_decides_is_registered_and_nothing_else():
    content = registered_content(paper_of(), RESOLVED)
    assert content["paper"]["arms"] == {"a": ["k=2"]} and content["study"]["arms"] == {"b": []}
    assert content["seeds"] == [0, 1, 2] and content["paper"]["headline"][0]["margin"] == 0.1
    assert registered_content(paper_of(notes="n", title="u", minutes=2), RESOLVED) == content
    others = {"arms": {"b": [], "other": ["k=9"], "new": []}}  # Baselines of other papers.
    assert registered_content(paper_of(study=others), RESOLVED) == content


def test_what_changes_trials_alone_does_not_count(tmp_path):
    of_trials = paper_of(arms={"a": ["k=2", "when_quick.collector.n=1", "~when_quick.collector.m"]})
    assert registered_content(of_trials, RESOLVED) == registered_content(paper_of(), RESOLVED)
    first = register(tmp_path, paper_of(), RESOLVED)
    path = tmp_path / REGISTRATIONS_FILE  # As it was written once, with them.
    path.write_text(path.read_text().replace('"k=2"', '"k=2", "+when_quick.collector.n=2"'))
    assert register(tmp_path, of_trials, RESOLVED).time == first.time
    assert changes_since(of_trials, RESOLVED, read_registrations(tmp_path)["p"]) == []


@pytest.mark.parametrize(
    ("study", "changes", "names"),
    [
        ({}, {"headline": [{"better": "a", "worse": "b", "margin": 0.05}]}, ["paper.headline"]),
        ({}, {"seeds": "3-5"}, ["seeds"]),
        ({}, {"looks": [2, 3]}, ["paper.looks"]),
        ({"seeds": "0-3"}, {}, ["seeds"]),
        ({"overrides": ["k=4"]}, {}, ["study.overrides"]),
        ({"checks": [{"arm": "b", "above": 0}]}, {}, ["study.checks"]),
    ],
)
def test_later_changes_are_flagged_and_refused(tmp_path, study, changes, names):
    first = register(tmp_path, paper_of(), RESOLVED)
    assert register(tmp_path, paper_of(), RESOLVED) == first and first.time
    changed = paper_of(study, **changes)
    assert changes_since(changed, RESOLVED, read_registrations(tmp_path)["p"]) == names
    with pytest.raises(ValueError, match=f"got changes of {names[0]}; set them back, or try register=true"):
        register(tmp_path, changed, RESOLVED)
    register(tmp_path, changed, RESOLVED, again=True)
    registrations = read_registrations(tmp_path)["p"]
    assert len(registrations) == 2 and changes_since(changed, RESOLVED, registrations) == names
    # Set back, it runs as it was registered first, and is flagged: something else was tried.
    assert (
        register(tmp_path, paper_of(), RESOLVED) == first
        and changes_since(paper_of(), RESOLVED, registrations) == names
    )
    assert (
        changes_since(paper_of(), RESOLVED, registrations[:1]) == [] and changes_since(paper_of(), RESOLVED, []) == []
    )


def test_a_changed_option_file_of_an_arm_is_flagged(tmp_path):
    register(tmp_path, paper_of(), RESOLVED)
    changed = RESOLVED | {"b": "0000000000000000"}
    assert changes_since(paper_of(), changed, read_registrations(tmp_path)["p"]) == ["resolved.b"]
    with pytest.raises(ValueError, match="got changes of resolved.b; set them back, or try register=true"):
        register(tmp_path, paper_of(), changed)


def test_an_arm_that_is_written_otherwise_and_resolves_to_the_same_is_no_change(tmp_path):
    first = register(tmp_path, paper_of(), RESOLVED)
    registrations = read_registrations(tmp_path)["p"]
    methods = paper_of({"arms": {"b": ["+method=b"]}}, arms={"a": ["+method=a"]})
    assert changes_since(methods, RESOLVED, registrations) == [] and register(tmp_path, methods, RESOLVED) == first
    other = {"a": RESOLVED["a"], "b": "0000000000000000"}
    assert changes_since(methods, other, registrations) == ["resolved.b", "study.arms.b"]
    assert changes_since(paper_of(arms={"a": ["k=2"], "ab": []}), RESOLVED, registrations) == ["paper.arms.ab"]
    unknown = [registrations[0]._replace(content={**registrations[0].content, "resolved": {}})]
    assert "paper.arms.a" in changes_since(methods, RESOLVED, unknown)


def test_every_file_that_an_arm_pulls_in_is_registered(tmp_path):
    """Nothing in the files of paper and study changes, but a number in `learner/ppo.yaml`."""
    paper = paper_of({"experiment": "ppo_cartpole", "arms": {"b": []}}, arms={"a": ["optimizer.learning_rate=1e-2"]})
    resolved = []
    for weight in ("0.5", "0.6"):
        folder = shutil.copytree(CONFIGS, tmp_path / weight)
        path = folder / "learner" / "ppo.yaml"
        path.write_text(path.read_text().replace("value_coefficient: 0.5", f"value_coefficient: {weight}"))
        resolved.append(settings_of(compose_arms(paper, folder)))
    register(tmp_path, paper, resolved[0])
    registrations = read_registrations(tmp_path)["p"]
    assert changes_since(paper, resolved[0], registrations) == []
    assert changes_since(paper, resolved[1], registrations) == ["resolved.a", "resolved.b"]


def test_a_version_that_is_raised_is_no_change(tmp_path):
    first = register(tmp_path, paper_of(), RESOLVED)
    raised = paper_of(study={"version": 2}, arms={"a": {"overrides": ["k=2"], "version": 3}})
    assert raised.study.version == 2 and raised.arms[0].version == 3
    assert register(tmp_path, raised, RESOLVED) == first


def test_files_that_are_not_committed_are_marked_and_said(tmp_path):
    lines, path = [], tmp_path / "p.yaml"
    path.write_text("a: 1")
    git = ("git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t")
    for command in (("init", "-q"), ("add", "p.yaml"), ("commit", "-qm", "One")):
        subprocess.run([*git, *command], check=True)
    register(tmp_path / "committed", paper_of(), RESOLVED, files=[path], say=lines.append)
    assert lines == []
    new = path.with_name("new.yaml")  # In no commit.
    new.write_text("a: 1")
    for _ in range(2):
        found = register(tmp_path / "results", paper_of(), RESOLVED, files=[path, new], say=lines.append)
    assert [*lines] == [
        "p: registered from what is not committed (new.yaml); commit it before the runs, so that others can see that "
        "it came first."
    ]
    assert found.commit is None or found.commit.endswith("+changes")


def test_a_damaged_file_is_named_and_left_alone(tmp_path):
    (tmp_path / REGISTRATIONS_FILE).write_text('{"p": [')
    with pytest.raises(ValueError, match="must hold registrations, got a damaged file"):
        register(tmp_path, paper_of(), RESOLVED)
    assert (tmp_path / REGISTRATIONS_FILE).read_text() == '{"p": ['
