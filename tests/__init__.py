"""A package of its own, as others install one of that name: where the repository is, and `tests.fakes`."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
