# The verbs of the house. `make` alone lists them.

PYTHON ?= python3
ROOM ?= engine
SCALE ?= 1
# Four workers, also on two cores: who kills servers mostly waits. The tests of one group share
# servers where they meet on one of them; pytest-xdist 3.8 keeps groups together before pytest 9.2.
PYTEST_ARGS ?= -n 4 --dist loadgroup

BIN := .venv/bin
NO_SERVERS := not postgres and not mysql and not rabbitmq and not nats and not pgbouncer and not slow

.DEFAULT_GOAL := help
.PHONY: help run demo test test-fast check bench docs clean prepare prepare-servers

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

run: prepare ## set up and run the service on the embedded default
	@exec $(BIN)/ledgerstone up

demo: prepare ## set up and take the two-minute tour
	@exec $(BIN)/ledgerstone demo

test: prepare-servers ## set up and run every test
	@exec $(BIN)/python -m pytest $(PYTEST_ARGS)

test-fast: prepare ## run what needs no server: SQLite and pure tests
	@exec $(BIN)/python -m pytest $(PYTEST_ARGS) -m "$(NO_SERVERS)"

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
