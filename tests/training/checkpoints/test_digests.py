import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.training.checkpoints.digests import check_digest, compare_trees, describe_tree, write_digest

TREE = {"['w']": ["float32", [2]]}
ITEMS = {"inner": TREE}


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "7" / "inner").mkdir(parents=True)
    (tmp_path / "7" / "a").write_bytes(b"abc")
    (tmp_path / "7" / "inner" / "b").write_bytes(bytes(range(256)))
    (tmp_path / "7" / "empty").write_bytes(b"")
    write_digest(tmp_path, 7, ITEMS)
    return tmp_path


def test_describe_tree_names_path_dtype_and_shape():
    tree = {"b": (jnp.zeros((2, 3), jnp.bfloat16), None, {}), "a": np.zeros((), np.int8), "k": jax.random.key(0)}
    assert describe_tree(tree) == {"['a']": ["int8", []], "['b'][0]": ["bfloat16", [2, 3]], "['k']": ["key<fry>", []]}


def test_describe_tree_agrees_on_arrays_and_their_shapes():
    def make():
        return {"a": jnp.ones((4, 1)), "k": jax.random.split(jax.random.key(0, impl="rbg"), 3)}

    assert describe_tree(jax.eval_shape(make)) == describe_tree(make())


def test_describe_tree_refuses_a_python_number():
    with pytest.raises(ValueError, match=r"`state` must hold arrays only, got float at \['a'\]"):
        describe_tree({"a": 0.1})


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({}, r"it has no leaf ['w']"),
        ({**TREE, "['v']": ["int8", []]}, r"it has a leaf ['v'] that the state lacks"),
        ({"['w']": ["bfloat16", [2]]}, r"its leaf ['w'] is bfloat16[2], the state has float32[2]"),
        ({"['w']": ["float32", [3]]}, r"its leaf ['w'] is float32[3], the state has float32[2]"),
        (dict(TREE), None),
    ],
)
def test_compare_trees_says_the_difference(saved, message):
    assert compare_trees(saved, TREE) == message


def test_check_digest_holds_for_what_was_written(directory):
    assert check_digest(directory, 7) == (None, ITEMS)
    # echo -n abc | sha256sum
    digest = json.loads((directory / "7.digest.json").read_text())
    assert digest["files"]["a"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sorted(digest["files"]) == ["a", "empty", "inner/b"]
    assert not list(directory.glob("*.tmp"))


@pytest.mark.parametrize("name", ["a", "inner/b"])
def test_check_digest_sees_every_bit(directory, name):
    path = directory / "7" / name
    content = path.read_bytes()
    for index in range(0, len(content), 17):
        for bit in range(8):
            path.write_bytes(content[:index] + bytes([content[index] ^ (1 << bit)]) + content[index + 1 :])
            assert check_digest(directory, 7) == (f"the file `{name}` differs from its digest", ITEMS)
    path.write_bytes(content[:-1])
    assert check_digest(directory, 7)[0] == f"the file `{name}` differs from its digest"


def test_check_digest_looks_at_no_file_of_an_item_that_is_not_read(directory):
    (directory / "7" / "inner" / "b").unlink()
    assert check_digest(directory, 7, unread="inner") == (None, ITEMS)
    (directory / "7" / "a").unlink()
    assert check_digest(directory, 7, unread="inner")[0] == "the file `a` cannot be read (No such file or directory)"


def test_check_digest_sees_a_missing_and_a_grown_file(directory):
    (directory / "7" / "empty").write_bytes(b"x")
    assert check_digest(directory, 7)[0] == "the file `empty` differs from its digest"
    (directory / "7" / "empty").unlink()
    assert check_digest(directory, 7)[0] == "the file `empty` cannot be read (No such file or directory)"


def test_check_digest_distrusts_its_own_file(directory):
    path = directory / "7.digest.json"
    text = path.read_text()
    path.write_text(text.replace("float32", "float16"))
    assert check_digest(directory, 7) == ("`7.digest.json` is damaged", {})
    path.write_text(text[:-1])
    assert "`7.digest.json` cannot be read (JSONDecodeError" in check_digest(directory, 7)[0]
    path.write_text("[]")
    assert "`7.digest.json` cannot be read (TypeError" in check_digest(directory, 7)[0]
    path.unlink()
    assert check_digest(directory, 7)[0] == "`7.digest.json` is missing, so the save was cut off before its end"


def test_check_digest_refuses_the_digest_of_another_step(directory):
    (directory / "7").rename(directory / "8")
    (directory / "7.digest.json").rename(directory / "8.digest.json")
    assert check_digest(directory, 8)[0] == "`8.digest.json` is damaged"
