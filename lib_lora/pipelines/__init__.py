"""LoRA of a diffusers pipeline by their names, on top of `Engine`.

`attached` has `attach` and the engine that a pipeline keeps. `wishes` reads strengths by component and block, as
diffusers writes them. `calls` has diffusers' own names.
"""
