"""Runs the notebooks in quick mode, and checks what is stored of them."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MAX_BYTES = 100_000
TIMEOUT = 300  # Seconds for one cell.

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS


@each_notebook
def test_stored_notebook_is_small_and_was_executed_in_order(path):
    assert path.stat().st_size <= MAX_BYTES
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    assert "JAXAGENTS_QUICK" in cells[0].source  # What shrinks it in the test below.


@pytest.mark.exhaustive
@each_notebook
def test_notebook_runs_in_quick_mode(path, monkeypatch, tmp_path, one_device):
    monkeypatch.setenv("JAXAGENTS_QUICK", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # For the run directory.
    monkeypatch.setenv("XLA_FLAGS", one_device["XLA_FLAGS"])
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    # Raises on the first cell that fails.
    NotebookClient(notebook, timeout=TIMEOUT, kernel_name="python3", resources=resources).execute()
