"""Texts and their meaning: prompts, tags, block weights, regions, parameters texts.

`prompt.parse` reads a prompt, `prompt_edit` changes its tags, `tag.Tag` is one of them. `infotext` reads and writes
parameters texts. Everything here is pure: no file, no model, no host.
"""
