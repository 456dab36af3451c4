"""Calls that need every kernel once."""

from problems import Problem

import rnnkit

CELLS = (dict(mode="rnn_tanh"), dict(mode="lstm"), dict(mode="gru"), dict(mode="gru", reset_after=False))


def train_infer_and_step(problem):
    result = problem.forward()
    problem.backward(result.workspace)
    plan = rnnkit.prepare(problem.desc, problem.w)
    plan.infer(problem.x)
    if not problem.bidirectional:
        plan.step(problem.x[0], problem.hx, problem.cx)


def compile_every_kernel(trial):
    for dtype in ("float32", "float64"):
        for cell in CELLS:
            for layers in (1, 2):
                train_infer_and_step(Problem(**cell, dtype=dtype, num_layers=layers, dropout=0.5))
