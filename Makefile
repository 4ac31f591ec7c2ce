# One command per need, the same one here and in CI. `make` alone lists them.
VENV   ?= .venv
PYTHON ?= python3
# how many tests at once (they wait half of the time), and what else pytest is told: make test TESTS="tests/test_migrate.py -x"
JOBS   ?= 3
TESTS  ?=
# of make chaos
CHAOS_SECONDS ?= 300
SEED ?=
# of make soak
MINUTES ?= 15
RATE    ?= 800
WORKERS ?= 1
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup test model matrix lint format types imports check contract plans bench bench-page soak sweep outage chaos chaos-long chaos-peers bench-peers demo clean

help: ## List what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## Make the virtual environment and install the package with its tools

test: $(VENV)/.dev ## Run the tests on a Postgres of their own (or on the server that DATABASE_URL names)
	@# Real processes, killed and frozen, on a machine that has other things to do: what failed gets a second try, alone.
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(TESTS) || { \
		echo 'What failed is tried once more, by itself. What fails again is broken; what does not is to be made steadier.'; \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(TESTS); }

lint: $(VENV)/.dev ## Check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(VENV)/.dev ## Put formatting right
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(VENV)/.dev ## Check types
	$(BIN)/mypy

imports: $(VENV)/.dev ## Check that imports point down
	$(BIN)/lint-imports --no-logo

check: lint types imports test ## Check style, types and imports, and run the tests

model: $(VENV)/.dev ## Try the state machine against its model, thousands of examples: make model SEED=7
	@seed=$(or $(SEED),$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')); echo "SEED=$$seed"; \
	$(BIN)/python -m pytest $(or $(TESTS),tests/test_model.py tests/test_fuzz.py) -o faulthandler_timeout=0 \
	  --hypothesis-profile=model --hypothesis-seed=$$seed

matrix: $(VENV)/.dev ## Run the promises on every Postgres, Python and setting: make matrix ARGS="--postgres 12,18"
	$(BIN)/python -m tests.matrix $(ARGS)

contract: $(VENV)/.dev ## Run the tutorial's SQL, word for word, where its script lies beside the checkout
	@if [ -f $(CONTRACT) ]; then $(BIN)/python -m redrive.dev_server -- $(BIN)/python $(CONTRACT); \
	else echo "contract: skipped, no $(CONTRACT)"; fi

plans: $(VENV)/.dev ## Pin the plans of the hot statements at half a million rows: some minutes
	$(BIN)/python -m pytest -m plans -o faulthandler_timeout=900 --durations 0 $(TESTS)

soak: $(VENV)/.dev ## A steady load under long transactions: make soak MINUTES=60 RATE=800 WORKERS=1
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) --rate $(RATE) --workers $(WORKERS) --out benchmarks/soak

sweep: $(VENV)/.dev ## Measure looks from the head of a lane over a million dead entries, and how long late jobs wait
	$(BIN)/python -m benchmarks.sweep

outage: $(VENV)/.dev ## A provider's two-hour outage in moved time, with the breaker and without, and its picture
	$(BIN)/python -m benchmarks.outage --picture docs/outage.svg

chaos: $(VENV)/.dev ## Faults by the hundred while jobs run, and proof that none is lost: CHAOS_SECONDS=300 SEED=7
	$(BIN)/python -m chaos --seconds $(CHAOS_SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: chaos-broker
chaos-broker: $(VENV)/.dev ## The same over RabbitMQ, three nodes, whose own faults are added: CHAOS_SECONDS=480 SEED=7
	$(BIN)/python -m pytest -q -rP -m proof -o faulthandler_timeout=900 tests/test_rabbit.py
	$(BIN)/python -m chaos.brokered --seconds $(CHAOS_SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

chaos-long: ## What make chaos does, for an hour
	@$(MAKE) --no-print-directory chaos CHAOS_SECONDS=3600

chaos-peers: $(VENV)/.dev ## Fewer faults, for redrive and two other job queues alike, and the table of them in docs/chaos.md
	$(BIN)/python -m chaos.peers --out chaos/peers.json --report docs/chaos.md $(ARGS)

.PHONY: schedules-proof
schedules-proof: $(VENV)/.dev ## Prove schedules: every zone for 400 days; five workers under kills, no slot lost or doubled; beside pg_cron
	$(BIN)/python -m pytest -rP -m proof -n $(JOBS) -o faulthandler_timeout=900 \
	  tests/test_timetable.py tests/test_scheduler.py tests/test_pg_cron.py

demo: $(VENV)/.demo ## Watch it work: workers, failures, a crash, the dead-letter state
	$(BIN)/python -m redrive demo

bench: $(VENV)/.dev ## Measure ours beside bare SQL: BENCH_QUICK=1 for a twentieth, BENCH_PG=15, ONLY=roads for a part
	$(BIN)/python -m benchmarks $(ONLY)

.PHONY: bench-broker
bench-broker: $(VENV)/.dev ## Measure what a broker takes off the database, and how fast jobs go over it: some minutes
	$(BIN)/python -m benchmarks.broker $(ARGS)

bench-page: $(VENV)/.dev ## Put the results of make bench into docs/performance.md and scale.md, RESULTS.md and what redrive capacity reckons with
	$(BIN)/python -m benchmarks page

.PHONY: adopt-proof
adopt-proof: $(VENV)/.dev ## Adopted tables: 200 rows of every shape beside the old script, and what 5,000,000 rows cost: some minutes
	$(BIN)/python -m pytest -rP -m proof -n $(JOBS) -o faulthandler_timeout=900 tests/test_adopt_proof.py tests/test_cli_adopt.py
	$(BIN)/python -m benchmarks.adopt
	$(BIN)/python -m benchmarks.adopt_look

.PHONY: desk-proof desk-pictures
desk-proof: $(VENV)/.dev ## What every page of the desk costs at 5,000,000 rows, and ten open tabs: some minutes, 4 GB
	$(BIN)/python -m benchmarks.desk $(ARGS)

desk-pictures: $(VENV)/.dev ## Take the pictures of the desk for the documentation, in Chromium
	$(BIN)/python -m benchmarks.pictures

bench-peers: $(VENV)/.dev ## Measure redrive beside other job queues (make bench-peers ARGS="--quick --peers redrive,pgqueuer")
	$(BIN)/python -m benchmarks.peers $(ARGS)

clean: ## Remove the virtual environment and all that tools left behind
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

CONTRACT := ../shared/contract/tutorial.py

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "redrive needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "$(PYTHON) cannot make virtual environments: on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The stamps: pip runs again only when pyproject.toml has changed.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo 'Installing redrive into $(VENV): a minute or so, the first time only.'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo 'Installing redrive and its tools into $(VENV): some minutes, the first time only.'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(VENV)/.demo $@
