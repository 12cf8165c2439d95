"""How a layer with adapters is computed: hooks on layers, low-rank, dense and merged executors.

`hooks` patches classes and carries slots. `low_rank` computes beside a layer, `dense` builds an effective weight for a
call, `merged` writes into the base weight and puts it back. `opaque` is what the compiler sees of them.
"""
