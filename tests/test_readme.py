"""Runs the commands of the README and of the guides in quick mode, and follows their links."""

import ast
import configparser
import importlib
import importlib.util
import pathlib
import re
import shlex
import subprocess
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from omegaconf import OmegaConf

from jaxagents.training.composition import compose
from tests import ROOT

TIMEOUT = 900.0  # Seconds for one command.


def commands_in_blocks(markdown, language="bash"):
    """Returns, for each ```bash block that has any, its `python experiments/...` lines; continued lines are joined."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    lines_in_blocks = [block.replace("\\\n", " ").splitlines() for block in blocks]
    commands = [[line for line in lines if re.search(r"python experiments/\w+\.py", line)] for lines in lines_in_blocks]
    return [block for block in commands if block]


def quick_command(line):
    """Returns `(environment variables, arguments)` of a README line, with this interpreter and `quick=true`."""
    words = shlex.split(line, comments=True)
    start = next(i for i, word in enumerate(words) if word.endswith("python"))
    variables = dict(word.split("=", 1) for word in words[:start])
    script, *overrides = words[start + 1 :]
    if not any(word.startswith("quick=") for word in overrides):
        overrides.append("quick=true")
    return variables, [sys.executable, str(ROOT / script), *overrides]


GUIDE_PATHS = [ROOT / "README.md", *sorted((ROOT / "experiments/docs").glob("*.md"))]
GUIDES = {path.name: path.read_text() for path in GUIDE_PATHS}
BLOCKS = {
    f"{name}: {block[0].strip()[:60]}": block for name, text in GUIDES.items() for block in commands_in_blocks(text)
}
# Blocks of `sh` hold what takes something that a test does not have, or what other tests run; they are composed, but
# for sweeps, which tests/training/test_command.py has in small.
COMPOSED = [line for text in GUIDES.values() for block in commands_in_blocks(text, "sh") for line in block]


def test_commands_are_found():
    text = (
        "python experiments/no.py\n"
        "```bash\nmake train\nA=1 python experiments/train.py \\\n  x=2  # Two minutes.\n"
        ".venv/bin/python experiments/play.py quick=false\n```\n"
        "```python\npython experiments/no.py\n```\n"
    )
    (block,) = commands_in_blocks(text)
    script = str(ROOT / "experiments/train.py")
    assert [quick_command(line) for line in block] == [
        ({"A": "1"}, [sys.executable, script, "x=2", "quick=true"]),
        ({}, [sys.executable, str(ROOT / "experiments/play.py"), "quick=false"]),
    ]


def test_the_readme_and_the_guides_have_commands():
    assert {name.partition(":")[0] for name in BLOCKS} > {"README.md", "run.md", "papers.md"}


def links_of(markdown):
    """Returns the targets of links and pictures outside of blocks of code."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`]*`", "", text)
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text)


def anchors_of(markdown):
    """Returns the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [ROOT / "CONTRIBUTING.md", *GUIDE_PATHS], ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    broken = []
    for link in links_of(path.read_text()):
        target, _, anchor = link.partition("#")
        found = (path.parent / target) if target else path
        if not link.startswith("https://") and not (
            found.exists() and (not anchor or anchor in anchors_of(found.read_text()))
        ):
            broken.append(link)
    assert broken == []


def test_links_and_anchors_are_found():
    text = '# One: a `b`\n[x](y.md#z) ![p](q.png) <img src="r.gif">\n```\n[no](no)\n```\n`[no](no)`\n'
    assert links_of(text) == ["y.md#z", "q.png", "r.gif"]
    assert anchors_of(text) == {"one-a-b"}


def test_python_of_the_guides_imports_what_there_is():
    blocks = [block for text in GUIDES.values() for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)]
    imports = [node for block in blocks for node in ast.parse(block).body if isinstance(node, ast.ImportFrom)]
    assert len(imports) > 5
    for node in imports:
        module = importlib.import_module(node.module)
        assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_every_extra_is_in_the_table_of_the_installation():
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    table = GUIDES["install.md"].partition("| extra | adds |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == set(config["options.extras_require"])


ELSEWHERE = r"--config-dir|install=| -m |=\"python"  # What other arguments or other commands go with.


@pytest.mark.parametrize(
    "line", [line for line in COMPOSED if "experiments/train.py" in line and not re.search(ELSEWHERE, line)]
)
def test_commands_that_are_not_run_compose(line):
    words = shlex.split(line)
    words = words[words.index("experiments/train.py") + 1 :]
    overrides = [word for word in words if "=" in word and word != "-m"]
    assert OmegaConf.to_container(compose(ROOT / "configs", *overrides), resolve=True)["learner"]


def commands_in_tables(markdown):
    """Returns the commands of `experiments/` that stand as code in a page."""
    return re.findall(r"`(python experiments/\w+\.py [^`]+)`", markdown)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "line", [*commands_in_tables(GUIDES["how_to.md"]), *(line for line in COMPOSED if "train.py" not in line)]
)
def test_answers_use_settings_that_there_are(line):
    words = shlex.split(line)
    script, *arguments = words[words.index("python") + 1 :]  # Variables may stand before `python`.
    main = pathlib.Path(script).stem
    assert (ROOT / script).is_file()
    settings = [
        word for word in arguments if "=" in word and not word.startswith(("--", "resume=", "start_from=", "hydra."))
    ]
    if main == "train" and "environment=my_world" not in settings:
        compose(ROOT / "configs", *[word for word in settings if "-m" not in arguments or "1e-3,1e-4" not in word])
    if main != "train":
        known = OmegaConf.to_container(OmegaConf.load(ROOT / "configs" / f"{main}.yaml"))
        assert [word for word in settings if word.partition("=")[0] not in known] == []


def files_of(markdown):
    """Returns the files that a page shows, by the name in their first line."""
    blocks = re.findall(
        r"^```(?:python|yaml)\n# (my_[\w/]+\.(?:py|yaml))(?:,[^\n]*)?\n(.*?)^```", markdown, re.M | re.S
    )
    return dict(blocks)


def load_file(path):
    """Returns the module of a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_world_a_network_and_a_loss_of_the_guides_train_from_any_folder(tmp_path, one_device):
    files = {name: text for guide in GUIDES.values() for name, text in files_of(guide).items()}
    assert {name for name in files if name.endswith(".py")} == {
        *("my_losses.py", "my_networks.py", "my_rewards.py", "my_text_rewards.py", "my_tools.py", "my_world.py"),
        *("my_votes.py", "my_walks.py"),  # Of the guide to papers, whose own test runs them.
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    loss = "learner.loss={_target_: my_losses.my_loss, _partial_: true, weight: 0.3}"
    words = ["--config-dir=my_configs", "environment=my_world", "algorithm=ppo", "policy=waves", loss]
    command = [sys.executable, str(ROOT / "experiments/train.py"), *words, "quick=true", "run_dir=runs/mine"]
    result = subprocess.run(command, cwd=tmp_path, env=one_device, capture_output=True, text=True, timeout=TIMEOUT)
    assert result.returncode == 0, result.stderr[-4000:]
    assert "ppo_my_world: my_world," in result.stderr and (tmp_path / "runs/mine/report.html").is_file()
    module = load_file(tmp_path / "my_rewards.py")
    blank = jnp.zeros((1, 2, 3))
    tokens = jnp.int32([[[12, 0, 0], [12, 5, 0]]])
    written = jnp.bool_([[[False, True, True], [True, True, False]]])  # The first 12 was read, the second said.
    view = SimpleNamespace(episode=SimpleNamespace(tokens=tokens, action_mask=written, reward=blank[..., 0]))
    assert module.says(view, token=12, bonus=0.5).tolist() == [[0.0, 0.5]]
    texts = {"prompts": ["a", "b"], "completions": ["dragon", "a dragon"], "world_reward": [1.0, 0.5], "turn": [0, 0]}
    assert load_file(tmp_path / "my_text_rewards.py").brief(**texts, bonus=0.25) == [1.25, 0.5]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name.startswith("README.md") else pytest.mark.exhaustive)
        for name in BLOCKS
    ],
)
def test_commands_of_a_block_run_in_quick_mode(name, tmp_path, one_device):
    """The commands of one block share a working directory, where a later one finds what earlier ones wrote."""
    for line in BLOCKS[name]:
        variables, arguments = quick_command(line)
        result = subprocess.run(
            arguments,
            cwd=tmp_path,
            env=one_device | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert result.returncode == 0, f"{line}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
