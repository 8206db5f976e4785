# `make help` lists the targets.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ACTIONLINT := v1.7.12
# A worker a core, and two more for live tests, which mostly wait. One plays a file as a whole: its clusters start once. tests/conftest.py has the order.
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= $(shell echo $$(($(CORES) + 2)))
SHARED_OUT = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# Where the environment forbids bytecode, every command would compile torch and the others anew: seconds each time.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

setup: $(VENV)/.ready ## make .venv with the `aaml` command, from requirements.lock

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Python 3.11 or newer is needed (set PYTHON=...)"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade uv
	$(if $(CPU_TORCH),grep -vE '^(nvidia|cuda|triton)' requirements.lock,cat requirements.lock) > $(VENV)/requirements.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --requirements $(VENV)/requirements.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --editable .
	@touch $@

demo: setup ## train the four agents briefly, evaluate them, leave a report (a few minutes)
	$(BIN)/aaml demo

kwok: setup ## build the programs of the KWOK cluster and Karpenter once (about ten minutes)
	$(BIN)/aaml cluster build --autoscaler

check: lint types ## ruff, mypy strict, import contracts, workflows

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/go run github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT) -shellcheck=$(BIN)/shellcheck

types: setup
	$(BIN)/mypy

browser: ## the browser of the tests, where it may be installed
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	echo "make: no chromium: the tests in a browser are skipped (install the package chromium)"

test: lint kwok browser ## every test, the live ones on real KWOK included
	@$(MAKE) --no-print-directory --jobs=2 types every-test

test-fast: lint ## lint, types, and the quick unit tests: three minutes on two cores
	@$(MAKE) --no-print-directory --jobs=2 types quick-tests

every-test: setup
	$(BIN)/python -m pytest $(SHARED_OUT)

quick-tests: WORKERS = $(shell echo $$(($(CORES) + 1)))  # some wait for processes
quick-tests: setup
	$(BIN)/python -m pytest $(SHARED_OUT) -m "not slow" tests/unit

differential: setup ## against the real kube-scheduler, Karpenter, Kueue and descheduler: 20,000 decisions, 2,000 pod groups and 300 preemptions by them, 2,000 admissions by Kueue, 10,000 strange objects, 20,800 decisions of plugins, 7,500 of Karpenter, 4,000 scenes of the descheduler; 200 runs of aaml autoscale under faults; 10,000 mutations of a file of each kind, 20,000 of manifests; the longest notebooks whole; half as many compiled bills again, and 1,600 drawn ones
	$(BIN)/aaml cluster build --autoscaler --queue
	AAML_DIFFERENTIAL_EPISODES=800 AAML_DIFFERENTIAL_STRANGE=140 AAML_DIFFERENTIAL_VOLUMES=50 AAML_DIFFERENTIAL_SEED=100000 \
	AAML_DIFFERENTIAL_RELEASES=1.36 $(BIN)/python -m pytest tests/e2e/test_differential_kube_scheduler.py
	AAML_DIFFERENTIAL_GROUPS=2000 AAML_DIFFERENTIAL_GROUP_PREEMPTIONS=300 AAML_DIFFERENTIAL_SEED=100000 $(BIN)/python -m pytest tests/e2e/test_differential_gangs.py
	AAML_KUEUE_ADMISSIONS=2000 AAML_DIFFERENTIAL_SEED=100000 $(BIN)/python -m pytest tests/e2e/test_differential_kueue.py tests/e2e/test_kueue_live.py
	AAML_PLUGIN_DECISIONS=5200 AAML_PLUGIN_SEED=100000 $(BIN)/python -m pytest tests/e2e/test_plugin_live.py -k every_agent
	AAML_KARPENTER_SCENES=1500 AAML_KARPENTER_EPISODES=3 AAML_KARPENTER_STEP=2 AAML_KARPENTER_SEED=100000 \
	$(BIN)/python -m pytest tests/e2e/test_differential_karpenter.py
	for seed in 100000 200000 300000 400000; do \
	  AAML_AUTOSCALE_RUNS=50 AAML_AUTOSCALE_SEED=$$seed $(BIN)/python -m pytest tests/e2e/test_autoscale_chaos.py || exit; done
	AAML_AUTOSCALE_EXAMPLES=2000 $(BIN)/python -m pytest tests/unit/live/test_autoscale_any_order.py
	AAML_MUTATIONS=10000 $(BIN)/python -m pytest tests/unit/test_mutated_files.py
	AAML_MANIFEST_MUTATIONS=20000 AAML_MANIFEST_SEED=100000 $(BIN)/python -m pytest tests/contract/test_mutated_manifests.py
	AAML_WHOLE_NOTEBOOKS=1 $(BIN)/python -m pytest tests/integration/test_notebooks.py
	AAML_BILL_ROWS=3 $(BIN)/python -m pytest tests/unit/episodes/test_compiled_bills.py tests/unit/episodes/test_compiled_learned_nodes.py
	AAML_DRAWN_BILLS=400 AAML_DRAWN_BILLS_SEED=100000 $(BIN)/python -m pytest tests/unit/episodes/test_drawn_bills.py
	AAML_BOUND_INSTANCES=250 $(BIN)/python -m pytest tests/unit/optimum/test_bounds_hold.py
	AAML_DESCHEDULER_SCENES=4000 AAML_DESCHEDULER_SEED=100000 $(BIN)/python -m pytest tests/e2e/test_differential_descheduler.py

bench-openb: setup ## all published GPU-sharing runs (17 traces, 10 seeds, 6 policies) against the paper's tables
	$(BIN)/aaml bench openb --policy published --traces published --seeds 42..51 --out results/openb

docs: setup ## the documentation site, into site/ (open site/index.html); warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

perf: setup ## every small workload of Kubernetes' own scheduler benchmark, beside the real kube-scheduler
	$(BIN)/aaml bench perf --scheduler least-allocated models/GNN_Model_gnn_balance_s0.pth

redraw: setup ## draw the tables and figures of README.md and docs/ again, from docs/results
	$(BIN)/python tools/docs/draw.py

.PHONY: browser docs perf redraw bench-openb help setup check lint types demo kwok test every-test test-fast quick-tests differential
