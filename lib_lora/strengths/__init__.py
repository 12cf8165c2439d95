"""The user's factor: numbers and functions, the table of them that layers read, and the calls they depend on.

`multiplier`, `schedule` and `regions` are what users write. `evaluation` makes numbers of them, `table.Strengths` holds
these on each device. `model_call`, `token_grid` and `call_hooks` tell the step, the rows and the places of a call.
"""
