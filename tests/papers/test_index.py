"""The index of methods: levels, words, its pages, and what is refused."""

import re

import pytest

from jaxagents.papers.catalogue import read_cards
from jaxagents.papers.index import IMPLEMENTED, JUDGED, MEASURED, NOT_IMPLEMENTED, StudyEntry, read_index
from jaxagents.papers.pages import summary_of, what_stood_out, write_index, write_study_pages, write_summary
from tests import CONFIGS, ROOT
from tests.papers.small_index import with_entry


def test_levels_and_words_follow_from_what_is_stored(index):
    entries = index.entries
    levels = {name: entries[name].level for name in ("gigpo", "igpo", "supo", "nft")}
    assert levels == {"gigpo": JUDGED, "igpo": MEASURED, "supo": IMPLEMENTED, "nft": NOT_IMPLEMENTED}
    assert [entries[name].word for name in levels] == ["reproduced", "better", "", ""]
    assert entries["gigpo"].describe() == "reproduced" and entries["igpo"].describe() == "better: 0.2 (0.15 to 0.25)"
    assert index.describe() == "3 implemented, 2 measured, 1 judged, of which 1 reproduced"
    few = entries["igpo"].measured[0][1]._replace(word="too few seeds")
    assert entries["igpo"]._replace(measured=(("lm_rl/credit", few),)).level == IMPLEMENTED
    broken = few._replace(word="not run", difference=None)
    both = entries["igpo"]._replace(measured=(("lm_rl/credit", broken), *entries["igpo"].measured))
    assert both.level == MEASURED and both.describe() == "better: 0.2 (0.15 to 0.25)"
    within = few._replace(word="no difference within 0.03")
    assert entries["igpo"]._replace(measured=(("lm_rl/credit", within),)).word == "no difference"


def test_a_confirmation_counts_and_the_first_verdict_stands_beside_it(index):
    first = index.entries["gigpo"].first
    open_one = first._replace(verdict=first.verdict._replace(word="inconclusive"))
    both = index.entries["gigpo"]._replace(first=open_one, confirmed=first)
    assert (both.word, both.describe()) == ("reproduced", "reproduced (first: inconclusive)")
    begun = first._replace(verdict=first.verdict._replace(word="unfinished"))
    assert both._replace(confirmed=begun).describe() == "inconclusive"
    alone = both._replace(first=None, confirmed=begun)
    assert (alone.level, alone.describe()) == (IMPLEMENTED, "unfinished (6 of 6 runs)")


def test_pages_of_studies_say_what_fresh_seeds_say(index, tmp_path):
    assert write_study_pages(tmp_path, index) == []  # Only those that a batch has written.
    page = tmp_path / "studies" / "lm_rl" / "credit.md"
    page.parent.mkdir(parents=True)
    page.touch()
    assert write_study_pages(tmp_path, index) == [page] and "On fresh seeds" not in page.read_text()
    claim = index.entries["gigpo"].first
    write_study_pages(tmp_path, with_entry(index, confirmed=claim))
    (finding,) = claim.verdict.headline
    assert f"| gigpo | {finding.expectation.describe()} | reproduced |" in page.read_text()


def test_the_index_has_a_line_for_every_study_and_method(families, index, tmp_path):
    table = write_index(tmp_path, families, index).read_text(encoding="utf-8")
    (line,) = [line for line in table.splitlines() if "method/gigpo.yaml" in line]
    study = "[credit](../studies/lm_rl/credit.yaml)"
    summary = "a turn is credited against others of its group that acted in the same state"
    assert line == (
        f"| [GiGPO](../../configs/method/gigpo.yaml) | {summary} | `+method=gigpo` | {study} | judged | reproduced |"
    )
    assert f"| `+method=igpo` | {study} | measured | better: 0.2 (0.15 to 0.25) |" in table
    assert "**3 implemented, 2 measured, 1 judged, of which 1 reproduced.**" in table
    assert f"| {study} | Does credit by state help <b>? | 1 + 2 | better: igpo. Turns help. |" in table
    assert table.index("method/gigpo.yaml") < table.index("method/igpo.yaml") and "nft" not in table
    (tmp_path / "studies" / "lm_rl").mkdir(parents=True)
    (tmp_path / "studies" / "lm_rl" / "credit.md").touch()
    assert "| [credit](studies/lm_rl/credit.md) | judged |" in write_index(tmp_path, families, index).read_text()


def test_a_study_without_a_batch_says_what_came_out_of_its_papers(index):
    study = index.studies["lm_rl/credit"]
    assert what_stood_out(StudyEntry(study.batch, {}), index.entries.values()) == "reproduced: gigpo. Turns help."
    open_one = [*[row._replace(word="not separated") for row in study.rows[1:]] * 3, study.rows[1]]
    assert what_stood_out(study._replace(rows=open_one), []) == "better: igpo; 3 not separated. Turns help."


def test_the_source_of_a_method_is_left_out_of_what_it_does(index):
    assert summary_of(index.entries["supo"]).endswith("all parts share the episode's advantage")
    assert summary_of(index.entries["nft"]) == index.entries["nft"].card.title


def test_the_summary_of_the_readme_is_that_of_the_index(index, tmp_path):
    readme = tmp_path / "README.md"
    row = "| methods of papers | x | {}[the index](experiments/results/README.md) |\n"
    readme.write_text("| a | b |\n" + row.format("9 not run: ") + "| c | [the index](x) |\n")
    for _ in range(2):
        write_summary(readme, index)
        assert readme.read_text() == f"| a | b |\n{row.format(f'{index.describe()}: ')}| c | [the index](x) |\n"
    readme.write_text("no table")
    write_summary(readme, index)
    assert readme.read_text() == "no table"


def test_the_readme_tells_what_is_committed():
    words = (ROOT / "experiments" / "results" / "README.md").read_text(encoding="utf-8")
    (counts,) = re.findall(r"(?m)^\*\*(\d+ implemented, .+)\.\*\*", words)
    assert f"| {counts}: [the index](experiments/results/README.md) |" in (ROOT / "README.md").read_text()


def test_one_paper_is_read_alone(families):
    folders = (ROOT / "experiments", CONFIGS, ROOT / "experiments" / "results")
    index = read_index(families, *folders, only="debate")
    (entry,) = index.entries.values()
    assert entry.level == JUDGED and entry.method.name == "Debate"
    assert [*index.studies] == [*entry.studies] == ["multiagent/debate_pixels"]
    with pytest.raises(ValueError, match="`paper` must be a card of experiments/cards, got 'gigppo'; try gigpo"):
        read_index(families, *folders, only="gigppo")


def test_results_that_are_not_there_and_damaged_cards_are_refused(families, tmp_path):
    with pytest.raises(ValueError, match="`results_folder` must be a folder of results, got .*nowhere"):
        read_index(families, ROOT / "experiments", CONFIGS, tmp_path / "nowhere")
    few = [family._replace(cards=family.cards[:1]) for family in families]
    with pytest.raises(ValueError, match="must hold papers of experiments/cards, got '"):
        read_index(few, ROOT / "experiments", CONFIGS, tmp_path)
    card = "{id: a, number: 1, title: A, kind: method, what: w, headline: h, source: s, worlds: [], size: S}"
    (tmp_path / "f.yaml").write_text(f"title: F\ncards:\n- {card}\n- {card}\n")
    with pytest.raises(ValueError, match=r"`cards` must be of different papers, one at least, got \['a'\]"):
        read_cards(tmp_path)
    (tmp_path / "f.yaml").write_text("title: F\ncards:\n- {id: a, size: S}\n")
    with pytest.raises(ValueError, match="f.yaml: `a` must have headline, id, kind, .* got headline, .* missing"):
        read_cards(tmp_path)
