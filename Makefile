# The commands of this project; `make` alone lists them.

PYTHON ?= python3
VENV := .venv
DOCS_VENV := .venv-docs
PEERS_VENV := .venv-peers
PEERS := floor pgqueuer chancy procrastinate django-tasks-db celery dramatiq huey
BIN := $(VENV)/bin

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help test browser screenshots demo bench measure memory chaos docs format clean

help: ## list the commands
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

# $(call part,title,command): run one part of the tests and say how long it took; a failure ends the whole run.
define part
@printf '\n=== %s\n' '$(1)'; start=$$(date +%s); $(2) || exit; \
	printf '=== %s: passed in %s s\n' '$(1)' $$(($$(date +%s) - start))
endef

# What the browser tests need besides; the packages chromium and chromium-driver have it.
HAS_BROWSER = command -v chromium >/dev/null && command -v chromedriver >/dev/null

# $(call chosen,NAME): `--name value` where the command line of make sets NAME.
lower = $(shell printf '%s' '$(1)' | tr A-Z a-z)
chosen = $(if $($(1)),--$(call lower,$(1)) $($(1)))

test: $(VENV)/test.stamp ## lint, types, migrations, and the suite on SQLite and on PostgreSQL
	$(call part,ruff check,$(BIN)/ruff check)
	$(call part,ruff format,$(BIN)/ruff format --check)
	$(call part,mypy,$(BIN)/mypy chainsched tests example_project chaos bench)
	$(call part,migrations,$(BIN)/python manage.py makemigrations --check --dry-run --settings tests.settings)
	$(call part,tests on SQLite,CHAINSCHED_TEST_DATABASE_URL=sqlite $(BIN)/python -m pytest -n 2)
	$(call part,tests on PostgreSQL,$(BIN)/python -m tests.postgres -- $(BIN)/python -m pytest -n 2 --only-database)
	@$(HAS_BROWSER) || printf '\n!!!!! NOT RUN: make browser, which needs the packages chromium and chromium-driver\n\n'

browser: $(VENV)/test.stamp ## the stories of operators, layout and contrast in a real Chromium, on PostgreSQL
	$(call part,browser tests,$(BIN)/python -m tests.postgres -- $(BIN)/python -m pytest -m browser)

screenshots: $(VENV)/test.stamp ## take the screenshots of the documentation again
	$(BIN)/python -m pytest -m browser tests/browser/test_screenshots.py --screenshots docs/_static/screenshots

demo: $(VENV)/demo.stamp ## run the example project; FOR=30 ends it after 30 seconds
	@$(BIN)/python -m example_project.demo $(if $(FOR),--for $(FOR))

bench: $(VENV)/bench.stamp ## compare with other job queues, which may need a Redis; TINY=1, COUNT=, ROUNDS=, ONLY=name,name, JSON=path
	@$(MAKE) --no-print-directory $(PEERS_VENV)/peers.stamp || printf '\n!!!!! NOT INSTALLED: $(PEERS_VENV)\n\n'
	@$(BIN)/python -m tests.postgres --durable -- $(BIN)/python -m bench.compare $(if $(TINY),--tiny) \
		$(foreach name,COUNT ROUNDS ONLY JSON,$(call chosen,$(name)))

measure: $(VENV)/bench.stamp ## compare seeding with bulk_create; measure the stages, graphs and parked rows; COUNT=5000 for fewer
	@$(BIN)/python -m tests.postgres -- $(BIN)/python -m bench.seeding $(COUNT)
	@$(BIN)/python -m tests.postgres --durable -- $(BIN)/python -m bench.stages $(if $(COUNT),--count $(COUNT))
	@$(BIN)/python -m tests.postgres --durable -- $(BIN)/python -m bench.graphs $(if $(COUNT),--count $(COUNT))
	@$(BIN)/python -m tests.postgres --durable -- $(BIN)/python -m bench.parked $(if $(COUNT),--count $(COUNT))

memory: $(VENV)/bench.stamp ## watch the memory of a scheduler and its children over 50,000 jobs, which must stay flat; COUNT=5000 for fewer
	@$(BIN)/python -m tests.postgres -- $(BIN)/python -m bench.memory $(COUNT)

chaos: $(VENV)/test.stamp ## kill, freeze and restart things under load, and check; JOBS=, SEED=, MINUTES=, KILLS=, FREEZES=, RESTARTS=
	@$(BIN)/python -m chaos $(foreach name,JOBS SEED MINUTES KILLS FREEZES RESTARTS,$(call chosen,$(name)))

docs: $(DOCS_VENV)/docs.stamp ## build the documentation into docs/_build/html
	$(DOCS_VENV)/bin/sphinx-build -E -W --keep-going -b html docs docs/_build/html

format: $(VENV)/test.stamp ## let ruff format the code and fix the problems that it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove the virtual environments, caches and build results
	rm -rf .venv* .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist docs/_build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/test.stamp: pyproject.toml | $(VENV)/pip.stamp
	$(BIN)/python -m pip install --quiet -e '.[postgres]' --group test --group types
	@touch $@

$(VENV)/bench.stamp: pyproject.toml | $(VENV)/pip.stamp
	$(BIN)/python -m pip install --quiet -e '.[postgres]' --group bench
	@touch $@

# If they cannot be installed together, those that can be are installed one by one; the next make tries again.
$(PEERS_VENV)/peers.stamp: pyproject.toml | $(PEERS_VENV)/pip.stamp
	@if $(PEERS_VENV)/bin/python -m pip install --quiet --group peers; then touch $@; else for peer in $(PEERS); do \
		$(PEERS_VENV)/bin/python -m pip install --quiet --group peer-$$peer || \
		printf '\n!!!!! NOT INSTALLED: %s\n\n' $$peer; done; fi

$(VENV)/demo.stamp: pyproject.toml | $(VENV)/pip.stamp
	$(BIN)/python -m pip install --quiet -e '.[postgres]'
	@touch $@

$(DOCS_VENV)/docs.stamp: pyproject.toml | $(DOCS_VENV)/pip.stamp
	$(DOCS_VENV)/bin/python -m pip install --quiet --group docs
	@touch $@

# Dependency groups need pip 25.1.
%/pip.stamp:
	$(PYTHON) -m venv $*
	$*/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@
