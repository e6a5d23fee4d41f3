"""A small index of methods for tests: all cards, of which one is judged, one measured, and one implemented."""

import numpy as np

from jaxagents.papers.arms import Composed
from jaxagents.papers.batch import Line
from jaxagents.papers.batch_table import BASELINE, BETTER, METHOD, Measured
from jaxagents.papers.claims import Claim
from jaxagents.papers.expectations import Expectation
from jaxagents.papers.index import Entry, Index, StudyEntry
from jaxagents.papers.judge import judge
from jaxagents.papers.runs import ArmRuns, Run
from jaxagents.papers.study import Arm, Paper, Study
from jaxagents.reporting.statistics import Interval
from jaxagents.training.methods import read_method
from tests import CONFIGS


def make_run(arm, seed, shift):
    rng = np.random.default_rng(seed)
    steps = [0, 64, 128]
    values = (np.array([0.2, 0.4, 0.6]) + shift + 0.02 * rng.normal(size=3)).tolist()
    curves = {"eval/success": {"steps": steps, "values": values}, "final": {"steps": [0], "values": [shift]}}
    return Run(arm, seed, "done", curves, minutes=0.5, budget=["episodes", 128])


def make_row(arm, role, word, difference, seeds=(100, 101)):
    interval = difference and Interval(difference, difference - 0.05, difference + 0.05)
    values, further = dict.fromkeys(seeds, 0.6), {"final": dict.fromkeys(seeds, 1.0)}
    return Measured(
        arm,
        role,
        "" if arm == "theirs" else "theirs",
        word,
        values,
        {},
        further,
        Interval(0.6, 0.5, 0.7),
        interval,
        0.01,
        0,
        0,
        1.0,
        2.0,
    )


def make_index(families):
    """Returns an index of all cards: one paper is judged, one is measured, and one is implemented."""
    cards = {card.id: card for family in families for card in family.cards}
    expected = Expectation("success", "higher", ("ours", "theirs"), 0.1)
    study = Study(
        id="lm_rl/credit",
        question="Does credit by state help <b>?",
        metric="success",
        seeds=(10, 11, 12),
        arms=(Arm("theirs", ("world=bandit",)),),
        methods=(Arm("igpo", ("experiment=x", "+method=igpo")),),
        metrics=("final",),
        learned="Turns\nhelp. Rows do not: `a < b`.",
    )
    paper = Paper(
        id="gigpo",
        family="lm_rl",
        title="GiGPO",
        claim="12 points & more",
        study=study,
        arms=(Arm("ours", ("world=bandit", "algorithm=grpo", "+method=gigpo")), *study.arms),
        headline=(expected,),
        secondary=(expected._replace(margin=0.9),),
        minutes=3.0,
        seeds=study.seeds,
        notes="No KL.",
    )
    runs = {
        arm: ArmRuns({seed: make_run(arm, seed, shift) for seed in study.seeds})
        for arm, shift in (("ours", 0.2), ("theirs", 0.0))
    }
    batch = Paper(
        study.id, "lm_rl", study.question, "", study, (*study.arms, paper.arms[0], *study.methods), (), 0.0, ()
    )
    rows = [make_row("theirs", BASELINE, "", None), make_row("igpo", METHOD, BETTER, 0.2)]
    curve = [[0, 64, 128], [0.2, 0.3, 0.6]]
    lines = {
        row.arm: {seed: Line(row.arm, "a", seed, "done", {}, {}, curve, 1.0, 1.0, [], None) for seed in row.values}
        for row in rows
    }
    switched_on = {"theirs": [], "ours": ["gigpo"], "igpo": ["igpo"]}
    methods = {name: read_method(CONFIGS / "method" / f"{name}.yaml") for name in ("gigpo", "igpo", "supo")}
    entries = {name: Entry(card, methods.get(name)) for name, card in cards.items()}
    treatment = Composed("ours", "a", "s", None, None, {"learner": {"num_epochs": 2}}, {})
    tested = Claim(paper, runs, judge(paper, runs), {paper.arms[0].name: treatment})
    entries["gigpo"] = entries["gigpo"]._replace(studies=(study.id,), first=tested)
    entries["igpo"] = entries["igpo"]._replace(studies=(study.id,), measured=((study.id, rows[1]),))
    return Index(entries, {study.id: StudyEntry(batch, switched_on, lines, rows)})


def with_entry(index, **changes):
    """Returns an index in which the entry of gigpo is another one."""
    return index._replace(entries={**index.entries, "gigpo": index.entries["gigpo"]._replace(**changes)})
