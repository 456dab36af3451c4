"""GRU in both published forms."""

from typing import NamedTuple

from .cell import Gate, cell, forward, gradient
from .functions import fma, sigmoid, tanh


@cell(gates=[Gate("r"), Gate("z"), Gate("n", apart="q")])
class ResetAfterGRU(NamedTuple):
    """Reset after the product, q = Rn h + bRn (arXiv 1406.1078v1, cuDNN, PyTorch)."""

    @forward("r z")
    def gates(self, r, z):
        return sigmoid(r), sigmoid(z)

    @gradient("dr dz")
    def through_gates(self, r, z, dr, dz):
        return dr * (r * (1 - r)), dz * (z * (1 - z))

    @forward("n h")
    def output(self, r, z, n, q, h_prev):
        n = tanh(fma(r, q, n))
        return n, fma(z, h_prev, (1 - z) * n)

    @gradient("dr dz dn dq dh_prev")
    def through_output(self, r, z, n, q, h_prev, dh):
        dn = dh * (1 - z) * (1 - n * n)
        return dn * q, dh * (h_prev - n), dn, dn * r, dh * z


@cell(gates=[Gate("r"), Gate("z"), Gate("n", multiplies="reset")])
class ResetBeforeGRU(NamedTuple):
    """Reset before the product: Rn multiplies r*h (arXiv 1406.1078v3, the ONNX default)."""

    @forward("r z reset")
    def gates(self, r, z, h_prev):
        r = sigmoid(r)
        return r, sigmoid(z), r * h_prev

    @gradient("dr dh_prev")
    def through_reset(self, r, h_prev, dreset, dh_prev):
        return dreset * h_prev * (r * (1 - r)), fma(dreset, r, dh_prev)

    @forward("n h")
    def output(self, z, n, h_prev):
        n = tanh(n)
        return n, fma(z, h_prev, (1 - z) * n)

    @gradient("dz dn dh_prev")
    def through_output(self, z, n, h_prev, dh):
        return dh * (h_prev - n) * (z * (1 - z)), dh * (1 - z) * (1 - n * n), dh * z
