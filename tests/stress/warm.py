"""Calls that need every kernel once."""

import rnnkit
from rnnkit.commands.warmup import compile_kernels, networks
from rnnkit.descriptor.descriptor import HOST_DTYPES, MODES


def train_infer_and_step(problem):
    result = problem.forward()
    problem.backward(result.workspace)
    plan = rnnkit.prepare(problem.desc, problem.w)
    plan.infer(problem.x)
    if not problem.bidirectional:
        plan.step(problem.x[0], problem.hx, problem.cx)


def compile_every_kernel(trial):
    for desc in networks(MODES, HOST_DTYPES):
        compile_kernels(desc)
