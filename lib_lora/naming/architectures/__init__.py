"""How model families name their modules: one file per family, found by `registry.discover`."""
