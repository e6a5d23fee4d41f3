import base64
import html.parser
import json
import math
import re
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxagents.reporting.loggers import open_logger
from jaxagents.reporting.reports import versions, write_report, write_result


class Page(html.parser.HTMLParser):
    """Collects the tags that are open at the end, the attributes that load something, and the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.loads, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)
        self.loads += [value for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_versions_name_the_code_and_the_device():
    found = versions()
    assert found["jax"] == jax.__version__
    assert found["numpy"] == np.__version__
    assert found["device"] == "8 x cpu (cpu)"
    assert re.fullmatch(r"[0-9a-f]{40}(\+changes)?", found.get("commit", "0" * 40))
    assert all(isinstance(value, str) for value in found.values())


def test_write_result_is_json_with_its_origin(tmp_path):
    path = write_result(tmp_path / "run", {"eval": {"return": jnp.float32(0.1), "seeds": np.array([1.0, math.nan])}})
    result = json.loads(path.read_text())
    assert path == tmp_path / "run" / "result.json"
    assert result["eval"] == {"return": 0.1, "seeds": [1.0, None]}
    assert result["versions"] == versions()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", result["finished"])
    assert [path.name for path in path.parent.iterdir()] == ["result.json"]


def test_write_result_keeps_what_the_result_says(tmp_path):
    path = write_result(tmp_path, {"versions": {"jax": "1"}, "finished": "then"})
    assert json.loads(path.read_text()) == {"versions": {"jax": "1"}, "finished": "then"}


def test_report_is_one_file_with_everything(tmp_path):
    logger = open_logger(tmp_path, tensorboard=False)
    logger.log(100, 1, {"train/loss": 0.75, "eval/return": 3.0})
    logger.log(200, 2, {"train/loss": 0.5})
    logger.close()
    (tmp_path / "config.yaml").write_text("learner:\n  rate: 0.1  # <script>alert(1)</script>\n")
    write_result(tmp_path, {"steps": 1234567, "eval": {"return": 487.25}, "algorithm": "<b>ppo</b> & more"})
    text = write_report(tmp_path).read_text()
    page = Page(text)
    assert page.open == ["html"] or page.open == []
    assert len(page.loads) == 1
    assert (
        base64.b64decode(page.loads[0].removeprefix("data:image/png;base64,")) == (tmp_path / "curves.png").read_bytes()
    )
    assert not re.search(r"https?://|@import|url\(", text)
    assert "<script" not in text
    assert "<b>ppo" not in text
    for word in ("1,234,567", "487.2", "<b>ppo</b> & more", "eval.return", "train/loss", "0.5", jax.__version__):
        assert word in page.words, word
    assert "learner:\n  rate: 0.1  # <script>alert(1)</script>\n" in page.words
    assert Page(write_report(tmp_path, curves=False).read_text()).loads == []


def test_report_of_an_unfinished_run_shows_what_there_is(tmp_path):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text("seed: 7\n")
    page = Page(write_report(tmp_path).read_text())
    assert page.loads == []
    assert "seed: 7\n" in page.words
    assert "Curves" not in page.words
    assert "Result" not in page.words


def test_report_refuses_what_is_no_run(tmp_path):
    with pytest.raises(ValueError, match="`run_dir` must be the directory of a run"):
        write_report(tmp_path / "missing")


def test_report_leads_with_the_last_evaluation_and_the_command(tmp_path):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("- world=cartpole\n- 'learner.x=[1, 2]'\n")
    (tmp_path / "config.yaml").write_text(
        "evaluation: {greedy: true, num_episodes: 8, final_episodes: 64}\ntraining: {target_return: 475}\n"
    )
    reached = {"reached_target": False}
    evaluation = {"episode_length": [9.0, 9.0], "episode_return": [2.0, 4.0], "success": [None, None]}
    write_result(
        tmp_path, {"experiment": "ppo_cartpole", "steps": 64, "num_seeds": 2, "evaluation": evaluation} | reached
    )
    page = Page(write_report(tmp_path).read_text())
    words = [word.strip() for word in page.words if word.strip()]
    tiles = words[words.index("episode return, 2 seeds") - 1 :]
    # Two seeds of 2 and 4: 3 +- 12.706 * 1.
    assert tiles[:2] == ["3 (-9.71 to 15.7)", "episode return, 2 seeds"]
    assert words.index("episode return, 2 seeds") < words.index("steps") < words.index("num seeds")
    assert "success, 2 seeds" not in words
    assert (
        "Evaluated on 64 episodes of fixed tasks, by the most probable actions. The target, a return of 475, was not "
        "reached."
    ) in words
    assert "ppo_cartpole" in words and "python experiments/train.py world=cartpole 'learner.x=[1, 2]'" in words


def test_the_command_of_a_run_is_read_by_shells_as_it_was_given(tmp_path):
    (tmp_path / ".hydra").mkdir()
    given = ["world=cartpole", "run_dir='/a/b c'", "start_from='/a/b'", "x='1/2$'", "y=[1,2]", "z='a=b'", "~q"]
    (tmp_path / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(given))
    words = Page(write_report(tmp_path).read_text()).words
    (command,) = [word for word in words if word.startswith("python experiments/train.py")]
    assert 'run_dir="' not in command and """ "run_dir='/a/b c'" start_from=/a/b """ in command
    unquoted = given[:2] + ["start_from=/a/b"] + given[3:]
    assert shlex.split(command)[2:] == unquoted
