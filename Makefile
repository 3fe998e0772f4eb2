# Everything a developer runs. `make` alone lists it. Steps longer than a few lines are scripts in .ci/.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
SYSTEM_PACKAGES ?= yes

BIN := $(VENV)/bin
export PYTHON VENV PYTEST_ARGS SYSTEM_PACKAGES

# A stamp says that the environment holds what these two files asked for, so that a second run starts at once.
ASKED_FOR := pyproject.toml constraints.txt .ci/venv.sh

.DEFAULT_GOAL := help
.PHONY: help venv quickstart test lint format golden key-tables docs bench prove clean
.DELETE_ON_ERROR:

help: ## list what there is to make
	@echo "make TARGET [PYTHON=python3.12] [VENV=folder]"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 15

$(VENV)/quickstart.stamp: $(ASKED_FOR)
	@.ci/venv.sh quickstart
	@touch $@

$(VENV)/test.stamp: $(ASKED_FOR)
	@.ci/venv.sh test
	@touch $@ $(VENV)/quickstart.stamp

venv: $(VENV)/test.stamp ## make the environment with everything that tests and tools need

quickstart: $(VENV)/quickstart.stamp ## install, then train the example on this machine
	@echo "Running: hpc-launch submit examples/tiny-gpt/job.yaml --site local --wait"
	@$(BIN)/hpc-launch submit examples/tiny-gpt/job.yaml --site local --wait

test: $(VENV)/test.stamp ## run every check and every test (PYTEST_ARGS='-k name' for some)
	@.ci/system-packages.sh
	@.ci/test.sh

lint: $(VENV)/test.stamp ## run the checks that need no test run
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/shellcheck .ci/*.sh .ci/run

format: $(VENV)/test.stamp ## put the code into its one format, and mend what can be mended
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

golden: $(VENV)/test.stamp ## write the expected files of the tests anew; look at the difference
	@$(BIN)/pytest -q tests/golden tests/sites/test_shipped_scripts.py --update-golden
	@git --no-pager diff --stat -- tests/golden

key-tables: $(VENV)/test.stamp ## regenerate the key tables of DeepSpeed, Accelerate and Transformers from the installed libraries
	@$(BIN)/python -m hpc_launch.plan.strategies.regenerate_key_tables

docs: $(VENV)/test.stamp ## write the generated pages and schemas of docs/ anew
	@$(BIN)/python docs/generate.py
	@$(BIN)/python -m docs.generate_sites
	@$(BIN)/python -m docs.generate_launch_table

bench: $(VENV)/test.stamp ## measure start-up as ratios; the result goes to benchmarks/
	@.ci/bench.sh

prove: $(VENV)/test.stamp ## plant real faults in real runs; half an hour and more, goes on where it was interrupted
	@.ci/system-packages.sh
	@.ci/prove.sh

clean: ## remove the environment, caches and logs; runs stay
	rm -rf $(VENV) .test-logs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
