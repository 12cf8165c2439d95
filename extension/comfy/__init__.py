"""Nodes for ComfyUI: LoRA on a clone of a model, applied while the clone is sampled.

`nodes` has the nodes, `applied` puts a stack in force around ComfyUI's samplers and text encoders, `entries` makes
entries of a stack from what a node or a prompt says, `combining` makes one file of the LoRA of a rule, and `plugins`
tells the library how ComfyUI keeps a model. ComfyUI's modules are imported in `nodes` and `combining` alone.
"""

from .nodes import comfy_entrypoint

__all__ = ["comfy_entrypoint"]
