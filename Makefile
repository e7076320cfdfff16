# The whole project by one command each; every target installs what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A process for each core, a file's tests in one of them. More than four would each load what few tests need.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile

.PHONY: run test coverage lint bench soak clean native help

help: ## says what each target does
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

run: $(VENV)/.run native ## trains PPO on basic_rl_env in eight sandboxes, with a live display (about a minute)
	$(BIN)/agentenv train examples/basic/config.yaml

test: $(VENV)/.test native ## runs every test that this machine can run, and says which it cannot and why
	$(BIN)/pytest $(PARALLEL) $(ARGS)

coverage: $(VENV)/.test native ## the same, and which lines and branches of the source no test reached (takes twice as long)
	$(BIN)/pytest $(PARALLEL) --cov --cov-report=term:skip-covered $(ARGS)

lint: $(VENV)/.test ## ruff and mypy --strict
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

bench: $(VENV)/.test native ## measures everything against its references; table and plot under benchmarks-out/
	$(BIN)/agentenv bench all --output benchmarks-out

soak: $(VENV)/.test native ## the long tests: thousands of starts, kills and crashes
	scripts/install-debian-packages machines
	$(BIN)/pytest -m soak --timeout=3600 $(ARGS)

native: $(VENV)/.run ## compiles the agent and the launcher where their sources changed
	@$(BIN)/python native/build.py >/dev/null

$(VENV)/.run: pyproject.toml constraints.txt hatch_build.py native/build.py scripts/install-debian-packages scripts/make-venv
	scripts/install-debian-packages run
	PYTHON=$(PYTHON) scripts/make-venv $(VENV) train,server
	@touch $@

$(VENV)/.test: $(VENV)/.run
	scripts/install-debian-packages test
	PYTHON=$(PYTHON) scripts/make-venv $(VENV) train,server,test
	@touch $@

clean: ## removes what the targets made (runs/ stays)
	rm -rf $(VENV) build dist benchmarks-out .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis src/agentenv/_native
