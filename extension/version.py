"""Remora's version, equal to the one in `pyproject.toml`."""

VERSION = "0.1.0"
