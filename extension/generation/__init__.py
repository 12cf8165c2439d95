"""What happens during a generation: a batch asks for LoRA, the engine applies them, the state tells what became of it.

`session.Session` connects one host's model with an engine. `request` and `batch` are what a generation wants, `options`
the settings, `state` what the tab and the API are told, `compare` and `xyz` series of pictures, `paste` the way back.
"""
