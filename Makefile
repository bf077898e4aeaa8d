PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# Three stages of set-up: what running needs, what tests need, and the packages that excite works with.
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.tools
EXTRAS := $(VENV)/.extras
# Two processes of one thread each: small networks gain nothing from a second thread, and two of them would fight.
# Files in their own order: sorted by the number of their tests, the few long ones would come last and alone.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
MINUTES ?= 120

.PHONY: help setup integrations run test test-all coverage audit soak bench docs lint clean

help: ## list every target
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

setup: $(TOOLS) ## make .venv with excite and the tools it is developed with

integrations: $(EXTRAS) ## add Ray, Lightning, transformers and others, without which their tests are skipped

run: $(READY) ## run the paper's whole procedure with three seeds on the embedded data and write its report
	$(BIN)/excite sweep quickstart --out runs/quickstart

test: lint ## ruff, mypy, the import contract, and every test that needs no download and no long time
	$(PYTEST) -m "not slow"

test-all: $(EXTRAS) lint ## every test, fetching the complete data sets first (tens of minutes), and the audit
	EXCITE_FETCH_DATA=1 $(PYTEST) --hypothesis-profile=explore
	$(MAKE) audit

coverage: $(EXTRAS) ## the tests of `make test` with the share of lines that they run
	$(PYTEST) -m "not slow" --cov=excite --cov-report=term:skip-covered

audit: ## look up the pinned versions in OSV, the database of known vulnerabilities, if it can be reached
	$(PYTHON) tools/audit.py

soak: $(TOOLS) ## train, estimate and attack for two hours (MINUTES=10 for ten minutes): memory and open files stay flat
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.soak --minutes $(MINUTES)

lint: $(TOOLS) ## ruff, mypy and the contract of imports only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

bench: $(TOOLS) ## every benchmark, as ratios against a peer in the same run (an hour; fetches MNIST and CIFAR-10)
	$(PIP) -e '.[bench]'
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/estimator.py
	$(BIN)/python -m benchmarks.attacks speed
	$(BIN)/python benchmarks/adversarial_training.py steps

docs: $(READY) ## build the site into docs/_build/html, warnings are errors
	$(PIP) -e '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

clean: ## remove .venv and caches; runs/ stays
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "excite needs Python 3.11 or later; name one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(TOOLS): $(READY)
	$(PIP) -e '.[dev]'
	@touch $@

$(EXTRAS): $(TOOLS)
	$(PIP) -e '.[integrations]'
	@touch $@
