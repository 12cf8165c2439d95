"""Names in a file and the weights of a model: which key means which rows of which layer.

`index.LayerIndex` has the layers of a component under all their names; `architectures/` has one file per model family.
`parsed.ParsedFile` is a file without a model, `network.Network` a file resolved against one; `NetworkCache` keeps both.
"""
