"""The pages of a run in Debian's Chromium: no errors, nothing loaded, light and dark, narrow windows, keys."""

import shutil

import pytest

from jaxagents.data.schema import Trajectory, Turn
from jaxagents.reporting.reports import write_report, write_result
from jaxagents.reporting.transcript_html import write_transcripts


@pytest.fixture(scope="module")
def browser():
    driver = pytest.importorskip("playwright.sync_api", reason="a browser is driven by the extra `browser`: playwright")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium is installed; try apt-get install chromium")
    with driver.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    turn = Turn(turn=0, observation="P _ / _ G", action="right", reward=1.0, terminated=True)
    played = [
        Trajectory(id=f"episode-{i}", world="w", turns=(turn,), success=i % 2 == 0, episode_return=1.0)
        for i in range(5)
    ]
    write_transcripts(folder / "transcripts.html", {"Before": played[:2], "After": played[2:]})
    write_result(folder, {"experiment": "ppo_cartpole", "steps": 64, "evaluation": {"episode_return": 1.5}})
    write_report(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_open_without_an_error_or_a_request(run_dir, browser, scheme):
    page = browser.new_page(color_scheme=scheme)
    told, asked = [], []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    for name in ("report.html", "transcripts.html"):
        page.goto((run_dir / name).as_uri(), wait_until="load")
        assert [url for url in asked if not url.startswith(("data:", "about:"))] == [(run_dir / name).as_uri()]
        asked.clear()
        page.set_viewport_size({"width": 380, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, name
        page.set_viewport_size({"width": 1280, "height": 900})
    assert told == []
    page.close()


@pytest.mark.slow
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
    page.keyboard.press("a")
    assert shown.count() == 5
    page.close()
