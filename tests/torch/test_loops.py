"""`accelerate` names hand-written loops over steps under `left`."""

import re

import pytest
import torch
from messages import says
from torch import nn

import rnnkit.torch
from rnnkit.torch.loops import loop_over_steps


class Cells(nn.Module):
    """nn.LSTMCell, as most programs step it."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[1], 4)
        found = []
        for t in range(x.shape[0]):
            h, c = self.cell(x[t], (h, c))
            found.append(h)
        return torch.stack(found)


class Stacked(nn.Module):
    """Several layers of cells, whose states are in a list."""

    def forward(self, x):
        states = [x.new_zeros(x.shape[1], 4)] * 2
        for t in range(len(x)):
            value = x[t]
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(value, states[layer])
                value = states[layer]
        return value


class Elements(nn.Module):
    def forward(self, x):
        h = x.new_zeros(x.shape[1], 4)
        for x_t in x.unbind(0):
            h = torch.tanh(x_t + h @ self.u)
        return h


class Helper(nn.Module):
    """As SpeechBrain's LiGRU: a method of the module has the loop, the state comes of several lines."""

    def forward(self, x):
        return self._steps(self.w(x), x.new_zeros(x.shape[0], 4))

    def _steps(self, w, ht):
        found = []
        for k in range(w.shape[1]):
            gates = w[:, k] + self.u(ht)
            at, zt = gates.chunk(2, 1)
            zt = torch.sigmoid(zt)
            ht = zt * ht + (1 - zt) * torch.relu(at)
            found.append(ht)
        return torch.stack(found, 1)


class Optional(nn.Module):
    """As the CfC of ncps: the step is read in branches, forward is called by name."""

    def forward(self, input, times=None):
        h = input.new_zeros(input.shape[1 - self.batch_first], 4)
        for t in range(input.shape[self.batch_first]):
            if self.batch_first:
                x = input[:, t]
                ts = 1.0 if times is None else times[:, t].squeeze()
            else:
                x = input[t]
                ts = 1.0
            h = self.rnn_cell.forward(x * ts, h)
        return h


class While(nn.Module):
    def forward(self, x):
        t, h = 0, None
        while t < len(x):
            h = self.cell(x[t], h)
            t += 1
        return h


def left(kind):
    """Why a model with a part of this class is left."""
    model = nn.ModuleDict({"part": kind()})
    model["part"].own = nn.Parameter(torch.ones(1))
    return rnnkit.torch.accelerate(model).left


@pytest.mark.parametrize("kind", [Cells, Stacked, Elements, Helper, Optional, While])
def test_loop_over_steps_is_named_with_the_way(kind):
    where = f"{kind.__name__}.{'_steps' if kind is Helper else 'forward'}"
    assert re.search(says(where, "Python loop", "rnnkit.torch.Recurrent"), left(kind)["part"])


def test_line_of_the_loop_is_right():
    with open(__file__) as file:
        lines = file.read().splitlines()
    number = int(loop_over_steps(Cells()).partition("(line ")[2].partition(")")[0])
    assert lines[number - 1].strip() == "for t in range(x.shape[0]):"


def test_cells_in_a_loop_are_accelerated_and_compute_the_same():
    torch.manual_seed(0)
    model, x = Cells(), torch.randn(5, 2, 3)
    expected = model(x)
    assert rnnkit.torch.accelerate(model).changed == ("cell",)
    assert torch.allclose(model(x), expected, atol=1e-6)


class Layers(nn.Module):
    def forward(self, x):
        for layer in self.layers:
            x = self.act(layer(x))
        return x


class Numbered(nn.Module):
    def forward(self, x, skips):
        for i in range(len(self.layers)):
            x = self.norm(self.layers[i](x, skips[i]))
        return x


class Residual(nn.Module):
    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = self.drop(x + layer(x)) + self.bias[i]
        return x


class Repeated(nn.Module):
    def forward(self, x):
        for _ in range(3):
            x = self.block(x)
        return x


class Pyramid(nn.Module):
    def forward(self, xs):
        found = 0
        for i in range(len(xs)):
            found = found + self.convolutions[i](xs[i])
        return found


class Joined(nn.Module):
    def forward(self, x):
        found = x[:0]
        for i in range(3):
            found = torch.cat([found, self.up(x[i])])
        return found


class Losses(nn.Module):
    def forward(self, xs, ys):
        loss = 0
        for x, y in zip(xs, ys, strict=True):
            loss = loss + self.criterion(self.network(x), y)
        return loss


class Blocks(nn.Module):
    def forward(self, x, blocks, skips):
        for block, skip in zip(blocks, skips, strict=True):
            x = block(x, skip)
        return x


@pytest.mark.parametrize("kind", [Layers, Numbered, Residual, Repeated, Pyramid, Joined, Losses, Blocks])
def test_loops_over_layers_and_others_are_not_named(kind):
    assert left(kind) == {}


def test_classes_without_source_or_parameters_are_not_named():
    made = {"nn": nn}
    exec("class Made(nn.Module):\n    def forward(self, x):\n        for t in x:\n            h = self.a(t, h)", made)
    assert loop_over_steps(made["Made"]()) is None and loop_over_steps(nn.Linear(3, 4)) is None
    assert loop_over_steps(rnnkit.torch.GRU(3, 4)) is None
    model = Cells()
    del model.cell
    assert rnnkit.torch.accelerate(model) == ((), {})
