"""Papers whose arms are functions of a test, and the folders that their runs are kept in."""

from jaxagents.papers.execution import read_paper_runs
from jaxagents.papers.plan import Request
from jaxagents.papers.study import make_paper, make_study
from tests import CONFIGS

TARGET = {"_target_": "functions_of_test.score"}
STUDY = {"id": "f/s", "question": "q", "metric": "score", "seeds": "0-2", "metrics": ["curve"]}
PAPER = {"id": "p", "family": "f", "title": "A title", "claim": "A claim.", "minutes": 6, "study": "s"}


def of_functions(treatment=None, baseline=None, study=None, **changes):
    """Makes a paper of two functions, in a study that has a third."""
    arms = {"baseline": {**(baseline or TARGET), "offset": 0.0}, "unused": {**TARGET, "offset": -1.0}}
    values = {"arms": {"treatment": {"offset": 1.0, **(treatment or TARGET)}}}
    values["headline"] = [{"better": "treatment", "worse": "baseline", "margin": 0.5}]
    return make_paper(PAPER | values | changes, make_study(STUDY | {"arms": arms} | (study or {})), {})


def request(tmp_path, **options):
    return Request(CONFIGS, tmp_path / "results", tmp_path / "cache", **options)


def read(paper, tmp_path, **options):
    return read_paper_runs(paper, CONFIGS, tmp_path / "results", **options)
