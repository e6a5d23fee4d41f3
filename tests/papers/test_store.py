"""Files of results: what is kept, and what is refused."""

import json

import pytest

from jaxagents.papers.store import read_results, select_arms, write_results

RUN = {"minutes": 0.5, "curves": {"eval/success": {"steps": [0, 8], "values": [0.25, float("nan")]}}}
RESULTS = {
    "paper": "p",
    "arms": {"a": {"hash": "1", "runs": {"0": RUN}}, "b": {"hash": "2", "runs": {}}},
    "starts": {},
}


@pytest.fixture
def path(tmp_path):
    write_results(tmp_path / "deep" / "p.json", RESULTS)
    return tmp_path / "deep" / "p.json"


def test_what_is_written_is_read(path):
    results = read_results(path, "p")
    assert results["arms"]["a"]["runs"]["0"]["curves"]["eval/success"] == {"steps": [0, 8], "values": [0.25, None]}
    assert [file.name for file in path.parent.iterdir()] == ["p.json"]
    assert '"values": [0.25, null]' in path.read_text().replace("[ ", "[").replace(" ]", "]")


def test_without_a_file_there_is_nothing(tmp_path):
    assert read_results(tmp_path / "p.json", "p") == {"paper": "p", "arms": {}, "starts": {}}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("starts", "ends"),
        lambda text: text.replace('"0"', '"zero"'),
        lambda text: text.replace("hash", "hush"),
        lambda text: "[]",
        lambda text: "",
    ],
)
def test_a_damaged_file_is_named_and_left_alone(path, damage):
    damaged = damage(path.read_text())
    path.write_text(damaged)
    with pytest.raises(ValueError, match=r"`.*p.json` must hold the results of a paper, got a damaged file"):
        read_results(path, "p")
    assert path.read_text() == damaged


def test_results_of_another_paper_are_refused(path):
    with pytest.raises(ValueError, match="must hold the results of q, got those of p"):
        read_results(path, "q")
    assert read_results(path)["paper"] == "p"


def test_results_of_another_config_are_never_mixed():
    assert set(select_arms(RESULTS, {"a": "1", "b": "2", "c": "3"})) == {"a", "b"}
    message = r"got changed arms: b \(config 2, now 9\); try redo=true"
    with pytest.raises(ValueError, match=message):
        select_arms(RESULTS, {"a": "1", "b": "9"})
    with pytest.raises(ValueError, match=r"b \(config 2, now not an arm of it\)"):
        select_arms(RESULTS, {"a": "1"})
    # Redone arms go, and so do changed ones, which nobody would compare with the others.
    assert set(select_arms(RESULTS, {"a": "1", "b": "9"}, redo=["b"])) == {"a"}
    assert select_arms(RESULTS, {"a": "1", "b": "9"}, redo=["a"]) == {}
    assert json.dumps(RESULTS["arms"]["b"]) == '{"hash": "2", "runs": {}}'
