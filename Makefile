# Every target sets up what it needs: a virtual environment in $(VENV), made once and updated when setup.cfg changes.

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV ?= .venv
ARGS ?=
FIRST := world=cartpole algorithm=ppo
PYTEST_ARGS ?= -n auto --maxprocesses 4 --dist loadfile

RUN := $(VENV)/bin/python
# Stamps: which sets of packages the environment holds.
LIGHT := $(VENV)/.light
FULL := $(VENV)/.full

.DEFAULT_GOAL := help
.PHONY: help train test lint docs benchmark clean

help:  ## List the targets.
	@awk -F ':.*  ## ' '/^[a-z]+:.*  ## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

train: $(LIGHT)  ## Train an agent and film it; ARGS="world=... algorithm=..." goes to experiments/train.py.
ifeq ($(strip $(ARGS)),)
	$(RUN) experiments/train.py $(FIRST) run_dir=runs/first
	$(RUN) experiments/play.py path=runs/first before=true greedy=false max_steps=200 delay=0 >/dev/null
	@echo "Open runs/first/report.html: numbers, curves, and a film before and after training (runs/first/play.gif)."
else
	$(RUN) experiments/train.py $(if $(filter experiment=% world=% environment=% resume=% -%,$(ARGS)),,$(FIRST)) $(ARGS)
endif

test: $(FULL)  ## Run the tests; PYTEST_ARGS="tests/ops -m slow" goes to pytest.
	@$(RUN) -m pytest $(PYTEST_ARGS)

lint: $(FULL)  ## Check style, formatting, and types.
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

docs: $(FULL)  ## Build the documentation into runs/docs/site.
	$(RUN) experiments/document.py $(ARGS)

benchmark: $(LIGHT)  ## Measure speed; ARGS="..." goes to experiments/benchmark.py.
	$(RUN) experiments/benchmark.py suite=rl $(ARGS)

clean:  ## Remove the environment and all caches; results in runs/ and multirun/ stay.
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find jaxagents experiments tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(LIGHT): setup.cfg pyproject.toml | $(RUN)
	$(RUN) -m pip install --quiet --editable '.[gymnax]'
	@touch $@

$(FULL): setup.cfg pyproject.toml | $(RUN)
	$(RUN) -m pip install --quiet --editable '.[envs,sweeps,test]'
	@touch $(LIGHT) $@

# Debian keeps `ensurepip` in the package python3-venv: root gets it installed, others are told.
$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python must be 3.11 or newer, got $$($(PYTHON) --version 2>&1); install it (apt install python3 python3-venv on" \
	    "Debian 12) or name one: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv; } \
	  || { echo "Python's venv module is missing; install it: sudo apt install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) && $(RUN) -m pip install --quiet --upgrade pip || { rm -rf $(VENV); exit 1; }
