"""The embedded web UI: a page and an HTTP API over a diffusers pipeline, with Remora as in any other host."""
