"""Looks LoRA files up on sites, and downloads files from there; only when the user turned it on and asks for it.

One file in `sites` is one site. `fetch` sends every request: it asks the site's own hosts alone, waits between two
requests, and bounds every answer. `sidecars` keeps what is found in the files beside a LoRA, and `runs` are the jobs.
"""
