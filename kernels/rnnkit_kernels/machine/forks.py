"""Reset of thread state in a forked child, which has none of its parent's threads, but the locks that these held.

`rnnkit.call.forking` hooks into the fork, and calls `forget` in the child before it lets any call into the engine.
"""

_functions = []


def after_fork_in_child(function):
    """Register a function without arguments to run in each forked child; returns the function."""
    _functions.append(function)
    return function


def forget():
    """Run the registered functions, in order."""
    for function in _functions:
        function()
