# Every target does its own set-up: Python 3.11 or newer and make are all that is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint format bench wheel clean

# One stamp per set of extras: set-up runs again only when the project's own files change.
$(VENV)/.demo: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) --editable '.[cpu]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@echo "Installing the test tools ..."
	@$(INSTALL) --editable '.[cpu,rtx,dev]'
	@touch $@

demo: $(VENV)/.demo
	@$(BIN)/python -m andrea_export.demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(VENV)/.dev
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf build dist $(VENV)
