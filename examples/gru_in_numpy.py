"""A GRU layer in plain NumPy, forward and backward: read this first.

It computes what `rnnkit.forward` and `rnnkit.backward` compute for one
layer, from the same arrays. Shapes: T steps, N sequences, I inputs, H
hidden units. W and R are the weights of x and h, bW and bR their biases;
`d...` is the gradient of the loss with respect to what follows. A step is,
as in cuDNN and PyTorch (arXiv 1406.1078v1),

    r = sigmoid(Wr x + bWr + Rr h + bRr)        how much of q counts
    z = sigmoid(Wz x + bWz + Rz h + bRz)        how much of h stays
    q = Rn h + bRn
    n = tanh(Wn x + bWn + r*q)                  what comes in
    h' = z*h + (1 - z)*n

The guide docs/contributing/from-equations-to-machine-code.md leads from
here to the compiled kernels.
"""

import sys

import numpy as np

import rnnkit

R_, Z_, N_, Q_ = range(4)  # slots of a row of the gate buffer
# slots that W x and R h are added to, in the order of the rows of W and R
OF_W, OF_R = [R_, Z_, N_], [R_, Z_, Q_]


def sigmoid(a):
    return 0.5 * (1 + np.tanh(0.5 * a))  # without overflow


def blocks_of(desc, w):
    """Return views of w: W (3H, I), R (3H, H), bW (3H,) and bR (3H,)."""
    views = rnnkit.weight_views(desc, w)
    names = "weight_ih", "weight_hh", "bias_ih", "bias_hh"
    return [views[f"{name}_l0"] for name in names]


def forward(desc, w, x, hx):
    """Run x (T, N, I) from hx (1, N, H).

    Return y (T, N, H), hy (1, N, H) and what backward needs.
    """
    W, R, bW, bR = blocks_of(desc, w)
    T, N, H = len(x), x.shape[1], desc.hidden_size
    # hidden[t] is h before step t
    gates, hidden = np.zeros((T, N, 4, H)), np.zeros((T + 1, N, H))
    # of all steps at once: needs no h
    gates[:, :, OF_W] = (x @ W.T + bW).reshape(T, N, 3, H)
    hidden[0] = hx[0]
    for t in range(T):
        h, (r, z, n, q) = hidden[t], gates[t].swapaxes(0, 1)  # views (N, H)
        gates[t][:, OF_R] += (h @ R.T + bR).reshape(N, 3, H)
        r[:], z[:] = sigmoid(r), sigmoid(z)
        n[:] = np.tanh(n + r * q)
        hidden[t + 1] = z * h + (1 - z) * n
    return hidden[1:], hidden[-1:], (x, gates, hidden)


def backward(desc, w, workspace, dy, dhy):
    """Return dx, dhx and dw of a loss with the gradients dy and dhy."""
    W, R, bW, bR = blocks_of(desc, w)
    x, gates, hidden = workspace
    T, N, H = dy.shape
    dgates, dh = np.zeros((T, N, 4, H)), dhy[0]
    for t in reversed(range(T)):
        h, (r, z, n, q) = hidden[t], gates[t].swapaxes(0, 1)
        # of h after step t: from later steps, and from the output
        dh = dh + dy[t]
        dn = dh * (1 - z) * (1 - n * n)
        dr, dz = dn * q * r * (1 - r), dh * (h - n) * z * (1 - z)
        # gradients before the activations
        dgates[t] = np.stack([dr, dz, dn, dn * r], axis=1)  # with that of q
        dh = dh * z + dgates[t][:, OF_R].reshape(N, 3 * H) @ R
    of_w = dgates[:, :, OF_W].reshape(T * N, 3 * H)
    of_r = dgates[:, :, OF_R].reshape(T * N, 3 * H)
    dx = (of_w @ W).reshape(x.shape)
    dw = np.zeros_like(w)
    dW, dR, dbW, dbR = blocks_of(desc, dw)
    dW[:] = of_w.T @ x.reshape(T * N, -1)
    dR[:] = of_r.T @ hidden[:-1].reshape(T * N, H)
    dbW[:], dbR[:] = of_w.sum(axis=0), of_r.sum(axis=0)
    return dx, dh[None], dw


def central_differences(loss, array, step=6e-6):
    """Return the derivative of the loss with respect to each element.

    6e-6 is near the cube root of float64's eps.
    """
    found = np.zeros_like(array)
    for place in np.ndindex(array.shape):
        value = array[place]
        array[place] = value + step
        above = loss()
        array[place] = value - step
        found[place] = (above - loss()) / (2 * step)
        array[place] = value
    return found


def deviation(found, expected):
    """Return the largest difference, relative to the largest number.

    It is NaN if there is one.
    """
    return np.abs(found - expected).max() / np.abs(expected).max()


def main():
    T, N, H, rng = 7, 3, 5, np.random.default_rng(0)
    desc = rnnkit.RNNDescriptor(
        "gru", input_size=4, hidden_size=H, dtype="float64"
    )
    w = rnnkit.init_weights(desc, seed=0)
    x, hx = rng.standard_normal((T, N, 4)), rng.standard_normal((1, N, H))
    dy, dhy = rng.standard_normal((T, N, H)), rng.standard_normal((1, N, H))

    def loss():  # has the gradients dy and dhy
        y, hy, _ = forward(desc, w, x, hx)
        return (y * dy).sum() + (hy * dhy).sum()

    y, hy, workspace = forward(desc, w, x, hx)
    dx, dhx, dw = backward(desc, w, workspace, dy, dhy)
    found = {"y": y, "hy": hy, "dx": dx, "dhx": dhx, "dw": dw}
    compiled = rnnkit.forward(desc, w, x, hx)
    gradients = rnnkit.backward(desc, w, compiled.workspace, dy, dhy)
    engine = {
        "y": compiled.y,
        "hy": compiled.hy,
        "dx": gradients.dx,
        "dhx": gradients.dhx,
        "dw": gradients.dw,
    }
    numeric = {"dx": x, "dhx": hx, "dw": w}
    print(
        "largest relative deviation from rnnkit, "
        "and from central differences"
    )
    wrong = []
    for name, array in found.items():
        from_rnnkit, from_numeric = deviation(array, engine[name]), 0
        line = f"{name:4} {from_rnnkit:9.1e}"
        if name in numeric:
            expected = central_differences(loss, numeric[name])
            from_numeric = deviation(array, expected)
            line += f" {from_numeric:9.1e}"
        print(line)
        if not (from_rnnkit < 1e-13 and from_numeric < 1e-7):  # also NaN
            wrong.append(name)
    if wrong:
        sys.exit(f"These disagree: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
