"""What files and models on disk have in them, without a model in memory: for the command line and the extension.

`skeleton` builds the layers of a model from its headers, `renames` proposes names that fit them, `key_list` writes the
keys of a file for a report, `zeros` tells whether a file changes nothing, and `families` which family words name.
`doctor` reports what `measures` of one file, `stacked` files and their `sketches` tell, and the `verdicts` on them. The
core imports nothing of this room.
"""
