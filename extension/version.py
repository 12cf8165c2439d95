"""Remora's version, equal to the one in `pyproject.toml`."""

VERSION = "1.0.0"
