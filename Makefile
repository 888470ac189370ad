# Every target makes the environment first (tools/env), so that a fresh clone needs nothing but Python.
DEV := ./tools/env dev --
# Test files are shared out among so many processes: one for each core.
JOBS := auto
TEMPLATES := $(shell find templates -name '*.html')
PATHS := demo portal workers scheduling tenants src tests tools examples benchmarks scripts

.DEFAULT_GOAL := help
.PHONY: help up test check format lint types imports migrations docs bench soak gpu screenshots lock clean

help: ## this list
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: ## everything on this machine, with a demo cluster
	./tessera up

test: ## all tests that need nothing but Python
	$(DEV) python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

check: format lint types imports migrations docs test ## what has to pass before a change goes in

format: ## is every file laid out by ruff, every template by djade and djhtml?
	$(DEV) ruff format --check $(PATHS)
	$(DEV) djade --target-version 5.2 --check $(TEMPLATES)
	$(DEV) djhtml --tabwidth 2 --check templates

lint:
	$(DEV) ruff check $(PATHS)

types:
	$(DEV) mypy

imports: ## do the rooms import in one direction only?
	$(DEV) lint-imports

migrations: ## do models and migrations agree?
	$(DEV) python manage.py makemigrations --check --dry-run

docs: ## are the generated pages and the lists in docs/ up to date?
	$(DEV) python -m pytest -q tests/docs

bench: ## writes benchmarks/results/latest.json
	$(DEV) python -m benchmarks $(ARGS)

soak: ## long property tests, fault matrices, and every page in a real browser
	$(DEV) python -m pytest -m soak --timeout 3600 --ignore tests/e2e $(ARGS)
	$(DEV) python -m pytest -m soak -p no:asyncio tests/e2e

gpu: ## questions about the GPUs of this machine, and a report; skipped without a GPU
	$(DEV) python -m pytest -m gpu -rs tests/gpu tests/train/test_cuda.py $(ARGS)

screenshots: ## pictures of the pages, with a real browser
	$(DEV) python scripts/screenshots.py $(ARGS)

lock: ## works the requirements out anew, with hashes
	$(DEV) python tools/lock.py

clean: ## removes caches and the environment; data in var/ stays
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
