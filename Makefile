# Everything starts here. `make demo` and `make test` set up what they need.
#
#   make demo    the whole system on a simulated cluster   [DURATION=60] [SUMMARY=FILE] [PORT=P] [CARD=h200]
#   make check   format, lint, types, import contracts, wire
#   make test    the tests, minutes; every run draws the same
#   make test-smoke  a long test of each kind, as CI runs them beside `make test`
#   make test-long  walks of processes, failover, torch, rendering, documented commands: for nights
#   make nightly  what takes more than a minute each, and every property with fresh draws
#                   [ARGS=--hypothesis-seed=N] [BASE=IMAGE: both container images from it, by buildah]
#   make walks   random walks of real processes and of a cluster, judged from outside   [SEED=N] [STEPS=5000]
#   make bench   benchmarks, as ratios in one run
#   make mutants plants small faults in the keeper and reports which the tests catch
#   make golden  rewrites the golden texts; read the diff before you commit it
#   make tables  rewrites benchmarks/results/tables-*.md: runs and frontiers beside other systems, minutes
#   make docs    rewrites the generated documents: pages, docs/openapi.json, dashboards and rules
#   make pictures   the pictures of docs, from live runs
#   make docs-site  the documents as a site with search, in build/site
#   make release two wheels and sdists, chart, container contexts, SBOM and checksums, from a clean checkout
#   make sbom    the software bill of materials, CycloneDX   [ROLE=controller]
#   make proto   regenerates the protobuf stubs

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of processes of the tests would otherwise each compile every module that they import.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo check test test-smoke test-long nightly release walks torch producers bench tables mutants golden docs pictures docs-site release sbom proto setup setup-dev debian clean

help:
	@sed -n 's/^#   //p' Makefile

# -- set-up ----------------------------------------------------------------------------------

setup: $(VENV)/compiled.done
setup-dev: $(VENV)/dev.done $(VENV)/compiled.done

$(VENV)/run.done: pyproject.toml lab/pyproject.toml constraints/all.txt tools/setup
	@tools/setup run "$(PYTHON)" "$(VENV)"

# Again where a kernel changed, so that the workers of a test run do not each compile it.
$(VENV)/compiled.done: $(VENV)/run.done $(wildcard engine/joulecut_engine/optimize/*.py)
	@tools/setup compile "$(PYTHON)" "$(VENV)"

$(VENV)/dev.done: $(VENV)/run.done
	@tools/setup dev "$(PYTHON)" "$(VENV)"

debian:
	@tools/debian-packages

# -- the product -----------------------------------------------------------------------------

demo: setup
	@$(BIN)/joulecut demo $(if $(DURATION),--duration $(DURATION)) $(if $(SUMMARY),--summary $(SUMMARY)) $(if $(PORT),--port $(PORT)) $(if $(CARD),--card $(CARD)) $(ARGS)

# -- the proof -------------------------------------------------------------------------------

# Four workers also on two cores: many tests wait for processes.
PYTEST := $(BIN)/python -m pytest -n 4 --dist worksteal

test: setup-dev debian
	@$(PYTEST) $(ARGS)

test-smoke: setup-dev debian
	@$(PYTEST) -m smoke $(ARGS)

test-long: setup-dev debian torch producers
	@$(PYTEST) -m long $(ARGS)

walks: setup-dev
	@$(BIN)/python tests/walks/cluster_walk.py --steps $(or $(STEPS),5000) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python tests/walks --steps $$(( $(or $(STEPS),5000) / 5 )) $(if $(SEED),--seed $(SEED)) $(ARGS)

torch: $(VENV)/dev.done
	@tools/setup torch "$(PYTHON)" "$(VENV)"

producers: $(VENV)/producers.done

# Again where a pin or the list of packages changed. Without torch there is no file, and nothing to do.
$(VENV)/producers.done: constraints/all.txt tools/setup | torch
	@tools/setup producers "$(PYTHON)" "$(VENV)"

nightly: setup-dev debian producers
	@tools/setup fuzzer "$(PYTHON)" "$(VENV)"
	@JOULECUT_BASE=$(BASE) $(PYTEST) --hypothesis-profile=fresh -m "nightly or (hypothesis and not long)" $(ARGS)
	@tools/setup cp-sat "$(PYTHON)" "$(VENV)"
	@PYTHONPATH=$(VENV)/cp-sat $(BIN)/python benchmarks/cp_sat.py

check: $(VENV)/dev.done
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@cd protos && ../$(BIN)/buf lint
	@tools/proto --check
	@$(BIN)/python tools/dashboards --check
	@$(BIN)/python tools/lines

bench: setup-dev
	@tools/setup bench "$(PYTHON)" "$(VENV)"
	@for file in benchmarks/*.py; do echo; echo "== $$file"; $(BIN)/python $$file || exit 1; done

tables: setup-dev
	@tools/setup bench "$(PYTHON)" "$(VENV)"
	@$(BIN)/python benchmarks/model.py --set korthikanti --set b200 --set vtrain --families 4 --out benchmarks/results/tables-models.md
	@$(BIN)/python benchmarks/solver.py --only lowtime,highs,gaps $(ARGS) --out benchmarks/results/tables-frontiers.md

mutants: setup-dev
	@$(BIN)/python tools/mutants/run $(ARGS)

golden: setup-dev
	@JOULECUT_REWRITE_GOLDEN=1 $(BIN)/python -m pytest -q tests/golden $(ARGS); git diff --stat -- tests/golden

docs: setup-dev
	@$(BIN)/python tools/metrics-doc
	@$(BIN)/python tools/policy-doc
	@$(BIN)/python tools/glossary-doc
	@$(BIN)/python tools/openapi-doc
	@$(BIN)/python tools/dashboards

# Of live runs, and of simulated windows for the report. Dashboards need npm and Prometheus.
pictures: setup-dev
	@$(BIN)/python tools/pictures
	@$(BIN)/python tools/model-picture
	@$(BIN)/python tools/page-pictures
	@JOULECUT_REWRITE_PICTURES=1 $(PYTEST) -m "" tests/grafana/test_grafana_queries.py

docs-site: $(VENV)/dev.done
	@$(BIN)/python tools/docs-site build

release: $(VENV)/dev.done
	@tools/release

sbom: $(VENV)/dev.done
	@tools/sbom $(ROLE)

proto: setup-dev
	@tools/proto

clean:
	rm -rf $(VENV) .venv-proto artifacts .mypy_cache .ruff_cache .pytest_cache
