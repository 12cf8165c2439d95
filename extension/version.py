"""What this is a version of; `pyproject.toml` says the same."""

VERSION = "0.1.0"
