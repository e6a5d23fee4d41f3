"""Builds the documentation, and looks at it: no link is broken, nothing is loaded from elsewhere."""

import functools
import http.server
import re
import threading
from html.parser import HTMLParser

import pytest

from jaxagents.documentation.pages import generated_pages
from jaxagents.documentation.site import build_site, lead_to_pages
from tests import ROOT


class Loaded(HTMLParser):
    """Gathers what a page loads by itself; links to follow do not count."""

    def __init__(self):
        super().__init__()
        self.addresses = []

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        if tag in ("script", "img", "iframe", "source"):
            self.addresses.append(named.get("src"))
        if tag == "link" and named.get("rel") != "canonical":
            self.addresses.append(named.get("href"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the documentation is built by the extra `docs`: mkdocs-material")
    return build_site(ROOT, tmp_path_factory.mktemp("docs")).parent


@pytest.fixture(scope="module")
def pages():
    return generated_pages(ROOT)


def test_links_into_the_repository_become_links_between_pages():
    text = "[a](../../configs) [b](run.md) [c](../../configs/experiment)"
    assert lead_to_pages(text) == "[a](slots.md) [b](run.md) [c](experiments/index.md)"


def test_every_option_and_every_experiment_has_its_place(pages):
    assert "## rloo\n\nReturn minus that of the others" in pages["slots/advantage.md"]
    assert "| `discount` | `1.0` | gamma per turn, of the return (paper: 1) |" in pages["slots/advantage.md"]
    experiments = {path.stem for path in (ROOT / "configs/experiment").glob("*.yaml")}
    assert {f"experiments/{name}.md" for name in [*experiments, "index"]} == {
        name for name in pages if name.startswith("experiments/")
    }
    page = pages["experiments/ppo_tmaze.md"]
    assert "](../pictures/curves/ppo_tmaze.png)" in page and "](../pictures" not in pages["experiments/ippo_tag.md"]
    assert "1.00 on 4 of 5 seeds" in page and "experiment=ppo_tmaze" in page and "\nSuccess rate 0.95" in page
    assert "experiment=ppo_tmaze\n```\n\nWith another setting: policy=mlp stays at chance." in page


def test_what_there_is_is_on_one_page(pages):
    assert "| `frozenlake` | 4x4 lakes in words" in pages["choices.md"]
    assert "| `gigpo` | " in pages["choices.md"]


def test_notebooks_are_pages_with_their_code_and_what_came_out(pages):
    files = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert {f"notebooks/{name}.md" for name in ["index", *(file.stem for file in files)]} == {
        name for name in pages if name.startswith("notebooks/")
    }
    text = pages["notebooks/05_paper.md"]
    code, printed = (
        text.index("```python\nfrom jaxagents.papers.library import"),
        text.index("```text\nCultural Evolution"),
    )
    assert text.startswith("# Reproduce a paper\n") and code < printed < text.index('src="data:image/png;base64,')
    assert "\x1b" not in text
    assert (
        "| [Quickstart](01_quickstart.md) | You will see an agent catch a falling ball" in pages["notebooks/index.md"]
    )
    link = lead_to_pages("[a](../../notebooks) [b](../../notebooks/01_quickstart.ipynb)")
    assert link == "[a](notebooks/index.md) [b](notebooks/01_quickstart.md)"


def test_commands_have_their_settings(pages):
    text = pages["commands.md"]
    assert text.index("## evaluate.py") < text.index("| `which` | `best` | checkpoint") < text.index("## play.py")
    assert "| `workers` |" in text[text.index("## reproduce.py") :]


def test_the_api_has_signatures_and_sections(pages):
    text = pages["api/ops.md"]
    start = text.index("### grpo { #jaxagents.ops.credit.grpo }")
    assert "def" not in text[start : start + 40] and "**Returns**" in text[start : start + 2000]


@pytest.mark.slow
def test_the_site_is_built_without_broken_links_and_loads_nothing_from_elsewhere(site):
    files = sorted(site.rglob("*.html"))
    assert len(files) > 50
    for file in files:
        parser = Loaded()
        parser.feed(file.read_text(encoding="utf-8"))
        assert parser.addresses
        assert [address for address in parser.addresses if address and re.match(r"(https?:)?//", address)] == [], file
    for sheet in (site / "assets").rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//\S+", sheet.read_text(encoding="utf-8")) == []


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address(site):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.exhaustive
def test_a_browser_reads_and_searches_it_without_an_error_or_a_request_elsewhere(site, address, browser):
    errors, asked = [], []
    for scheme, look in (("light", "default"), ("dark", "slate")):
        page = browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 900})
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        for root in (address, site.as_uri()):
            for name in ("index.html", "slots/advantage.html"):
                page.goto(f"{root}/{name}", wait_until="load")
                assert page.locator("h1").count() == 1, name
        assert page.evaluate("document.body.getAttribute('data-md-color-scheme')") == look
    page.goto(f"{address}/index.html", wait_until="load")
    page.locator("[data-md-component=search-query]").fill("exploitability")
    page.locator(".md-search-result__link").first.wait_for(timeout=20000)
    assert errors == [] and [url for url in asked if not url.startswith(("file:", "data:", address))] == []
