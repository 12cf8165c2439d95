"""The user's factor, the table of all factors that layers read, and the model calls that they depend on.

`strength` and `regions` are what users write. `stack_strengths` has the strengths of a stack at any moment, `table` the
factors of the active plan on each device, and `model_call` sets them to each call's moment, rows and token grid.
"""
