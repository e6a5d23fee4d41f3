"""The site of methods: pages are well formed, links resolve, and nothing is fetched from elsewhere."""

import html.parser
import re
import shutil
from dataclasses import replace

import pytest

from jaxagents.papers.pages import write_index
from jaxagents.papers.runs import ArmRuns
from jaxagents.papers.site import code_link, find_worlds, write_method_page, write_site, write_worlds
from jaxagents.papers.summary import authors_rows, gather_curve, panels_of, study_panel
from tests import ROOT
from tests.papers.small_index import with_entry

VOID = {"meta", "link", "input", "br", "img", "path", "circle"}
NESTED = {"ul": ("li",), "table": ("tr",), "tr": ("td", "th"), "dl": ("dt", "dd"), "select": ("option",)}


class Page(html.parser.HTMLParser):
    """Follows tags, and refuses those that are not closed in order or stand where they must not."""

    def __init__(self, path):
        super().__init__()
        self.path, self.open, self.links, self.ids, self.fetched, self.text = path, [], [], set(), [], []
        self.feed(path.read_text(encoding="utf-8"))
        assert self.open == [], (path, self.open)

    def handle_starttag(self, tag, attributes):
        words = dict(attributes)
        self.ids.add(words.get("id"))
        self.links += [words["href"]] if tag == "a" else []
        self.fetched += [words[name] for name in ("src", "href", "srcset", "action") if name in words and tag != "a"]
        outer = self.open[-1] if self.open else None
        if outer in NESTED:
            assert tag in NESTED[outer], (self.path, outer, tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag, (self.path, tag)

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def site(families, index, tmp_path_factory):
    """Returns the folder of a site of all cards, and one world."""
    worlds = find_worlds(ROOT / "configs" / "environment", ["bandit"])
    folder = write_site(tmp_path_factory.mktemp("site"), families, index, worlds).parent
    write_worlds(folder, worlds, num_episodes=1)
    return folder


def test_worlds_are_played_once_until_they_change(site, tmp_path, monkeypatch):
    folder = tmp_path / "site"
    shutil.copytree(site, folder)
    page = folder / "worlds" / "bandit.html"
    (world,) = find_worlds(ROOT / "configs" / "environment", ["bandit"])
    out, before = [], page.read_text()
    page.unlink()
    write_worlds(folder, [world], num_episodes=1, say=out.append)
    assert out == [] and page.read_text() == before
    changed = world._replace(node=world.node | {"num_levels": 2})

    def play(environment, *, num_episodes):
        raise RuntimeError("it plays")

    monkeypatch.setattr("jaxagents.papers.site.play_experts", play)
    for other, count in ((changed, 1), (world, 2)):
        with pytest.raises(RuntimeError, match="it plays"):
            write_worlds(folder, [other], num_episodes=count, say=out.append)
    assert out == ["Playing bandit (1 of 1) ..."] * 2 and page.read_text() == before


def test_trials_have_no_verdict_on_any_page(families, index, tmp_path):
    trial = with_entry(index, first=index.entries["gigpo"].first._replace(is_trial=True))
    words = write_index(tmp_path, families, trial).read_text(encoding="utf-8")
    assert "3 implemented, 1 measured, 0 judged, of which 0 reproduced" in words
    assert "| implemented | trial, no verdict (6 of 6 runs) |" in words
    text = write_method_page(tmp_path / "gigpo.html", families, trial, "gigpo").read_text(encoding="utf-8")
    assert "trial, no verdict (6 of 6 runs)" in text and ">reproduced<" not in text


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site).as_posix(): Page(path) for path in sorted(site.rglob("*.html"))}


def words_of(page):
    return " ".join(" ".join(page.text).split())


def test_every_paper_has_its_page_and_its_line(families, pages):
    ids = [card.id for family in families for card in family.cards]
    assert len(ids) == 326 and {f"methods/{name}.html" for name in ids} <= set(pages)
    assert len(pages) == 326 + 1 + 1 + 1
    linked = [link for link in pages["index.html"].links if link.startswith("methods/")]
    assert sorted(linked) == sorted(f"methods/{name}.html" for name in ids)
    assert "3 implemented 2 measured 1 judged 1 reproduced" in words_of(pages["index.html"])


def test_links_resolve_and_nothing_is_fetched(site, pages):
    for name, page in pages.items():
        assert set(page.fetched) <= {"data:,"}, (name, page.fetched)
        text = (site / name).read_text(encoding="utf-8")
        outside = re.findall(r'href="(https?:[^"]*)" rel="noreferrer"', text)  # Code of the authors.
        assert len(re.findall("https?:", text)) == len(outside) and "@import" not in text and "url(" not in text, name
        for link in [link for link in page.links if link not in outside]:
            path, _, place = link.partition("#")
            target = (site / name).parent / path if path else site / name
            assert target.is_file(), (name, link)
            if place and "=" not in place:
                assert place in pages[target.resolve().relative_to(site.resolve()).as_posix()].ids, (name, link)


def test_the_page_of_a_judged_method_says_what_came_out(site, pages):
    text = (site / "methods" / "gigpo.html").read_text(encoding="utf-8")
    words = words_of(pages["methods/gigpo.html"])
    assert "Verdict: reproduced" in words and "success of ours higher than of theirs by 0.1 held 0.2" in words
    assert "Secondary: 1 not held" in words and "12 points & more" in words
    assert "Does credit by state help <b>?" in words
    assert "95 % intervals, over episodes of training." in words and "seeds 10 to 12" in words and "No KL." in words
    assert "python experiments/train.py world=bandit algorithm=grpo +method=gigpo" in words
    assert "A_t = A_episode + w A_turn" in words and "advantage: gigpo" in words
    assert "github.com/langfengQ/DrMAS/blob/3b556f2/gigpo/core_gigpo.py#L87-L120" in text
    assert text.count('class="interval held"') == 1 and text.count('class="interval not-held"') == 1
    # Two panels of two arms: lines with their bands, and points.
    curves = text.partition("<h3>Curves</h3>")[2]
    assert curves.count("<circle") == 2 and text.count('class="band') == 2 and text.count("<figcaption>") == 2


def test_the_page_of_a_measured_method_has_its_arms_beside_the_baselines(site, pages):
    text, words = (site / "methods" / "igpo.html").read_text(encoding="utf-8"), words_of(pages["methods/igpo.html"])
    assert "Measured in lm_rl/credit" in words and "igpo 0.6 (0.5 to 0.7) 0.2 (0.15 to 0.25) 0.01 better 2 0 0" in words
    assert "python experiments/train.py experiment=x +method=igpo" in words
    assert text.count("<figcaption>") == 1 and text.count('class="line') == 4  # Two in the legend.


def test_the_page_of_a_study_has_its_table_and_its_picture(site, pages):
    text, words = (
        (site / "studies/lm_rl/credit.html").read_text(encoding="utf-8"),
        words_of(pages["studies/lm_rl/credit.html"]),
    )
    assert "python experiments/reproduce.py study=credit" in words and "Turns help. Rows do not: a < b ." in words
    assert "<code>a &lt; b</code>" in text
    assert text.count('class="forest"') == 1 and "0.01 better 2 0 0 2.0 1" in words and "1 differences" in words
    assert "in units of 0.05, the smallest effect" in words and text.count('class="mean better"') == 1
    assert "../../methods/gigpo.html" in pages["studies/lm_rl/credit.html"].links


def test_a_page_alone_links_to_no_other(families, index, tmp_path):
    page = Page(write_method_page(tmp_path / "new" / "gigpo.html", families, index, "gigpo"))
    assert [link for link in page.links if not link.startswith("https:")] == ["#top"]


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("a/b@1234567 c/d.py:10-20, 30 (x)", "https://github.com/a/b/blob/1234567/c/d.py#L10-L20"),
        ("a/b@1234567 c/d.py:10, 30", "https://github.com/a/b/blob/1234567/c/d.py#L10"),
        ("read in a/b@1234567, its copy", "https://github.com/a/b/tree/1234567"),
        ("none released", None),
    ],
)
def test_code_is_linked_where_it_is_named(text, link):
    assert code_link(text) == link


def test_arms_that_have_not_run_or_share_no_step_have_no_curve(index):
    tested = index.entries["gigpo"].first
    logged = [run.curves["eval/success"] for run in tested.runs["ours"].runs.values()]
    assert gather_curve(logged).values.shape == (3, 3) and gather_curve([]) is None
    assert gather_curve([{"steps": [seed], "values": [1.0]} for seed in range(3)]) is None
    waiting = tested._replace(runs={**tested.runs, "theirs": ArmRuns({})})
    assert [[line.name for line in panel.lines] for panel in panels_of(waiting)] == [["ours"], ["ours"]]
    study = index.studies["lm_rl/credit"]
    assert study_panel(study, ["ours"]) is None and study_panel(study, ["igpo", "ours"]).lines[0].name == "igpo"


def test_papers_that_are_not_implemented_say_so(pages):
    assert "Its method is not implemented here yet." in words_of(pages["methods/nft.html"])


def test_a_world_shows_its_expert(pages):
    words = " ".join(" ".join(pages["worlds/bandit.html"].text).split())
    assert "What its expert plays" in words and "action" in words and "reward" in words


def test_settings_of_the_authors_stand_beside_ours(index):
    tested = index.entries["gigpo"].first
    named = tested._replace(paper=replace(tested.paper, authors={"learner.num_epochs": 1}))
    assert authors_rows(named) == [("learner.num_epochs", "1", "2")]
    (treatment,) = named.composed.values()
    other = treatment._replace(function={"learner": {"num_epochs": None}})
    unset = named._replace(composed={named.paper.arms[0].name: other})
    assert authors_rows(unset) == [("learner.num_epochs", "1", "not set")]
    wrong = tested._replace(paper=replace(tested.paper, authors={"learner.epochs": 1}))
    with pytest.raises(
        ValueError, match="`authors` of gigpo must name settings of ours, got 'learner.epochs'; .* is num"
    ):
        authors_rows(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_opens_every_kind_of_page_at_once_and_says_nothing(site, browser, scheme):
    page = browser.new_page(color_scheme=scheme)
    words, asked = [], []
    page.on("console", lambda message: words.append(message.text))
    page.on("pageerror", lambda error: words.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    opened = (
        "index.html",
        "methods/gigpo.html",
        "methods/igpo.html",
        "studies/lm_rl/credit.html",
        "worlds/bandit.html",
    )
    for name in opened:
        page.goto((site / name).as_uri(), wait_until="load")
        timing = "() => { const [e] = performance.getEntriesByType('navigation'); return e.loadEventEnd - e.startTime }"
        assert page.evaluate(timing) < 1000.0, name
        assert asked.pop() == (site / name).as_uri() and asked == [] and words == [], (name, asked, words)
        # No page is wider than a narrow window.
        page.set_viewport_size({"width": 380, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, name
        page.set_viewport_size({"width": 1280, "height": 900})
    page.close()


@pytest.mark.exhaustive
def test_methods_are_searched_and_filtered_by_keys_alone(site, browser):
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    shown = page.locator(".family li:visible")
    assert shown.count() == 326
    page.keyboard.press("/")
    page.keyboard.type("group-in-group")
    assert shown.count() == 1 and page.url.endswith("#search=group-in-group")
    page.keyboard.press("Escape")
    assert shown.count() == 326
    page.keyboard.press("Tab")
    page.keyboard.type("teams")  # Chooses the family in the list that has the focus now.
    assert shown.count() == 42 and page.url.endswith("#family=multiagent")
    page.keyboard.press("/")
    page.goto((site / "index.html").as_uri() + "#level=judged&word=reproduced")
    page.reload()
    assert shown.count() == 1 and "1 paper" in page.locator("output").inner_text()
    page.keyboard.press("/")
    page.keyboard.type("nothing has these words")
    assert shown.count() == 0 and page.locator("#none").is_visible()
    page.close()
