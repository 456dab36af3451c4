"""A language model of `rnnkit train` on a web page, as WebAssembly."""
