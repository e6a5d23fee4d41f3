"""Methods of papers as options: their headers, what they set, and what they do not go with."""

import pytest

from jaxagents.training.build import resolve
from jaxagents.training.composition import compose
from jaxagents.training.methods import (
    chosen_methods,
    method_files,
    needs_explained,
    read_method,
    require_free,
    require_methods,
    shared_settings,
)
from tests import CONFIGS

HEADER = """# @package _global_
# Name: what it does (Author, 2025, arXiv 1).
# Equation: A = r - mean(r)
#   over the group
# Code: none released
# Paper: gamma 0.95
# Differs: nothing
# Study: lake
# Claim: above grpo
"""


def write(folder, name, body, header=HEADER):
    (folder / "method").mkdir(exist_ok=True)
    (folder / "method" / f"{name}.yaml").write_text(header + body)
    return folder / "method" / f"{name}.yaml"


def test_a_header_is_read_by_fields(tmp_path):
    body = (
        "defaults:\n  - override /advantage: rloo\n  - _self_\nlearner: {rewards: {gain: {_target_: m.f, scale: 1}}}\n"
    )
    method = read_method(write(tmp_path, "own", body))
    assert (method.id, method.name, method.summary) == ("own", "Name", "what it does (Author, 2025, arXiv 1).")
    assert method.fields["Equation"] == "A = r - mean(r) over the group" and method.fields["Claim"] == "above grpo"
    assert method.groups == {"advantage": "rloo"} and [*method.settings] == ["learner.rewards.gain"]
    function = read_method(write(tmp_path, "called", "function: {_target_: m.f, rate: 2}\n"))
    assert function.function == {"_target_": "m.f", "rate": 2} and not function.groups and not function.settings


@pytest.mark.parametrize(
    ("body", "header", "message"),
    [
        ("", HEADER.replace("# Equation: A = r - mean(r)\n#   over the group\n", ""), "which lacks the field Equation"),
        ("", HEADER.replace("Name: what it does", "What it does"), "lacks a first line `Name: what it does"),
        ("", "learner: {}\n", "which lacks the field Equation"),
        ("function: {_target_: m.f}\nlearner: {num_epochs: 2}\n", HEADER, "`function` or settings, got both"),
        ("defaults: [rloo]\n", HEADER, "must choose options of groups, .* got 'rloo'"),
    ],
)
def test_files_that_are_no_methods_are_refused(tmp_path, body, header, message):
    with pytest.raises(ValueError, match=message):
        read_method(write(tmp_path, "own", body, header))


def test_a_folder_of_a_user_comes_first(tmp_path):
    path = write(tmp_path, "gigpo", "")
    assert method_files(tmp_path, CONFIGS)["gigpo"] == path
    assert method_files(CONFIGS, tmp_path)["gigpo"] == CONFIGS / "method" / "gigpo.yaml"


def test_methods_are_found_among_overrides():
    assert chosen_methods(["world=shop", "+method=gigpo"]) == ["gigpo"]
    assert chosen_methods(["+method=[gigpo,nft]", "seed=1"]) == ["gigpo", "nft"]
    assert chosen_methods(["world=shop"]) == []


def test_two_methods_of_one_slot_are_refused_by_name(tmp_path):
    write(tmp_path, "a", "defaults:\n  - override /advantage: rloo\n")
    write(tmp_path, "b", "advantage: {discount: 0.9}\n")
    write(tmp_path, "c", "learner: {num_epochs: 2}\n")
    write(tmp_path, "d", "function: {_target_: m.f}\n")
    files = method_files(tmp_path)
    assert shared_settings(read_method(files["a"]), read_method(files["b"])) == ["advantage.discount"]
    require_methods(["+method=[a,c]"], tmp_path)
    with pytest.raises(ValueError, match="got a and b, which both set advantage.discount"):
        require_methods(["+method=[a,b]"], tmp_path)
    with pytest.raises(ValueError, match="`\\+method` must be a file of configs/method, got 'x'; try a"):
        require_methods(["+method=x"], tmp_path)
    with pytest.raises(
        ValueError, match="`\\+method=d` must be called by its study.* experiments.reproduce.py study=lake"
    ):
        require_methods(["+method=d"], tmp_path)
    for override in ("advantage=gae_token", "learner.num_epochs=3", "learner={}"):
        with pytest.raises(ValueError, match="`overrides` must not set .*, which the method [ac] sets"):
            for name in "ac":
                require_free(read_method(files[name]), [override], "overrides")
    for name in "ac":  # The same, or a number within what a method chooses.
        overrides = ["advantage=rloo", "learner.num_epochs=2", "advantage.discount=1.0"]
        require_free(read_method(files[name]), overrides, "overrides")


def test_a_method_is_composed_over_the_algorithm_and_under_the_command_line():
    config = compose(CONFIGS, "world=shop", "algorithm=grpo", "+method=gigpo")
    assert config.advantage._target_ == "jaxagents.ops.gigpo.gigpo" and config.name == "grpo_shop_gigpo"
    chosen = compose(CONFIGS, "world=shop", "algorithm=grpo", "+method=gigpo", "advantage.discount=0.5")
    assert chosen.advantage.discount == 0.5


def test_a_method_that_does_not_fit_names_what_is_there():
    with pytest.raises(
        ValueError, match="`\\+method=gigpo` must be with an algorithm that has the group `advantage`, got"
    ):
        compose(CONFIGS, "world=cartpole", "algorithm=ppo", "+method=gigpo")


def test_a_method_whose_world_lacks_something_says_what_it_needs():
    chosen = ["world=cartpole", "algorithm=bc", "+method=openvla_oft"]
    needs = r"must be chosen for `collector\.\w+`, got nothing; `\+method=openvla_oft` needs an environment of chunks"
    with pytest.raises(ValueError, match=needs), needs_explained(chosen, CONFIGS):
        resolve(compose(CONFIGS, *chosen))
    without = ["world=cartpole", "algorithm=pvp"]
    with pytest.raises(ValueError, match="the algorithm fits world=quest"), needs_explained(without, CONFIGS):
        resolve(compose(CONFIGS, *without))
