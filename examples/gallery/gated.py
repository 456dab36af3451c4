"""Cells with few gates."""

from typing import NamedTuple

from rnnkit.cells import (
    Activation,
    Gate,
    HardSigmoid,
    Relu,
    Scalar,
    Sigmoid,
    Softplus,
    cell,
    fma,
    forward,
    sigmoid,
    tanh,
    value,
)


@cell(gates=[Gate("p", apart="q")])
class ATR(NamedTuple):
    """W and R serve two gates at once, by the sum and the difference of
    their products.

    Zhang et al., "Simplifying Neural Machine Translation with
    Addition-Subtraction Twin-Gated Recurrent Networks", arXiv 1810.12546:

        p = W x + bW       q = R h + bR       h' = s(p + q)*p + s(p - q)*h
    """

    @forward("h")
    def step(self, p, q, h_prev):
        return fma(sigmoid(p + q), p, sigmoid(p - q) * h_prev)


@cell(gates=[Gate("p", apart="q")])
class SGRN(NamedTuple):
    """W and R serve both the gate and the candidate that it lets in.

    Simple gated recurrent network, DOI 10.1049/gtd2.12056:

        p = W x + bW
        q = R h + bR
        f = s(p + q)
        h' = tanh((1 - f)*p + f*h)
    """

    @forward("h")
    def step(self, p, q, h_prev):
        f = sigmoid(p + q)
        return tanh(fma(f, h_prev, (1 - f) * p))


@cell(gates=["f", "i", Gate("n", multiplies=None)])
class CFN(NamedTuple):
    """The chaos-free network: without input all units go to 0.

    Laurent and von Brecht, "A recurrent neural network without chaos",
    arXiv 1612.06212:

        f, i = s(W x + R h + biases)
        h' = f*tanh(h) + i*tanh(Wn x + bn)
    """

    @forward("h")
    def step(self, f, i, n, h_prev):
        return fma(sigmoid(f), tanh(h_prev), sigmoid(i) * tanh(n))


@cell(gates=[Gate("n", multiplies=None), "f"])
class LightRU(NamedTuple):
    """The gated unit whose candidate does not see h.

    Ye et al., "Light Recurrent Unit: Towards an Interpretable Recurrent
    Neural Network for Modeling Long-Range Dependency", DOI
    10.3390/electronics13163204:

        n = tanh(Wn x + bn)
        f = s(Wf x + Rf h + biases)
        h' = (1 - f)*h + f*n
    """

    @forward("h")
    def step(self, n, f, h_prev):
        f = sigmoid(f)
        return fma(f, tanh(n), (1 - f) * h_prev)


@cell(
    gates=[Gate(name, multiplies=None) for name in "acn"], vectors="ua uc"
)
class BR(NamedTuple):
    """The bistable cell: each unit sees only its own h.

    Vecoven, Ernst and Drion, "A bio-inspired bistable recurrent cell allows
    for long-lasting memory", arXiv 2006.05252; the cell BRC. With R in
    place of ua and uc it is `rnnkit.cells.NBR`:

        a = 1 + tanh(Wa x + ba + ua*h)
        c = s(Wc x + bc + uc*h)
        h' = c*h + (1 - c)*tanh(Wn x + bn + a*h)
    """

    @forward("h")
    def step(self, a, c, n, ua, uc, h_prev):
        a, c = 1 + tanh(fma(ua, h_prev, a)), sigmoid(fma(uc, h_prev, c))
        return fma(c, h_prev, (1 - c) * tanh(fma(a, h_prev, n)))


@cell(
    gates=[
        Gate("x", multiplies=None),
        Gate("g", multiplies="product", input=False),
        "z",
    ],
    smooth=False,
)
class SGU(NamedTuple):
    """The simple gated unit: W x multiplies h before R does, and the result
    multiplies h again.

    Gao and Glowacka, "Deep Gate Recurrent Neural Network", arXiv
    1604.02910:

        g = tanh(Rg ((Wx x + bx)*h) + bg)
        n = softplus(g*h)
        z = hard_s(Wz x + Rz h + biases)
        h' = (1 - z)*h + z*n
    """

    update: Activation = HardSigmoid()
    output: Activation = Softplus()

    @forward("product")
    def multiply(self, x, h_prev):
        return x * h_prev

    @forward("h")
    def step(self, g, z, h_prev):
        z = value(self.update, z)
        return fma(
            z, value(self.output, tanh(g) * h_prev), (1 - z) * h_prev
        )


@cell(
    gates=[
        Gate("x", multiplies=None),
        Gate("g", multiplies="product", input=False),
        "z",
        Gate("n", multiplies="gated", input=False),
    ],
    smooth=False,
)
class DSGU(NamedTuple):
    """The deep simple gated unit: SGU with one more product.

    Gao and Glowacka, "Deep Gate Recurrent Neural Network", arXiv
    1604.02910:

        g = tanh(Rg ((Wx x + bx)*h) + bg)
        n = s(Rn (g*h) + bn)
        z = hard_s(Wz x + Rz h + biases)
        h' = (1 - z)*h + z*n

    The paper has no bias bn: leave it at 0.
    """

    update: Activation = HardSigmoid()
    output: Activation = Sigmoid()

    @forward("product")
    def multiply(self, x, h_prev):
        return x * h_prev

    @forward("gated")
    def gate(self, g, h_prev):
        return tanh(g) * h_prev

    @forward("h")
    def step(self, n, z, h_prev):
        z = value(self.update, z)
        return fma(z, value(self.output, n), (1 - z) * h_prev)


@cell(gates="n", scalars=[Scalar("alpha", -3, -3), Scalar("beta", 3, 3)])
class FastRNN(NamedTuple):
    """The vanilla cell with a residual connection and two numbers.

    Kusupati et al., "FastGRNN: A Fast, Accurate, Stable and Tiny Kilobyte
    Sized Gated Recurrent Neural Network", arXiv 1901.02358:

        n = tanh(W x + R h + biases)       h' = s(alpha)*n + s(beta)*h

    alpha and beta are scalars; they begin with -3 and 3, as in the authors'
    program.
    """

    @forward("h")
    def step(self, n, alpha, beta, h_prev):
        return fma(sigmoid(alpha), tanh(n), sigmoid(beta) * h_prev)


@cell(
    gates=[
        Gate(name, multiplies="k_prev") for name in ("n", "m", "gy", "gk")
    ],
    states="k",
    inputs="x",
    smooth=False,
)
class IntersectionRNN(NamedTuple):
    """Two gates: one mixes x into the output, the other mixes the old state
    into the new one.

    Collins, Sohl-Dickstein and Sussillo, "Capacity and Trainability in
    Recurrent Neural Networks", arXiv 1611.09913; the +RNN. There are as
    many inputs as units, and the call gives x as a side input too,
    `inputs={"x": x}`:

        n = relu(W x + R k + biases)
        m = tanh(same)
        gy, gk = s(same)
        h' = gy*x + (1 - gy)*n
        k' = gk*k + (1 - gk)*m

    The side input of a further layer is x too, where the paper has the
    output of the layer below: stack networks.
    """

    candidate: Activation = Relu()

    @forward("k h")
    def step(self, n, m, gy, gk, x, k_prev):
        gy, gk = sigmoid(gy), sigmoid(gk)
        k = fma(gk, k_prev, (1 - gk) * tanh(m))
        return k, fma(gy, x, (1 - gy) * value(self.candidate, n))
