"""The user's factor, the table of all factors that layers read, and the model calls that they depend on.

`strength` and `regions` are what users write. `table` has the numbers of the active plan on each device, and
`model_call` sets them to the moment, the rows and the token grid of each call.
"""
