"""Ids of cards name pages, and stay in their folder."""

import pytest
import yaml

from jaxagents.papers.catalogue import read_cards

CARD = {"id": "a_1", "number": 1, "title": "t", "kind": "method", "what": "w", "headline": "h", "source": "s"}
CARD |= {"worlds": [], "size": "S"}


def test_an_id_that_leaves_its_folder_is_refused(tmp_path):
    path = tmp_path / "family.yaml"
    path.write_text(yaml.safe_dump({"title": "t", "cards": [CARD]}))
    assert read_cards(tmp_path)[0].cards[0].id == "a_1"
    path.write_text(yaml.safe_dump({"title": "t", "cards": [CARD | {"id": "../../escaped"}]}))
    with pytest.raises(ValueError, match="family.yaml: `id` must be of letters, digits, _ and -, got '../../escaped'"):
        read_cards(tmp_path)
