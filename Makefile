# `make run`: from a fresh clone to an answer. `make test`: the whole test suite.
# Settings: PYTHON (3.11 or 3.12), VENV, PORT, TORCH_INDEX (where torch's CPU builds are, if pip does not know one).

# The first that runs: a name on PATH may be a version manager's stub.
PYTHON      ?= $(shell for p in python3.12 python3.11 python3; do $$p -c '' 2>/dev/null && { echo $$p; break; }; done)
VENV        ?= .venv
VENV_ASCEND ?= .venv-ascend
PORT        ?= 8080
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
BIN         := $(VENV)/bin
BIN_ASCEND  := $(VENV_ASCEND)/bin
EMULATOR    := $(shell find emulator -type f -not -name '*.pyc')
CPP         := $(shell find emulator tunan/kernels/native \( -name '*.cpp' -o -name '*.cc' -o -name '*.h' \) -not -path '*/build/*')
KERNELS     := tunan/kernels/libtunan_kernels.so
KERNELS_SRC := tunan/kernels/CMakeLists.txt $(shell find tunan/kernels/native -type f)
MODELS      := .models
SAMPLE      := $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf
CONVERTED   := $(MODELS)/smollm2-135m-instruct

# A module at a time in each of two processes: starting an engine leaves half of the cores idle.
TWO_AT_ONCE := -n 2 --dist loadfile

.PHONY: help setup setup-ascend kernels run stop test test-unit test-engine can-test-ascend can-test-rules can-test-election test-ascend test-ascend-short test-kernels-native lint format clean

help:  ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready $(KERNELS)  ## Create .venv with the pinned CPU engine and this project.

$(VENV)/.ready: scripts/setup.sh scripts/installing.sh requirements/engine-cpu.lock requirements/torch.txt pyproject.toml
	PYTHON="$(PYTHON)" VENV="$(VENV)" TORCH_INDEX="$(TORCH_INDEX)" scripts/setup.sh
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready requirements/dev.lock
	$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements/dev.lock
	@touch $@

kernels: $(KERNELS)  ## Build the CPU kernels (needs g++ and cmake).

$(KERNELS): scripts/build_kernels.sh $(KERNELS_SRC)
	scripts/build_kernels.sh
	@touch $@

$(SAMPLE): | $(VENV)/.ready
	$(BIN)/python scripts/get_sample_model.py $@

$(CONVERTED)/tunan.json: $(SAMPLE) | $(VENV)/.ready
	$(BIN)/tunan convert $(SAMPLE) $(CONVERTED) --overwrite

run: $(VENV)/.ready $(KERNELS) $(CONVERTED)/tunan.json  ## Convert and serve the sample model, ask it a question, leave it running.
	VENV="$(VENV)" PORT="$(PORT)" scripts/run_sample.sh $(CONVERTED)

stop:  ## Stop the server that `make run` left running.
	scripts/stop_sample.sh

test: can-test-ascend can-test-rules can-test-election test-unit test-kernels-native test-engine lint test-ascend-short  ## Everything that CI runs.

can-test-ascend:
	@python3.11 -c '' 2>/dev/null && command -v g++ >/dev/null || { echo "make test: the Ascend tests need python3.11 and g++; install them, or run: make test-unit test-engine lint" >&2; exit 3; }

can-test-rules:
	@command -v promtool >/dev/null && command -v prometheus >/dev/null || { echo "make test: the tests of the alerts need prometheus and promtool; install them (apt-get install prometheus)" >&2; exit 3; }

can-test-election:
	@command -v etcd >/dev/null || { echo "make test: the tests of the election between gateways need etcd; install it (apt-get install etcd-server)" >&2; exit 3; }

test-unit: $(VENV)/.ready-dev $(KERNELS)  ## Tests that need no engine.
	$(BIN)/pytest -q $(TWO_AT_ONCE) -m "not engine and not ascend"

test-kernels-native: $(VENV)/.ready-dev $(KERNELS)  ## The kernels' C++ under sanitizers, and for ARM in qemu.
	VENV="$(VENV)" scripts/test_kernels_native.sh

test-engine: $(VENV)/.ready-dev $(KERNELS) $(SAMPLE)  ## Tests with a real vLLM engine.
	$(BIN)/pytest -q $(TWO_AT_ONCE) -m "engine and not long"

setup-ascend: $(VENV_ASCEND)/.ready-emulator $(KERNELS)  ## Create .venv-ascend: the real torch_npu, vllm-ascend and vLLM 0.23 on the emulated device.

$(VENV_ASCEND)/.ready: scripts/setup_ascend.sh scripts/installing.sh requirements/ascend-emulated.lock requirements/ascend-published.lock requirements/torch.txt
	VENV_ASCEND="$(VENV_ASCEND)" TORCH_INDEX="$(TORCH_INDEX)" scripts/setup_ascend.sh
	@touch $@

$(VENV_ASCEND)/.ready-emulator: $(VENV_ASCEND)/.ready $(EMULATOR)
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(BIN_ASCEND)/pip install --quiet --no-deps --no-build-isolation --force-reinstall ./emulator
	@touch $@

test-ascend: $(VENV_ASCEND)/.ready-emulator  ## Tests of the Ascend path, on two emulated devices.
	$(BIN_ASCEND)/tunan emulate --devices 2 -- $(abspath $(BIN_ASCEND))/python -m pytest -q -m ascend tests/ascend

test-ascend-short: $(VENV_ASCEND)/.ready-emulator  ## What CI runs of them: one device, without the long ones.
	$(BIN_ASCEND)/tunan emulate -- $(abspath $(BIN_ASCEND))/python -m pytest -q -m "ascend and not long" tests/ascend

lint: $(VENV)/.ready-dev  ## Format check, lint, types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP)

format: $(VENV)/.ready-dev  ## Rewrite the sources in the project's format.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CPP)

clean:  ## Remove the environment, the sample model and caches of the tools.
	rm -rf $(VENV) $(VENV_ASCEND) $(MODELS) build/kernels $(KERNELS) .mypy_cache .ruff_cache .pytest_cache
