"""A state as calls take and give it: None, an array or a tuple of several."""


def arrays_of(value):
    """The arrays of a state."""
    return [] if value is None else list(value) if isinstance(value, tuple) else [value]


def as_given(states):
    """As a user gives them: None, an array or a tuple."""
    return None if not states else states[0] if len(states) == 1 else tuple(states)


def each_of(function, value):
    """A state of what the function makes of its arrays."""
    return as_given([function(one) for one in arrays_of(value)])
