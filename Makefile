# Every target does its own set-up: Python 3.11 or newer and make are all that is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

CPP := $(wildcard $(addprefix plugins/*/*.,cu cuh h cpp))

.PHONY: demo test gpu-check gpu-check-prepare lint format wheel clean

# One stamp per set of extras: set-up runs again only when the project's own files change.
$(VENV)/.demo: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) --editable '.[cpu]'
	@touch $@

# kernel-lens has TensorRT's headers; what it depends on (Triton) is large and not needed for them.
$(VENV)/.dev: $(VENV)/.demo
	@echo "Installing the test tools ..."
	@$(INSTALL) --editable '.[cpu,rtx,report,dev]'
	@$(INSTALL) --no-deps kernel-lens
	@touch $@

# The commands of the README, on the checkpoint that travels with the package.
DEMO_OUT := out/andrea-nano
demo: $(VENV)/.demo
	$(BIN)/andrea-export info andrea-nano
	$(BIN)/andrea-export onnx andrea-nano --output $(DEMO_OUT) --force --no-check
	$(BIN)/andrea-export validate andrea-nano --candidate $(DEMO_OUT)
	$(BIN)/andrea-export generate $(DEMO_OUT) --prompt "PROSPERO." --max-new-tokens 150 \
		--temperature 0.8 --top-k 40 --seed 1

test: $(VENV)/.dev
	$(BIN)/python -m pytest

# On a machine with a GPU, nvcc and a Python that has torch: nothing is installed. TensorRT's headers
# may come from elsewhere: gpu-check-prepare copies them to build/tensorrt-include.
gpu-check:
	PYTHONPATH=.:model $(PYTHON) -m benchmarks.gpu_check

gpu-check-prepare: $(VENV)/.dev
	$(BIN)/python -m benchmarks.gpu_check --prepare

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

wheel: $(VENV)/.dev
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf build dist $(VENV)
