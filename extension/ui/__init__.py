"""Everything that is seen; the only place that imports gradio."""
