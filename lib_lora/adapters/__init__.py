"""What the tensors of an adapter mean: one file per algorithm, found by `registry.discover_classes`."""
