"""Names of the folders of sweeps, and lists and paths as Hydra reads them."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from jaxagents.training.arguments import name_folders, quote_lists, quote_names

PARSER = OverridesParser.create()


def left_out(*arguments):
    """Returns the options that do not name folders; None where folders have numbers alone."""
    added = name_folders(["-m", *arguments])[1 + len(arguments) :]
    if not added:
        return None
    subdir, separator, keys = [override.value() for override in PARSER.parse_overrides(added)]
    assert separator == "_" and subdir == "${hydra.job.num}_${hydra.job.override_dirname}"
    return keys


def test_folders_are_named_by_what_varies():
    assert left_out("world=cartpole", "seed=0,1", "+x.y=range(1,3)", "run_dir=/tmp/a") == ["world", "run_dir"]
    assert left_out("x=interval(0.05, 0.4)", "seed=0") == ["seed"]  # Of a sweeper such as Optuna.
    assert left_out("seed=0") is None


@pytest.mark.parametrize("value", ["a/b,c", "[1,2],[3]", "'a b',c", "glob(*)", "${seed},1"])
def test_values_that_are_no_names_are_left_out(value):
    assert left_out(f"x={value}", "seed=0,1") == ["x"]
    assert left_out(f"x={value}") is None


def test_names_are_no_longer_than_folders_may_be():
    settings = [f"section_{index}.of_a_setting={'a' * 30},b" for index in range(6)]
    assert left_out("seed=0,1", *settings) == [f"section_{index}.of_a_setting" for index in (2, 3, 4, 5)]
    assert left_out(f"x={'a' * 200},b") is None


@pytest.mark.parametrize(
    "arguments", [["seed=0,1"], ["-m", "hydra.sweep.subdir=x", "seed=0,1"], ["-m", "seed=0,,"], ["-m"]]
)
def test_other_arguments_stay_as_they_are(arguments):
    assert name_folders(arguments) == arguments


def test_folders_of_sweeps_can_be_given_to_other_commands():
    assert quote_names(["path=runs/0_a=1_b=2", "x=1", "--config-dir=a=b"]) == [
        *("path='runs/0_a=1_b=2'", "x=1", "--config-dir=a=b")
    ]
    (path,) = PARSER.parse_overrides(quote_names(["path=runs/a sweep/0_a=1"]))
    assert path.value() == "runs/a sweep/0_a=1"
    first, *_ = PARSER.parse_overrides(quote_names(["-m", "path=runs/0_a=1,runs/1"])[1:])
    assert list(first.sweep_string_iterator()) == ["'runs/0_a=1'", "runs/1"]
    written = ["x='a=b'", "x=[a=b]", "x={a:b}", "x=choice(a=b)", r"x=a\=b"]
    assert quote_names(written) == written


def test_lists_are_written_as_hydra_reads_them():
    names = ("paper", "arms")
    assert quote_lists(["paper=gigpo,nft", "seeds=1-3", "status=true"], names) == [
        *("paper=['gigpo','nft']", "seeds=1-3", "status=true")
    ]
    assert quote_lists(["paper=lm_rl/*", "arms=null", "arms=[a]"], names) == [
        "paper=['lm_rl/*']",
        "arms=null",
        "arms=[a]",
    ]
    assert quote_lists(["-m", "paper=a,b"], names) == ["-m", "paper=['a'],['b']"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("[a.b=1e-3,c=d]", ["a.b=1e-3", "c=d"]),
        ("a=[1,2],~c", ["a=[1,2]", "~c"]),
        ("[a={b: 1, c: 2}, '+d=e']", ["a={b: 1, c: 2}", "+d=e"]),
        ('["a=b,c",d="it\'s"]', ["a=b,c", 'd="it\'s"']),
        ("[]", []),
    ],
)
def test_overrides_are_read_as_they_are_written(written, read):
    (quoted,) = quote_lists([f"overrides={written}"], ("overrides",))
    assert PARSER.parse_override(quoted).value() == read
