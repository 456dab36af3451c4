"""What a forked child forgets: its parent's threads, of which it has none, and the locks that these held.

`rnnkit.call.forking` has the hook of the fork, and calls `forget` in the child before it lets anything into the engine.
"""

_functions = []


def after_fork_in_child(function):
    """Let a function without arguments run in each child that this process forks; returns the function."""
    _functions.append(function)
    return function


def forget():
    """Run these functions, in the order in which they came."""
    for function in _functions:
        function()
