"""The mathematics: a cell is a page of equations (`cell` says how one is written), `modes` the table of their names.

Nothing here knows of memory, rows or threads, and nothing imports Numba.
"""
