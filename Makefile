# The verbs of the house. `make` alone lists them.

PYTHON ?= python3
ROOM ?= engine
SCALE ?= 1
# Four processes, also on two cores: a test that kills a server mostly waits.
PYTEST_ARGS ?= -n 4
# What needs no server rarely waits: one process for each core.
FAST_ARGS ?= -n auto

BIN := .venv/bin
NO_SERVERS := not postgres and not mysql and not rabbitmq and not nats and not pgbouncer and not slow

# Tests start hundreds of Python processes; without compiled files each of them compiles the house.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run demo test test-fast test-times torture mutants check bench docs clean prepare prepare-servers

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

run: prepare ## set up and run the service on the embedded default
	@exec $(BIN)/ledgerstone up

demo: prepare ## set up and take the two-minute tour
	@exec $(BIN)/ledgerstone demo

test: prepare-servers ## set up and run every test
	@exec $(BIN)/python -m pytest $(PYTEST_ARGS)

test-fast: prepare ## run what needs no server: SQLite and pure tests
	@exec $(BIN)/python -m pytest $(FAST_ARGS) -m "$(NO_SERVERS)"

test-times: prepare-servers ## run every test, and say where the time goes
	@exec $(BIN)/python -m pytest $(PYTEST_ARGS) -p tests.harness.times

torture: prepare-servers ## crash runs, floods and random histories at full size, and a verdict table
	@TESTS_SIZE=full exec $(BIN)/python -m pytest -n 2 -m torture \
		-p tests.harness.verdicts -o faulthandler_timeout=7200

mutants: prepare-servers ## put known errors in, one at a time: make mutants ONLY="lanes token"
	@exec $(BIN)/python -m tools.mutants $(ONLY)

check: prepare ## lint, format, types, layers and the tidy tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/tidy

bench: prepare-servers ## measure one room: make bench ROOM=engine SCALE=1
	@exec $(BIN)/python -m bench.$(ROOM) --scale $(SCALE)

docs: prepare ## write the reference documents anew
	@exec $(BIN)/python tools/reference.py

clean: ## remove what make made; data under .ledgerstone stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

prepare:
	@$(PYTHON) tools/prepare.py

prepare-servers:
	@$(PYTHON) tools/prepare.py --servers
