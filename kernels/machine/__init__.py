"""The machine: vector registers, products on packed panels, threads that meet, and what compiles and keeps the code."""
