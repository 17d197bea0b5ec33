# sessiond: `make` lists the targets. Everything lives in .venv and models/.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet -c constraints.txt

# The kind of llama.cpp build: what GPU= says, else the one that is installed, else cpu.
BUILT  := $(firstword $(wildcard $(VENV)/.llama-*))
GPU    ?= $(or $(word 2,$(subst -, ,$(notdir $(BUILT)))),cpu)
PIN    := $(shell sed -n 's/^llama[_-]cpp[_-]python==//p' constraints.txt)
LLAMA  := $(VENV)/.llama-$(GPU)-$(PIN)

# The model that `make run` serves: MODEL=, else one that you put into models/, else the embedded one.
EMBEDDED := models/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL    ?= $(or $(firstword $(filter-out $(EMBEDDED),$(wildcard models/*.gguf))),$(EMBEDDED))

SOURCES := sessiond scripts $(wildcard tests)

.PHONY: help run test check format demo bench llama-server proof-state proof-durability proof-api proof-agents proof-agents-load install dev clean
.NOTPARALLEL:
.DEFAULT_GOAL := help

help:
	@echo "make run                serve the model in models/ on http://127.0.0.1:8484 (ARGS= goes to serve)"
	@echo "make run GPU=cuda MODEL=/path/to.gguf"
	@echo "                        the same with llama.cpp built for a GPU: cuda, vulkan, rocm or metal"
	@echo "make test               lint, types and all tests but the long proofs below"
	@echo "make check              lint and types only"
	@echo "make format             let ruff format the code"
	@echo "make demo               an agent talks, the daemon is killed, the talk goes on"
	@echo "make bench              an agent's day, common fronts, resume, streams, memory, measured here; the pages"
	@echo "make bench LLAMA_SERVER=/path/to/llama-server"
	@echo "                        the same, and the day with a stock llama-server too"
	@echo "make llama-server       compile the stock llama-server of the same llama.cpp, to compare with"
	@echo "make proof-state        a restored state continues bit-identically"
	@echo "make proof-durability   an acknowledged turn survives a crash"
	@echo "make proof-api          no request makes the API fail or answer what is not documented"
	@echo "make proof-agents       real agents (npm) hold a session; only new tokens are evaluated"
	@echo "make proof-agents-load  many agents at once never disturb one another"
	@echo "make clean              remove .venv, caches and results (never models/)"
	@echo "PYTHON=python3.12       another Python (3.11 or newer)"

run: $(VENV)/.installed $(if $(filter $(EMBEDDED),$(MODEL)),$(EMBEDDED))
	@test -f "$(MODEL)" || { echo "MODEL=$(MODEL): there is no such file. Give the path of a GGUF." >&2; exit 2; }
	@exec $(BIN)/sessiond serve --model "$(MODEL)" $(ARGS)

test: check
	@$(BIN)/python -m scripts.fetch_models tests
	@$(BIN)/python -m pytest -n 2 $(ARGS)

check: $(VENV)/.dev
	@$(BIN)/ruff format --check --quiet $(SOURCES) || { echo "Run: make format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/python -m scripts.structure

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix --quiet $(SOURCES) || true
	@$(BIN)/ruff format $(SOURCES)

demo: $(VENV)/.installed $(EMBEDDED)
	@$(BIN)/python -m scripts.demo $(ARGS)

bench: $(VENV)/.dev
	@$(BIN)/python -m scripts.fetch_models bench
	@$(BIN)/python -m scripts.bench_day $(if $(LLAMA_SERVER),--launch llama-server "$(LLAMA_SERVER)")
	@$(BIN)/python -m scripts.bench_prefix
	@$(BIN)/python -m scripts.bench_resume
	@$(BIN)/python -m scripts.bench_decode
	@$(BIN)/python -m scripts.bench_writes
	@$(BIN)/python -m scripts.bench_capture
	@$(BIN)/python -m scripts.bench_ring
	@$(BIN)/python -m scripts.bench_match
	@$(BIN)/python -m scripts.bench_load $(if $(LLAMA_SERVER),--launch llama-server "$(LLAMA_SERVER)")
	@$(BIN)/python -m scripts.bench_attention
	@$(BIN)/python -m scripts.bench_growth
	@$(BIN)/python -m scripts.bench_memory
	@$(BIN)/python -m scripts.bench_footprint
	@$(BIN)/python -m scripts.benchmark_pages

llama-server: $(LLAMA)
	@$(BIN)/python -m scripts.build_llama_server $(GPU) $(ARGS)

proof-state proof-agents-load: $(VENV)/.dev
	@$(BIN)/python -m scripts.fetch_models tests
	@$(BIN)/python -m pytest -v -m $(subst -,_,$@) $(ARGS)

proof-durability: $(VENV)/.dev
	@$(BIN)/python -m scripts.fetch_models tests
	@$(BIN)/python -m scripts.proof_durability $(ARGS)

proof-api: $(VENV)/.dev
	@$(BIN)/python -m pytest -n 2 -m proof_api $(ARGS)

proof-agents: $(VENV)/.dev
	@$(BIN)/python -m scripts.proof_agents $(ARGS)

install: $(VENV)/.installed

dev: $(VENV)/.dev

clean:
	rm -rf $(VENV) results build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find sessiond scripts tests -name __pycache__ -prune -exec rm -rf {} +

$(EMBEDDED): | $(VENV)/.installed
	@$(BIN)/python -m scripts.fetch_models embedded

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON). Do: apt install python3 python3-venv, or: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11. Install a newer one and say: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module. Do: apt install python3-venv" >&2; exit 1; }
	@$(PYTHON) scripts/build_llama.py $(GPU) --check
	$(PYTHON) -m venv $(VENV)

# A stamp for each kind and version: another GPU= or another pin builds anew.
$(LLAMA): | $(BIN)/python
	@$(BIN)/python scripts/build_llama.py $(GPU) $(if $(BUILT),--replace)
	@rm -f $(VENV)/.llama-*
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt $(LLAMA)
	@echo "Installing sessiond into $(VENV)."
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@$(PIP) --editable '.[test,dev]'
	@touch $@
