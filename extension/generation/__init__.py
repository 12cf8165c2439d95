"""A generation: a batch requests LoRA, the engine applies them, and the state reports the outcome.

`session.Session` connects one host's model with an engine. `request` and `batch` hold what a batch asks for,
`options` the settings, `state` what the tab and the API show, `compare` and `xyz` series of pictures.
"""
