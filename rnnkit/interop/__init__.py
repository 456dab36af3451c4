"""Weights of other frameworks as networks of ours, and back: arrays in, arrays out.

Nothing here imports a framework to convert arrays.  Each file states one framework's order of gates, its names and
what it has that we lack; `networks` has what they share.
"""
