"""Networks as C: `rnnkit.native.export` writes the files, `check` compiles and runs them.

`text` writes the equations of a cell, `functions` what they call, `products` the products, `layer` a layer of them,
`network` what a program calls, and `selftest` the test that comes with it.
"""
