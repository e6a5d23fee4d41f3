"""The levels of tests: which cases of a slow test are exhaustive, and which exhaustive tests a commit runs."""

import pathlib
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def levels(pytestconfig):
    return pytestconfig.pluginmanager.get_plugin(str(pathlib.Path(__file__).with_name("conftest.py")))


def test_as_many_commits_as_there_are_shares_run_every_test_once(levels):
    nodeids = [f"tests/test_worlds.py::test_play[{name}-4]" for name in range(200)]
    due = [[levels.is_due(nodeid, f"{commit:x}\n") for commit in range(levels._SHARES)] for nodeid in nodeids]
    assert all(sum(of_test) == 1 for of_test in due)
    assert all(any(of_commit) for of_commit in zip(*due, strict=True))


def test_tests_of_one_world_are_due_together(levels):
    def due(nodeid):
        return [levels.is_due(nodeid, f"{commit:x}") for commit in range(levels._SHARES)]

    first = due("tests/test_worlds.py::test_play[lake-4]")
    assert first == due("tests/test_worlds.py::test_fuzz[lake-10000]") == due("tests/test_worlds.py::test_look[lake]")


def test_slow_tests_are_always_run(levels):
    def item(nodeid, mark):
        return SimpleNamespace(
            nodeid=nodeid, function=None, get_closest_marker=lambda name: mark if name == mark else None
        )

    slow = [item(f"tests/a.py::test[{number}]", "slow") for number in range(30)]
    exhaustive = [item(f"tests/a.py::test[{number}]", "exhaustive") for number in range(60)]
    kept, left_out = [*slow, *exhaustive], []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    levels.pytest_collection_modifyitems(SimpleNamespace(getoption=lambda name: True, hook=hook), kept)
    assert kept[:30] == slow and len(kept) - 30 < 30 and len(kept) + len(left_out) == 90


@pytest.mark.slow
@pytest.mark.parametrize("letter", "ab")
@pytest.mark.parametrize("number", [1, 2])
def test_of_a_slow_test_with_many_cases_the_first_is_slow(letter, number, request):
    first = (letter, number) == ("a", 1)
    assert [mark.name for mark in request.node.iter_markers() if mark.name != "parametrize"] == [
        "slow" if first else "exhaustive"
    ]
