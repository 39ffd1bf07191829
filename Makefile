# Needs Python 3.11 or later and make, nothing else. `make help` lists the targets.
#
#   make run                      set up, start the gateway, send one real request, keep serving
#   make run ARGS=--once          the same, then exit 0
#   make run FAREWAY_DEVICE=cuda  choose the engine's device (auto, cpu, cuda)
#   make test                     set up and run the tests (`make test-all`: those of CI, too)
#   PYTHON=/path/to/python3.12 make run    choose the Python

.DEFAULT_GOAL := help
.PHONY: help venv venv-test run test test-all check fmt bench soak clean

BIN := .venv/bin
RUN_EXTRAS := local
TEST_EXTRAS := local,postgres,redis,dev
ARGS ?=

# Finds a Python and lets it bring .venv up to date; does nothing when .venv already is.
PREPARE = python="$$(tools/find_python.sh)" && "$$python" tools/prepare_venv.py

ifdef PYTHON
export PYTHON
endif
ifdef FAREWAY_DEVICE
export FAREWAY_DEVICE
endif

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

venv: ## create .venv with the gateway and the embedded engine
	@$(PREPARE) --extras $(RUN_EXTRAS)

venv-test: ## create .venv with everything that tests and checks need
	@$(PREPARE) --extras $(TEST_EXTRAS)

run: venv ## start Fareway, send one real request, show its way and its cost, keep serving
	@$(BIN)/fareway quickstart $(ARGS)

test: venv-test ## run the tests: the unit part, then the slow part
	@$(BIN)/python tools/run_tests.py unit slow $(ARGS)

test-all: venv-test ## the same, more examples, and what only CI runs
	@$(BIN)/python tools/run_tests.py unit slow ci $(ARGS)

check: venv-test ## format, lint, types, import rules, style tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/style

fmt: venv-test ## format and mend what can be mended without thought
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: venv-test ## print ratios against peers and the machine's limits
	@$(BIN)/fareway bench gateway $(ARGS)
	@$(BIN)/fareway bench routing
	@$(BIN)/fareway bench detect
	@$(BIN)/fareway bench ledger
	@$(BIN)/fareway bench engine

soak: venv-test ## full counts, hours; writes a result file to bench/results
	@$(BIN)/python tools/run_tests.py soak $(ARGS)

clean: ## remove .venv, caches and build results; models, ledgers and configuration stay
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache htmlcov .coverage .coverage.*
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
