"""Estimate the time of an allreduce of a gradient on a network: prints the table of docs/how-to/many-machines.md.

A message of n bytes takes latency + n/bandwidth, and hosts send and receive at once. Of p hosts each sends
2(p-1)/p n bytes, the least that is possible, and adds (p-1)/p n:
- ring, 2(p-1) messages: P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations,
  J. Parallel Distrib. Comput. 69(2), 2009.
- tree (recursive halving and doubling), 2 log2(p) messages, p a power of two: R. Thakur, R. Rabenseifner, W. Gropp,
  Optimization of collective communication operations in MPICH, Int. J. High Perform. Comput. Appl. 19(1), 2005.
"""

from itertools import chain
from math import log2
from typing import NamedTuple

HOSTS = 8, 64, 512
WEIGHTS = {"0.5M": 500_000, "5M": 5_000_000, "20M": 20_000_000}  # float32
SEQ_LEN = 64
HOST_FLOPS = 1e12  # in training steps: 6 per weight, time step and sequence (2 forward, 4 backward)
ADD_SECONDS = 1 / 4e9  # a byte, one thread; measured: 2.7 to 4.4 GB/s for 80 MB, 13 for 20 MB that the cache holds


class Network(NamedTuple):
    name: str
    bytes_per_second: float
    latency: float  # seconds; half of a ping-pong of MPI: over TCP about 25 us, over InfiniBand 1 to 2 us


NETWORKS = (
    Network("1 Gbit/s Ethernet", 1e9 / 8, 25e-6),
    Network("10 Gbit/s Ethernet", 10e9 / 8, 25e-6),
    Network("100 Gbit/s Ethernet", 100e9 / 8, 25e-6),
    Network("200 Gbit/s InfiniBand", 200e9 / 8, 2e-6),
)


def allreduce_seconds(network, hosts, nbytes, messages):
    sent = nbytes * (hosts - 1) / hosts
    return messages * network.latency + 2 * sent / network.bytes_per_second + sent * ADD_SECONDS


def ring(network, hosts, nbytes):
    return allreduce_seconds(network, hosts, nbytes, messages=2 * (hosts - 1))


def tree(network, hosts, nbytes):
    return allreduce_seconds(network, hosts, nbytes, messages=2 * log2(hosts))


def sequence_seconds(weights):
    """Return the seconds of a host for one sequence of the batch."""
    return 6 * weights * SEQ_LEN / HOST_FLOPS


def rows():
    """The cells of each row: milliseconds by ring and tree, and the batch of a host for which it computes as long."""
    for network in NETWORKS:
        for hosts in HOSTS:
            cells = [network.name, str(hosts)]
            for weights in WEIGHTS.values():
                seconds = [algorithm(network, hosts, 4 * weights) for algorithm in (ring, tree)]
                batch = min(seconds) / sequence_seconds(weights)
                cells += [" / ".join(short(1e3 * one) for one in seconds), short(batch)]
            yield cells


def short(number):
    """Format a number with two significant digits."""
    return f"{float(f'{number:.2g}'):g}"


def table():
    columns = [(f"{name} weights: ms, ring / tree", "batch") for name in WEIGHTS]
    titles = ["interconnect", "hosts", *chain.from_iterable(columns)]
    lines = [titles, ["---"] * len(titles), *rows()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    print(table())
