"""What calls have left for later ones."""


def forget():
    """Drop it, and the routes that were chosen by thresholds that a test may have set."""
    from rnnkit.call.pool import IDLE
    from rnnkit.cpu import infer, route

    IDLE.clear()
    for cached in (route.route, infer._stepwise_calls, route.steps_of_one_call):
        cached.cache_clear()
