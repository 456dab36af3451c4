"""Generated faults that change nothing that anybody could see, each with the reason; by their names."""

EQUIVALENT = {
    "rnnkit/network/networks.py module: neighbours swapped: GRU, RNN -> RNN, GRU": "a table by name has no order",
    "rnnkit/kernels/machine/rounding.py _round: constant: 0 -> (-1)": "the number beside the last odd one meets a "
    "weight of 0",
}
