"""How adapter files spell their keys: one file per spelling, found by `registry.discover`."""
