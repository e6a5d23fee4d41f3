"""Files of results: what is kept, and what is refused."""

import pytest

from jaxagents.papers.store import read_results, select_arms, stale_arms, write_results

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


def test_results_of_another_config_are_kept_and_never_mixed():
    today = select_arms(RESULTS, {"a": "1", "b": "9"})
    assert set(today["arms"]) == {"a"}
    assert today["earlier"] == [{"name": "b", "hash": "2", "runs": {}, "start_evaluation": None}]
    assert set(stale_arms(today)) == {"b (stale)"}
    assert set(select_arms(RESULTS, {"a": "1", "b": "2", "c": "3"})["arms"]) == {"a", "b"}
    assert [arm["name"] for arm in select_arms(RESULTS, {"a": "1"})["earlier"]] == ["b"]  # Not an arm any more.
    # Where settings are set back, results are of today's settings again, whether or not newer ones came between.
    newer = {**today, "arms": {**today["arms"], "b": {"hash": "9", "runs": {"0": RUN}}}}
    again = select_arms(newer, {"a": "1", "b": "2"})
    assert again["arms"] == RESULTS["arms"] and [arm["hash"] for arm in again["earlier"]] == ["9"]
    again["earlier"].append({**again["earlier"][0], "hash": "8"})
    assert set(stale_arms(again)) == {"b (stale)", "b (stale 8)"}


def test_redone_arms_are_dropped_and_stale_ones_are_not():
    redone = select_arms(RESULTS, {"a": "1", "b": "9"}, redo=["a", "b"])
    assert redone["arms"] == {} and [arm["name"] for arm in redone["earlier"]] == ["b"]


def test_arms_of_another_training_of_the_same_start_stay_stale():
    first, second = {"evaluation": {"eval/success": 0.5}}, {"evaluation": {"eval/success": 0.6}}
    arm = {"hash": "1", "start": "s", "runs": {}}
    stored = {"paper": "p", "arms": {"a": arm}, "starts": {"s": first}}
    stored["earlier"] = [{"name": "b", **arm, "start_evaluation": second}]
    today = select_arms(stored, {"a": "1", "b": "1"})
    assert set(today["arms"]) == {"a"} and today["starts"] == {"s": first} and today["earlier"] == stored["earlier"]
