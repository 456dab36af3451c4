"""Cell definitions, as equations of one unit. `cell` explains how a cell is written, `modes` maps names to cells.

Nothing here depends on memory, rows or threads, and nothing imports Numba.
"""
