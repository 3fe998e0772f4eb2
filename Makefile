# The commands for developers; `make` alone lists them. Steps longer than a few lines are scripts in .ci/.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
SYSTEM_PACKAGES ?= yes
COVERAGE ?= no

BIN := $(VENV)/bin
export PYTHON VENV PYTEST_ARGS SYSTEM_PACKAGES COVERAGE

# A stamp records that the environment has what these files ask for, so that a second run starts at once.
REQUIREMENTS := pyproject.toml constraints.txt .ci/venv.sh

.DEFAULT_GOAL := help
.PHONY: help venv quickstart check test lint format golden docs site bench prove minimums release-check clean
.DELETE_ON_ERROR:

help: ## list the targets
	@echo "make TARGET [PYTHON=python3.12] [VENV=folder]"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

$(VENV)/quickstart.stamp: $(REQUIREMENTS)
	@.ci/venv.sh quickstart
	@touch $@

$(VENV)/check.stamp: $(REQUIREMENTS)
	@.ci/venv.sh check
	@touch $@

$(VENV)/site.stamp: $(REQUIREMENTS)
	@.ci/venv.sh site
	@touch $@

$(VENV)/test.stamp: $(REQUIREMENTS)
	@.ci/venv.sh test
	@touch $@ $(VENV)/quickstart.stamp $(VENV)/check.stamp $(VENV)/site.stamp

venv: $(VENV)/test.stamp ## create the virtual environment with all development tools and PyTorch

quickstart: $(VENV)/quickstart.stamp ## install hpc-launch and train the example on this machine
	@echo "Running: hpc-launch submit examples/tiny-gpt/job.yaml --site local --wait"
	@$(BIN)/hpc-launch submit examples/tiny-gpt/job.yaml --site local --wait

check: $(VENV)/check.stamp ## lint, check types and run the fast tests (no Slurm, no PyTorch)
	@.ci/test.sh check

test: $(VENV)/test.stamp ## run all checks and tests (PYTEST_ARGS='-k name' selects tests)
	@.ci/system-packages.sh
	@.ci/test.sh all

lint: $(VENV)/check.stamp ## run the checks only, no tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@.ci/size-budget.sh
	@$(BIN)/shellcheck .ci/*.sh .ci/run
	@.ci/actionlint.sh

format: $(VENV)/check.stamp ## format the code and apply ruff's fixes
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

golden: $(VENV)/check.stamp ## regenerate the expected scripts of the tests; review the diff
	@$(BIN)/pytest -q tests/golden tests/sites/test_shipped_scripts.py -m "not torch" --update-golden
	@git --no-pager diff --stat -- tests/golden

docs: $(VENV)/check.stamp ## regenerate the generated pages and schemas of docs/
	@$(BIN)/python docs/generate.py
	@$(BIN)/python -m docs.generate_sites
	@$(BIN)/python -m docs.generate_launch_table
	@$(BIN)/python -m docs.picture
	@$(BIN)/python -m docs.screenshots

site: $(VENV)/site.stamp ## build the documentation site into build/site, with strict links
	@$(BIN)/python docs/build_site.py

bench: $(VENV)/test.stamp ## measure start-up time relative to bare Python; results go to benchmarks/
	@.ci/bench.sh

prove: $(VENV)/test.stamp ## inject real faults into real runs; takes hours, continues if interrupted
	@.ci/system-packages.sh
	@.ci/prove.sh

minimums: ## run the fast tests with the lowest supported versions of the dependencies
	@.ci/minimums.sh

release-check: $(VENV)/check.stamp ## check that this commit can be released (see CONTRIBUTING.md)
	@.ci/release-check.sh

clean: ## remove the environment, caches and logs; keep runs
	rm -rf $(VENV) .test-logs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
