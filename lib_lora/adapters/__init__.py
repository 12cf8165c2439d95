"""What the tensors of an adapter mean: one file per algorithm, found by `plugins.discover_classes`."""
