.PHONY: test format clean

test:
	./scripts/test

format:
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean:
	rm -rf .venv build dist .coverage .*_cache .hypothesis
