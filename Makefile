# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0

PYTHON_SOURCES := src test bench launch tools
.DEFAULT_GOAL := help
.PHONY: run setup build test lint clean help

run: build  ## learn the peg task in simulation; ARGS="budget.env_steps=2000" overrides
	@.venv/bin/user run peg_rlpd $(ARGS)

setup: build

build:  ## make or refresh .venv and the workspace (seconds when nothing changed)
	@tools/setup.sh

test:  ## run the tests; ARGS="-k safety" chooses among them
	@tools/setup.sh test
	@.venv/bin/python -m pytest $(ARGS)

lint:  ## check style and types
	@tools/setup.sh test
	@.venv/bin/ruff check $(wildcard $(PYTHON_SOURCES))
	@.venv/bin/ruff format --check $(wildcard $(PYTHON_SOURCES))
	@.venv/bin/mypy

clean:  ## remove all that set-up made; runs/ stays
	rm -rf .venv build install log .setup.lock .pytest_cache .mypy_cache .ruff_cache .hypothesis

help:
	@awk -F ':.*  ## ' '/^[a-z]+:.*  ## / {printf "make %-6s %s\n", $$1, $$2}' Makefile
