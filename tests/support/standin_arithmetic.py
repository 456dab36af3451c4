"""Arithmetic for the stand-in's arrays: what rnnkit.training uses of CuPy, and nothing more."""

import operator

import numpy as np
import standin_cupy
from standin_cupy import asarray, ndarray, plain

BINARY = ("add", "sub", "mul", "truediv", "pow", "matmul", "and_", "or_", "eq")
REFLECTED = ("add", "sub", "mul", "truediv")
FUNCTIONS = ("exp", "log", "log1p", "subtract", "divide", "maximum", "where", "matmul", "arange")
REDUCTIONS = ("max", "sum", "any", "all")


SILENT = np.errstate(all="ignore")  # as a GPU is


def _binary(operation):
    return SILENT(lambda self, other: asarray(operation(self.values, plain(other))))


def _reflected(operation):
    return SILENT(lambda self, other: asarray(operation(plain(other), self.values)))


def _in_place(operation):
    def changed(self, other):
        before = self.values
        self.values = operation(self.values, plain(other))
        assert self.values is before  # or it was no change in place
        return self

    return changed


def _unary(operation):
    return lambda self: asarray(operation(self.values))


def _scalar(kind):
    def value(self):
        assert self.size == 1
        return kind(self.values.reshape(())[()])

    return value


def _reduction(name):
    return lambda self, **options: asarray(getattr(self.values, name)(**options))


def _function(name):
    def function(*arguments, out=None):
        result = getattr(np, name)(*map(plain, arguments), **({} if out is None else {"out": out.values}))
        return asarray(result) if out is None else out

    return function


def add_arithmetic(patch):
    """Give the stand-in what it lacks, until `patch`, a MonkeyPatch, is undone."""

    def define(target, name, value):
        patch.setattr(target, name, value, raising=False)

    for name in BINARY:
        define(ndarray, f"__{name.strip('_')}__", _binary(getattr(operator, name)))
    for name in REFLECTED:
        define(ndarray, f"__r{name}__", _reflected(getattr(operator, name)))
        define(ndarray, f"__i{name}__", _in_place(getattr(operator, f"i{name}")))
    for name, operation in {"neg": operator.neg, "abs": abs, "invert": operator.invert}.items():
        define(ndarray, f"__{name}__", _unary(operation))
    for kind in (float, int, bool):
        define(ndarray, f"__{kind.__name__}__", _scalar(kind))
    for name in REDUCTIONS:
        define(ndarray, name, _reduction(name))
    define(ndarray, "T", property(lambda self: self._like(self.values.T)))
    for name in FUNCTIONS:
        define(standin_cupy, name, _function(name))
