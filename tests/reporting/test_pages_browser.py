"""The pages of a run in Debian's Chromium: no errors, nothing loaded, light and dark, narrow windows, keys."""

from dataclasses import replace

import pytest

from jaxagents.data.schema import Trajectory, Turn
from jaxagents.language.tokenizers import word_level
from jaxagents.reporting.reports import write_report, write_result
from jaxagents.reporting.transcript_html import write_transcripts


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    tokenizer = word_level(("right", "left"))
    tokens = (tokenizer.marks["observation"], tokenizer.marks["act"], *tokenizer.encode("right"))
    fields = {"tokens": tokens, "sampled": (False, False, True), "behavior_log_prob": (0.0, 0.0, -1.0)}
    turn = Turn(turn=0, observation="P _ / _ G", action="right", reward=1.0, terminated=True, **fields)
    played = [
        Trajectory(
            id=f"episode-{i}",
            world="w",
            turns=(replace(turn, terminated=False), replace(turn, turn=1)) if i == 4 else (replace(turn, valid=i > 0),),
            success=i % 2 == 0,
            episode_return=1.0,
            metadata={"advantages": [[0.0, 0.0, 0.5 - i]] * (2 if i == 4 else 1)},
        )
        for i in range(5)
    ]
    sections = {"Before": played[:2], "After": played[2:]}
    write_transcripts(folder / "transcripts.html", sections, tokenizer=tokenizer)
    write_result(folder, {"experiment": "ppo_cartpole", "steps": 64, "evaluation": {"episode_return": 1.5}})
    write_report(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_open_without_an_error_or_a_request(run_dir, browser, scheme):
    page = browser.new_page(color_scheme=scheme)
    detail, asked = [], []
    page.on("console", lambda message: detail.append(message.text))
    page.on("pageerror", lambda error: detail.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    for name in ("report.html", "transcripts.html"):
        page.goto((run_dir / name).as_uri(), wait_until="load")
        assert [url for url in asked if not url.startswith(("data:", "about:"))] == [(run_dir / name).as_uri()]
        asked.clear()
        page.set_viewport_size({"width": 380, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, name
        page.set_viewport_size({"width": 1280, "height": 900})
    assert detail == []
    page.close()


@pytest.mark.exhaustive
def test_episodes_are_filtered_and_visited_by_keys_alone(run_dir, browser):
    page = browser.new_page()
    page.goto((run_dir / "transcripts.html").as_uri())
    shown = page.locator("article:visible")
    focused = "document.activeElement.querySelector('b').textContent"
    assert shown.count() == 5
    page.keyboard.press("f")
    assert shown.count() == 2 and page.locator("output").inner_text() == "2 of 5"
    page.keyboard.press("j")
    assert page.evaluate(focused) == "episode-1"
    page.keyboard.press("j")
    assert page.evaluate(focused) == "episode-3"
    page.keyboard.press("k")
    assert page.evaluate(focused) == "episode-1"
    page.keyboard.press("s")
    assert shown.count() == 3
    page.keyboard.press("i")
    assert shown.count() == 1
    page.keyboard.press("a")
    assert shown.count() == 5
    page.close()


@pytest.mark.exhaustive
def test_numbers_of_a_token_are_shown_by_hovering_and_by_arrows(run_dir, browser):
    page = browser.new_page()
    page.goto((run_dir / "transcripts.html").as_uri())
    detail, tokens = page.locator("#detail"), page.locator("[data-detail]")
    assert not detail.is_visible()
    tokens.nth(1).hover()
    assert "probability 0.368, log-probability -1.000, advantage -0.5" in detail.inner_text()
    page.keyboard.press("Escape")
    assert not detail.is_visible()
    page.keyboard.press("j")
    page.keyboard.press("ArrowRight")
    assert detail.inner_text().endswith("advantage +0.5")
    background = "document.querySelectorAll('[data-detail]')[1].computedStyleMap().get('background-color').toString()"
    shade = page.evaluate(background)
    page.keyboard.press("v")
    assert page.evaluate(background) != shade  # Advantages in place of probabilities.
    page.close()


@pytest.mark.exhaustive
def test_checkpoints_stand_side_by_side_task_by_task(run_dir, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((run_dir / "transcripts.html").as_uri())
    place = page.locator("article")
    assert place.nth(2).bounding_box()["y"] > place.nth(1).bounding_box()["y"]
    page.keyboard.press("c")
    boxes = [place.nth(index).bounding_box() for index in range(4)]
    assert boxes[0]["y"] == boxes[2]["y"] and boxes[1]["y"] == boxes[3]["y"] > boxes[0]["y"]
    assert boxes[2]["x"] >= boxes[0]["x"] + boxes[0]["width"]
    page.close()


@pytest.mark.exhaustive
def test_repeated_observations_are_unfolded_by_keys_alone(run_dir, browser):
    page = browser.new_page()
    page.goto((run_dir / "transcripts.html").as_uri())
    tokens, detail = page.locator("[data-detail]:visible"), page.locator("#detail")
    assert page.locator("[data-detail]").count() == 6 and tokens.count() == 5
    for _ in range(5):
        page.keyboard.press("j")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert detail.is_visible() and tokens.nth(4).evaluate("token => token.classList.contains('chosen')")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent").startswith(
        "1 more time the same: right · reward +1 · end"
    )
    page.keyboard.press("Enter")
    assert tokens.count() == 6
    page.keyboard.press("Enter")
    assert tokens.count() == 5
    page.keyboard.press("r")
    assert tokens.count() == 6
    page.keyboard.press("r")
    assert tokens.count() == 5
    page.close()
