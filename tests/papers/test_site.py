"""The site of all papers: every page is well formed, every link resolves, and nothing is fetched from elsewhere."""

import html.parser
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from jaxagents.papers.catalogue import Entry, read_cards, read_entries
from jaxagents.papers.expectations import Expectation
from jaxagents.papers.judge import judge
from jaxagents.papers.pages import describe_verdicts, write_pages, write_summary
from jaxagents.papers.runs import ArmRuns, Run
from jaxagents.papers.site import find_worlds, write_site, write_worlds
from jaxagents.papers.study import Arm, Paper, Study
from jaxagents.papers.summary import authors_rows, gather_curve, panels_of
from tests import ROOT

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
        told = dict(attributes)
        self.ids.add(told.get("id"))
        self.links += [told["href"]] if tag == "a" else []
        self.fetched += [told[name] for name in ("src", "href", "srcset", "action") if name in told and tag != "a"]
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


def make_run(arm, seed, shift):
    rng = np.random.default_rng(seed)
    steps = [0, 64, 128]
    values = (np.array([0.2, 0.4, 0.6]) + shift + 0.02 * rng.normal(size=3)).tolist()
    curves = {"eval/success": {"steps": steps, "values": values}, "final": {"steps": [0], "values": [shift]}}
    return Run(arm, seed, "done", curves, minutes=0.5, budget=["episodes", 128])


@pytest.fixture(scope="module")
def tested():
    """Returns the entry of one paper with runs, and its families."""
    families = read_cards(ROOT / "experiments" / "cards")
    card = next(card for family in families for card in family.cards if card.id == "gigpo")
    expected = Expectation("success", "higher", ("ours", "theirs"), 0.1)
    study = Study(
        id="lm_rl/credit",
        question="Does credit by state help <b>?",
        metric="success",
        seeds=(10, 11, 12),
        arms=(Arm("theirs", ("world=bandit",)),),
        metrics=("final",),
    )
    paper = Paper(
        id="gigpo",
        family="lm_rl",
        title=card.title,
        claim="12 points & more",
        study=study,
        arms=(Arm("ours", ("world=bandit",)), *study.arms),
        headline=(expected,),
        secondary=(expected._replace(margin=0.9),),
        minutes=3.0,
        seeds=study.seeds,
        notes="No KL.",
    )
    runs = {
        arm: ArmRuns({seed: make_run(arm, seed, shift) for seed in study.seeds})
        for arm, shift in (("ours", 0.2), ("theirs", 0.0))
    }
    return families, Entry(card, paper, runs, judge(paper, runs), {"learner": {"num_epochs": 2}})


@pytest.fixture(scope="module")
def site(tested, tmp_path_factory):
    """Returns the folder of a site of all cards, of which one is tested, and one world."""
    families, entry = tested
    entries = {card.id: Entry(card) for family in families for card in family.cards} | {"gigpo": entry}
    worlds = find_worlds(ROOT / "configs" / "environment", ["bandit"])
    folder = write_site(tmp_path_factory.mktemp("site"), families, entries, worlds).parent
    write_worlds(folder, worlds, entries, num_episodes=1)
    return folder


def test_worlds_are_played_once_until_they_change(tested, site, tmp_path, monkeypatch):
    families, entry = tested
    folder = tmp_path / "site"
    shutil.copytree(site, folder)
    page = folder / "worlds" / "bandit.html"
    entries = {card.id: Entry(card) for family in families for card in family.cards} | {"gigpo": entry}
    (world,) = find_worlds(ROOT / "configs" / "environment", ["bandit"])
    said, before = [], page.read_text()
    page.unlink()
    write_worlds(folder, [world], entries, num_episodes=1, say=said.append)
    assert said == [] and page.read_text() == before
    changed = world._replace(node=world.node | {"num_levels": 2})

    def play(environment, *, num_episodes):
        raise RuntimeError("it plays")

    monkeypatch.setattr("jaxagents.papers.site.play_experts", play)
    for other, count in ((changed, 1), (world, 2)):
        with pytest.raises(RuntimeError, match="it plays"):
            write_worlds(folder, [other], entries, num_episodes=count, say=said.append)
    assert said == ["Playing bandit (1 of 1) ..."] * 2 and page.read_text() == before


def test_trials_have_no_verdict_on_any_page(tested, tmp_path):
    families, entry = tested
    entries = {card.id: Entry(card) for family in families for card in family.cards}
    entries["gigpo"] = entry._replace(is_trial=True)
    told = write_pages(tmp_path / "pages", families, entries).read_text(encoding="utf-8")
    assert "At a glance: 1 trials without a verdict." in told and "| trial, no verdict (6 of 6 runs) |" in told
    index = write_site(tmp_path / "site", families, entries, [])
    for path in (index, index.with_name("findings.html"), index.parent / "papers" / "gigpo.html"):
        text = path.read_text(encoding="utf-8")
        assert "trial, no verdict (6 of 6 runs)" in text and ">reproduced<" not in text, path


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site).as_posix(): Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_paper_has_its_page_and_its_line(tested, pages):
    families, _ = tested
    ids = [card.id for family in families for card in family.cards]
    assert len(ids) == 326 and {f"papers/{name}.html" for name in ids} <= set(pages)
    assert len(pages) == 326 + 1 + 1 + 1
    linked = [link for link in pages["index.html"].links if link.startswith("papers/")]
    assert sorted(linked) == sorted(f"papers/{name}.html" for name in ids)


def test_links_resolve_and_nothing_is_fetched(site, pages):
    for name, page in pages.items():
        assert set(page.fetched) <= {"data:,"}, (name, page.fetched)
        text = (site / name).read_text(encoding="utf-8")
        assert "http:" not in text and "https:" not in text and "@import" not in text and "url(" not in text, name
        for link in page.links:
            path, _, place = link.partition("#")
            target = (site / name).parent / path if path else site / name
            assert target.is_file(), (name, link)
            if place and "=" not in place:
                assert place in pages[target.resolve().relative_to(site.resolve()).as_posix()].ids, (name, link)


def test_the_page_of_a_tested_paper_says_what_came_out(site, pages):
    text = (site / "papers" / "gigpo.html").read_text(encoding="utf-8")
    told = " ".join(" ".join(pages["papers/gigpo.html"].text).split())
    assert "Verdict: reproduced" in told and "success of ours higher than of theirs by 0.1 held 0.2" in told
    assert "Secondary: 1 not held" in told and "12 points & more" in told and "Does credit by state help <b>?" in told
    assert "95 % intervals, over episodes of training." in told
    assert "seeds 10 to 12" in told and "paper=gigpo" in told and "No KL." in told
    # Two panels of two arms: lines with their bands, and points.
    curves = text.partition("<h2>Curves</h2>")[2]
    assert curves.count("<circle") == 2 and text.count('class="band') == 2 and text.count("<figcaption>") == 2
    assert "326 papers 1 with a test here 1 reproduced" in " ".join(" ".join(pages["index.html"].text).split())


def test_headlines_stand_against_their_margins(site, pages):
    text = (site / "findings.html").read_text(encoding="utf-8")
    told = " ".join(" ".join(pages["findings.html"].text).split())
    assert "success of ours higher than of theirs by 0.1: held, 0.2" in told
    assert text.count("<svg") == 1 and text.count('class="interval held"') == 1 and "gigpo" in told
    of_paper = (site / "papers" / "gigpo.html").read_text(encoding="utf-8").partition("<h2>Curves</h2>")[0]
    assert of_paper.count('class="interval held"') == 1 and of_paper.count('class="interval not-held"') == 1
    assert "findings.html" in pages["index.html"].links and "../findings.html" in pages["papers/nft.html"].links


def test_arms_that_have_not_run_or_share_no_step_have_no_curve(tested, tmp_path):
    families, entry = tested
    runs = entry.runs["ours"].runs
    assert gather_curve(runs, "eval/success").values.shape == (3, 3)
    assert gather_curve({}, "eval/success") is None and gather_curve(runs, "other") is None
    apart = {seed: run._replace(curves={"x": {"steps": [seed], "values": [1.0]}}) for seed, run in runs.items()}
    assert gather_curve(apart, "x") is None
    waiting = entry._replace(runs=entry.runs | {"theirs": ArmRuns({})})
    assert [[line.name for line in panel.lines] for panel in panels_of(waiting)] == [["ours"], ["ours"]]
    alone = [family._replace(cards=(entry.card,)) for family in families if family.name == entry.card.family]
    page = (write_site(tmp_path, alone, {"gigpo": waiting}, []).parent / "papers" / "gigpo.html").read_text(
        encoding="utf-8"
    )
    legend = page.partition('class="legend"')[2].partition("</ul>")[0]
    assert "</svg>ours</li>" in legend and "theirs" not in legend


def test_papers_that_are_not_tested_say_so(pages):
    told = " ".join(" ".join(pages["papers/nft.html"].text).split())
    assert (
        "Not tested here yet" in told and "experiments/papers/lm_rl/nft.yaml" in told and "of size S: a config" in told
    )


def test_a_world_shows_its_expert(pages):
    told = " ".join(" ".join(pages["worlds/bandit.html"].text).split())
    assert "What its expert plays" in told and "action" in told and "reward" in told


def test_the_table_of_results_leads_to_a_page_per_tested_paper(tested, tmp_path):
    families, entry = tested
    entries = {card.id: Entry(card) for family in families for card in family.cards} | {"gigpo": entry}
    table = write_pages(tmp_path, families, entries).read_text(encoding="utf-8")
    (line,) = [line for line in table.splitlines() if line.startswith("| [gigpo]")]
    assert "(papers/lm_rl/gigpo.md) | reproduced | success of ours higher than of theirs by 0.1 | 0.2 (0.153" in line
    assert "![Headlines against their margins: " in table and "](papers/lm_rl.svg)" in table
    assert line.endswith(" | held | 10 to 12 | 3.0 |") and "1 of 45 papers have an experiment here." in table
    assert [path.name for path in tmp_path.rglob("*.md")] == ["README.md", "gigpo.md"]
    page = (tmp_path / "papers" / "lm_rl" / "gigpo.md").read_text(encoding="utf-8")
    assert "**Reproduced.**" in page and "| ours | 10 to 12 | " in page and "## Secondary: 1 not held" in page
    changed = entry._replace(changed=("headline", "seeds"))
    write_pages(tmp_path, families, entries | {"gigpo": changed})
    page = (tmp_path / "papers" / "lm_rl" / "gigpo.md").read_text(encoding="utf-8")
    assert "Changed since it was registered: headline, seeds." in page


def test_the_summary_of_the_readme_is_that_of_the_table(tested, tmp_path):
    families, entry = tested
    entries = {card.id: Entry(card) for family in families for card in family.cards} | {"gigpo": entry}
    table = write_pages(tmp_path / "results", families, entries).read_text(encoding="utf-8")
    assert "\nAt a glance: 1 reproduced.\n" in table
    other = entry._replace(card=entries["nft"].card, verdict=entry.verdict._replace(word="not reproduced"))
    readme = tmp_path / "README.md"
    row = "| papers | claims | {}[the verdicts](experiments/results/README.md) |\n"
    readme.write_text("| a | b |\n" + row.format("9 not run: ") + "| c | [the verdicts](x) |\n")
    for _ in range(2):
        write_summary(readme, entries | {"nft": other})
        assert readme.read_text() == (
            "| a | b |\n" + row.format("1 reproduced, 1 not reproduced: ") + "| c | [the verdicts](x) |\n"
        )
    own = other._replace(card=other.card._replace(family="own"))
    assert describe_verdicts({"mine": own, **entries}) == "1 reproduced"
    readme.write_text("no table")
    write_summary(readme, entries)
    assert readme.read_text() == "no table"


def test_the_readme_tells_what_is_committed():
    told = (ROOT / "experiments" / "results" / "README.md").read_text(encoding="utf-8")
    (glance,) = re.findall(r"(?m)^At a glance: (.+)\.$", told)
    assert f"| {glance}: [the verdicts](experiments/results/README.md) |" in (ROOT / "README.md").read_text()


def test_a_study_of_several_papers_has_a_table_of_all_arms(tested, tmp_path):
    """The arms of both papers, those of the study once, the best first; a study of one paper has no table."""
    families, entry = tested
    entries = {card.id: Entry(card) for family in families for card in family.cards} | {"gigpo": entry}
    assert "## Study" not in write_pages(tmp_path, families, entries).read_text(encoding="utf-8")
    other = entry._replace(card=entries["nft"].card)
    table = write_pages(tmp_path, families, entries | {"nft": other}).read_text(encoding="utf-8")
    title, _, *rows = table.partition("## Study ")[2].splitlines()
    assert (
        title == "lm_rl/credit: Does credit by state help <b>?"
        and rows[0] == "| arm | seeds | success | p | final | minutes |"
    )
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| ours (nft)", "| ours (gigpo)", "| theirs"]
    assert rows[4].startswith("| theirs | 10 to 12 | 0.6") and rows[4].endswith(" | 1.5 |")
    ours, theirs = (
        [run.curves["eval/success"]["values"][-1] for run in of.runs.values()] for of in entry.runs.values()
    )
    doubled = f"{2.0 * stats.ttest_ind(ours, theirs, equal_var=False).pvalue:.2g}"  # Holm, of two comparisons.
    assert [row.split(" | ")[3] for row in rows[2:]] == [doubled, doubled, "-"]


def test_results_that_are_not_there_and_damaged_cards_are_refused(tmp_path):
    families = read_cards(ROOT / "experiments" / "cards")
    with pytest.raises(ValueError, match="`results_folder` must be a folder of results, got .*nowhere"):
        read_entries(families, ROOT / "experiments", ROOT / "configs", tmp_path / "nowhere")
    few = [family._replace(cards=family.cards[:1]) for family in families]
    with pytest.raises(ValueError, match="must hold papers of experiments/cards, got '"):
        read_entries(few, ROOT / "experiments", ROOT / "configs", tmp_path)
    card = "{id: a, number: 1, title: A, kind: method, what: w, headline: h, source: s, worlds: [], size: S}"
    (tmp_path / "f.yaml").write_text(f"title: F\ncards:\n- {card}\n- {card}\n")
    with pytest.raises(ValueError, match=r"`cards` must be of different papers, one at least, got \['a'\]"):
        read_cards(tmp_path)
    (tmp_path / "f.yaml").write_text("title: F\ncards:\n- {id: a, size: S}\n")
    with pytest.raises(ValueError, match="f.yaml: `a` must have headline, id, kind, .* got headline, .* missing"):
        read_cards(tmp_path)


def test_settings_of_the_authors_stand_beside_ours(tested):
    _, entry = tested
    named = entry._replace(paper=replace(entry.paper, authors={"learner.num_epochs": 1}))
    assert authors_rows(named) == [("learner.num_epochs", "1", "2")]
    unset = named._replace(settings={"learner": {"num_epochs": None}})
    assert authors_rows(unset) == [("learner.num_epochs", "1", "not set")]
    with pytest.raises(
        ValueError, match="`authors` of gigpo must name settings of ours, got 'learner.epochs'; .* is num_e"
    ):
        authors_rows(entry._replace(paper=replace(entry.paper, authors={"learner.epochs": 1})))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_opens_every_kind_of_page_at_once_and_says_nothing(site, browser, scheme):
    page = browser.new_page(color_scheme=scheme)
    told, asked = [], []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    for name in ("index.html", "papers/gigpo.html", "papers/nft.html", "worlds/bandit.html"):
        page.goto((site / name).as_uri(), wait_until="load")
        timing = "() => { const [e] = performance.getEntriesByType('navigation'); return e.loadEventEnd - e.startTime }"
        assert page.evaluate(timing) < 1000.0, name
        assert asked.pop() == (site / name).as_uri() and asked == [] and told == [], (name, asked, told)
        # No page is wider than a narrow window.
        page.set_viewport_size({"width": 380, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, name
        page.set_viewport_size({"width": 1280, "height": 900})
    page.close()


@pytest.mark.exhaustive
def test_papers_are_searched_and_filtered_by_keys_alone(site, browser):
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    shown = page.locator(".papers li:visible")
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
    page.goto((site / "index.html").as_uri() + "#verdict=reproduced")
    page.reload()
    assert shown.count() == 1 and "1 paper" in page.locator("output").inner_text()
    page.keyboard.press("/")
    page.keyboard.type("nothing has these words")
    assert shown.count() == 0 and page.locator("#none").is_visible()
    page.close()
