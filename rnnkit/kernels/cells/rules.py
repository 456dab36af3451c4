"""What a declaration must be: mistakes are found before anything is compiled, and named by cell, stage and line."""

import keyword
import math
import os
from itertools import product
from numbers import Real
from types import FunctionType

import numpy as np

from .activations import Activation, Sigmoid
from .functions import mean
from .uses import helpers_of, uses

_PROBES = 0.4, -1.3, 2.6  # numbers that every equation is tried on
_OF_NUMBERS = ArithmeticError, ValueError  # what an equation that is right raises with some numbers
_RESERVED = "h", "self"
_BLOCKS = "weight_ih", "weight_hh", "weight_hr", "bias_ih", "bias_hh"  # beside which vectors stand
_MOST = 3.4028234663852886e38  # the largest number of float32


class CellError(TypeError):
    """A cell's declaration or one of its equations is not as it must be."""


def refusal(declaration, where, expected, got, cure=""):
    """The error that something of a cell must be as expected."""
    text = f"cell {declaration.name}: {where} must {expected}, got {got}"
    return CellError(f"{text}; {cure}" if cure else text)


def place(function, line=None):
    """A stage by its name, file and line."""
    code = function.__code__
    return f"stage {function.__name__} ({os.path.basename(code.co_filename)}:{line or code.co_firstlineno})"


def check(kind, with_gradient):
    """Raise CellError at the first mistake in the declaration and the stages, with those of a gradient or without."""
    declaration = kind.declaration
    if not (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        expected = "be a NamedTuple, whose fields are its parameters"
        raise refusal(declaration, "its class", expected, kind.__mro__[1].__name__)
    _check_parameters(kind)
    _check_kinds(declaration)
    _check_multiplied(declaration)
    _check_names(declaration)
    _check_vectors(declaration)
    _check_gates(declaration)
    _check_noises(kind)
    for stage in declaration.stages:
        _check_signature(declaration, stage)
    _check_forward(declaration)
    if with_gradient:
        _check_no_mean(declaration)
        check_gradient(declaration)
    else:
        _check_handed_on(declaration)
    for stage in declaration.stages:
        _probe(kind, stage)


def parameter_types(kind):
    """Name -> bool, int, float or Activation, of each of a cell's parameters; other annotations stay as they are."""
    known = {"bool": bool, "int": int, "float": float, "floating": float, "Activation": Activation}
    annotations = {}
    for base in reversed(kind.__mro__):
        annotations |= getattr(base, "__annotations__", {})
    found = {}
    for name in kind._fields:
        annotation = annotations.get(name)
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        found[name] = known.get(text.rsplit(".", 1)[-1], annotation)
    return found


def _check_parameters(kind):
    for name, annotation in parameter_types(kind).items():
        if annotation not in (bool, int, float, Activation):
            expected = "be annotated bool, int, float or Activation"
            raise refusal(kind.declaration, f"its parameter {name}", expected, repr(annotation))


def _check_kinds(declaration):
    """A name is that of one gate, state or weight, say."""
    vectors = [one for one in declaration.vectors if one not in declaration.scalars]
    kinds = {
        "a gate": [gate.name for gate in declaration.gates], "a state": declaration.states,
        "a product of R": [gate.apart for gate in declaration.gates if gate.apart is not None],
        "a vector": [one.name for one in vectors], "a scalar": [one.name for one in declaration.scalars],
        "a side input": [one.name for one in declaration.inputs],
    }  # fmt: skip
    for name in (name for names in kinds.values() for name in names):
        own = [kind for kind, names in kinds.items() if name in names]
        if len(own) > 1:
            got = f"{name!r} for {' and '.join(own)}"
            raise refusal(declaration, "a name", "stand for one thing", got, "rename one of them")


def _check_multiplied(declaration):
    """R multiplies h, a state, or what a stage writes under a name that nothing else has."""
    taken = {gate.name: "gate" for gate in declaration.gates}
    taken |= {gate.apart: "product of R" for gate in declaration.gates}
    taken |= {vector.name: "vector" for vector in declaration.vectors}
    taken |= {one.name: "side input" for one in declaration.inputs}
    taken |= {noise.name: "noise" for noise in declaration.noises}
    for name, source in ((gate.name, gate.multiplies) for gate in declaration.gates):
        if source in (None, "h"):
            continue
        expected, state = "multiply h, a state before or after the step, or what a stage writes", source[:-5]
        if source in taken:
            cure = f"{source} is a {taken[source]}: let a stage write its value under another name"
            raise refusal(declaration, f"gate {name}", expected, repr(source), cure)
        if source.endswith("_prev") and state not in declaration.states:
            cure = "write h" if state == "h" else f'declare states="{" ".join([*declaration.states, state])}"'
            raise refusal(declaration, f"gate {name}", expected, repr(source), cure)


def _check_names(declaration):
    if not declaration.gates:
        raise refusal(declaration, "gates", "be at least one", "none")
    given = [gate.name for gate in declaration.gates]
    given += [gate.apart for gate in declaration.gates if gate.apart is not None]
    states = {*declaration.states, *(f"{state}_prev" for state in declaration.states)}
    given += [source for source in declaration.sources if source != "h" and source not in states]
    given += [*declaration.states, *(one.name for one in declaration.given()), *declaration.extra_slots]
    for name in given:
        if not name.isidentifier() or keyword.iskeyword(name) or name in _RESERVED:
            raise refusal(declaration, "a name", "be an identifier other than h and self", repr(name))
        if name in _BLOCKS:
            expected = f"be another one than those of every network's weights, {', '.join(_BLOCKS)}"
            raise refusal(declaration, "a name", expected, repr(name))
        if given.count(name) > 1:
            multiplied = name in [gate.multiplies for gate in declaration.gates]
            cure = "what R multiplies is a slot: declare it by multiplies alone" if multiplied else ""
            raise refusal(declaration, "a name", "stand for one thing", f"{name!r} twice", cure)
        if name.endswith("_prev") or (name.startswith("d") and name[1:] in (*given, *_RESERVED)):
            expected = "not be one that a stage knows a state before the step or a gradient by"
            raise refusal(declaration, "a name", expected, repr(name))


def _check_vectors(declaration):
    for vector in declaration.vectors:
        name, low, high = vector
        if low is None is high:
            continue
        numbers = all(isinstance(one, Real) and not isinstance(one, bool) for one in (low, high))
        if not numbers or not -_MOST <= low <= high <= _MOST:
            expected = "be drawn from low to high, finite numbers of float32, or None both"
            what = f"{type(vector).__name__.lower()} {name}"
            raise refusal(declaration, what, expected, f"low={low!r}, high={high!r}")


def _check_gates(declaration):
    if not declaration.input_gates:
        raise refusal(declaration, "gates", "be at least one with rows of W", "input=False for all")
    for name, multiplies, apart, has_input, heads in declaration.gates:
        if multiplies is not None and heads != declaration.heads:
            expected = f"have {declaration.heads} heads as the others"
            raise refusal(declaration, f"gate {name}", expected, heads)
        if multiplies is None and heads > 1:
            expected, got = "have rows of R, whose heads they are", f"multiplies=None, heads={heads}"
            raise refusal(declaration, f"gate {name}", expected, got)
        if multiplies is None and (apart is not None or not has_input):
            expected = "have rows of W or of R, and a product of R where that is kept apart"
            got = f"multiplies=None, apart={apart!r}, input={has_input!r}"
            raise refusal(declaration, f"gate {name}", expected, got)
        if apart is not None and not has_input:
            expected, got = "have rows of W where R's product is kept apart", f"apart={apart!r}, input=False"
            raise refusal(declaration, f"gate {name}", expected, got, "the gate itself is R's product then")


def _check_noises(kind):
    declaration, types = kind.declaration, parameter_types(kind)
    for noise in declaration.noises:
        if types.get(noise.rate) is not float:
            floats = ", ".join(name for name, one in types.items() if one is float) or "none yet"
            expected = f"have the name of a parameter of the cell that is a float ({floats}) as its rate"
            raise refusal(declaration, f"noise {noise.name}", expected, repr(noise.rate))
        if not any(noise.name in stage.reads for stage in declaration.stages if not stage.is_gradient):
            raise refusal(declaration, f"noise {noise.name}", "be read by a forward stage", "none that does")


def _check_signature(declaration, stage):
    function = stage.function
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    plain = code.co_flags & 0x2C == 0 and not code.co_kwonlyargcount and function.__defaults__ is None
    if not plain or names[:1] != ("self",) or len(names) < 2:
        expected = "take self and the names that it reads, one or more, without defaults"
        raise refusal(declaration, place(function), expected, f"({', '.join(names)})")
    for names, verb in ((stage.writes, "write"), (stage.reads, "read")):
        twice = [name for name in names if names.count(name) > 1]
        if twice or not names:
            expected = f"{verb} each name once, and one or more"
            raise refusal(declaration, place(function), expected, twice and repr(twice[0]))


def _check_forward(declaration):
    """Every name is written before it is read, and all that a step leaves is written."""
    before = {f"{state}_prev" for state in declaration.states} | {"h_prev"}
    before |= {one.name for one in declaration.given()}
    writable, written = {*declaration.slots, *declaration.states, "h"}, []
    of_r = {name: number for number, phase in enumerate(declaration.phases) for name in _written_by(declaration, phase)}
    known = before | {name for name in declaration.names_of(declaration.products[0]) if name not in of_r}
    source_of = {name: product.source for product in declaration.products[1:] for name in declaration.names_of(product)}
    for number, phase in enumerate(declaration.phases):
        awaited = [name for stage in phase.forward for name in stage.reads if of_r.get(name, 0) > number]
        awaited += [name for name in _written_by(declaration, phase) if source_of[name] not in (*before, *written)]
        if awaited:
            raise _too_early(declaration, source_of[awaited[0]], awaited[0])
        if not phase.forward and number > 0:
            raise refusal(declaration, "a forward stage", f"read {', '.join(_written_by(declaration, phase))}", "none")
        known |= set(_written_by(declaration, phase))
        for stage in phase.forward:
            _check_stage(declaration, stage, known, writable, "gate, slot, state or h")
            for name in stage.writes:
                if of_r.get(name, 0) > number:
                    expected = f"read {name}, to which R is added, where it writes it"
                    raise refusal(declaration, place(stage.function), expected, "none")
                if name in declaration.sources and name in written:
                    expected = f"leave {name}, which R multiplies, as a stage before has written it"
                    raise refusal(declaration, place(stage.function), expected, "another one")
            written += stage.writes
            known |= set(written)
    missing = [name for name in (*declaration.extra_slots, *declaration.states, "h") if name not in known]
    if missing:
        raise refusal(declaration, "a forward stage", f"write {missing[0]}", "none that does")


def _check_no_mean(declaration):
    """What the threads have to wait for within a step is found where the gradient is derived."""
    for stage in declaration.stages:
        waiting, seen = [stage.function], set()
        while waiting:
            function = waiting.pop()
            if function in seen:
                continue
            seen.add(function)
            if mean in uses(function).values():
                expected = "take no mean where gradients are written by hand"
                cure = "leave out the stages under @gradient"
                raise refusal(declaration, place(stage.function), expected, "mean", cure)
            waiting.extend(helpers_of(function))


def _too_early(declaration, source, name):
    """The error that a stage reads the product `name` of R with `source`, which no stage before it writes."""
    stages = [stage for stage in declaration.stages if not stage.is_gradient]
    for stage in stages:
        if name in stage.reads and source in stage.writes:
            expected = f"write {source}, which R multiplies, in a stage before the one that reads {name}"
            cure = f"end it with {source}, and begin a second stage, which reads {name}"
            return refusal(declaration, place(stage.function), expected, "one stage for both", cure)
    late = [place(stage.function) for stage in stages if source in stage.writes]
    got, cure = (f"{late[0]} behind it", "put it in front") if late else ("none", "")
    expected = f"write {source}, which R multiplies, before one reads {name}"
    return refusal(declaration, "a forward stage", expected, got, cure)


def _written_by(declaration, phase):
    return [name for product in phase.products for name in declaration.names_of(product)]


def _check_handed_on(declaration):
    read = {name for stage in declaration.stages for name in stage.reads}
    declared = [name for gate in declaration.gates for name in (gate.name, gate.apart) if name is not None]
    for name in (*declared, *(one.name for one in declaration.given())):
        if name not in read:
            raise refusal(declaration, name, "be read by a stage", "none that does", "it would do nothing")
    for number, stage in enumerate(declaration.stages):
        for name in filter(set(declaration.extra_slots).__contains__, stage.writes):
            if not any(name in later.reads for later in declaration.stages[number + 1 :]):
                expected = "write gates, states, h, or what a later stage reads"
                raise refusal(declaration, place(stage.function), expected, repr(name))


def check_gradient(declaration):
    """Every gradient is written before it is read, and that of all that a step began from is written."""
    values = {*declaration.slots, *declaration.states, *declaration.means, "h_prev"}
    values |= {f"{state}_prev" for state in declaration.states}
    values |= {one.name for one in declaration.given()}
    vectors = [f"d{one.name}" for one in (*declaration.vectors, *declaration.inputs)]
    states = [f"d{state}" for state in declaration.states]
    products = [gate.name for gate in declaration.gates]
    products += [gate.apart for gate in declaration.gates if gate.apart is not None]
    writable = {f"d{name}" for name in (*declaration.slots, *declaration.states)} | set(vectors) | {"dh", "dh_prev"}
    writable |= {f"{state}_prev" for state in states} | set(declaration.gradient_means)
    known, late, written = values | set(states) | {"dh"}, set(), set()
    summed = {f"d{one.name}" for one in declaration.vectors}
    for phase in reversed(declaration.phases):
        for stage in phase.gradient:
            _check_stage(declaration, stage, known, writable, "gradient of a gate, slot, state, vector or h_prev")
            written |= set(stage.writes)
            known |= set(stage.writes) - summed
            known -= {state for state in states if f"{state}_prev" in known}  # one number: the state before has it now
        if phase is not declaration.phases[0]:  # the way back through its products reads the gradients of its gates
            late |= {f"d{name}" for name in _written_by(declaration, phase)} - known
            known |= {f"d{product.source}" for product in phase.products}
    missing = [f"d{name}" for name in products if f"d{name}" not in known - late]
    missing += [f"{state}_prev" for state in states if f"{state}_prev" not in known]
    missing += [name for name in vectors if name not in written]
    if "dh_prev" not in known and any("h_prev" in stage.reads for stage in declaration.stages if not stage.is_gradient):
        missing.append("dh_prev")
    if missing:
        raise refusal(declaration, "a gradient stage", f"write {missing[0]}", "none that does")


def _check_stage(declaration, stage, known, writable, kinds):
    for name in stage.reads:
        if name not in known:
            expected = "read names that are there before it: " + ", ".join(sorted(known))
            raise refusal(declaration, place(stage.function), expected, repr(name))
    for name in stage.writes:
        if name not in writable:
            cure = _slot_for(declaration, stage, name, known)
            raise refusal(declaration, place(stage.function), f"write a {kinds}", repr(name), cure)


def _slot_for(declaration, stage, name, known):
    """The cure for a name that a stage writes and that is declared nowhere, where it may be a slot's."""
    own = name[1:] if stage.is_gradient else name
    taken = name.removeprefix("d") in (*known, "h") or name.endswith("_prev") or not own.isidentifier()
    if taken or (stage.is_gradient and name[0] != "d"):
        return ""
    return f'declare slots="{" ".join([*declaration.extra_slots, own])}"'


def with_defaults(kind, **given):
    """A cell with these parameters, all others numbers that their types have."""
    own = {bool: False, int: 1, float: 0.5, Activation: Sigmoid()}
    defaults = {name: own[one] for name, one in parameter_types(kind).items()} | kind._field_defaults
    return kind(**defaults | given)


def _probe(kind, stage):
    """Run a stage on numbers: what Python refuses, or does not return as it must, is a mistake."""
    flags = [name for name, one in parameter_types(kind).items() if one is bool]
    for values in product((False, True), repeat=min(len(flags), 4)):
        cell = with_defaults(kind, **dict(zip(flags, values, strict=False)))
        for shift in range(len(_PROBES)):
            numbers = [_PROBES[(shift + i) % len(_PROBES)] for i in range(len(stage.reads))]
            try:
                run(kind.declaration, stage, cell, numbers)
            except CellError as error:
                if not isinstance(error.__cause__, _OF_NUMBERS):
                    raise


def _quietly(function, cell, numbers):
    """What a loop that was derived returns: as compiled, it computes what a branch that is not taken needs too, a NaN
    say, and Python would refuse."""

    def quiet(own):
        def call(*arguments):
            try:
                return own(*arguments)
            except _OF_NUMBERS:
                return math.nan

        return call

    space = {name: quiet(value) if callable(value) else value for name, value in function.__globals__.items()}
    with np.errstate(all="ignore"):
        found = FunctionType(function.__code__, space)(cell, *map(np.float64, numbers))
    return tuple(map(float, found)) if isinstance(found, tuple) else float(found)


def run(declaration, stage, cell, numbers):
    """What a stage returns for these numbers, by name; raise CellError where Python refuses, or it returns others."""
    try:
        found = _quietly(stage.function, cell, numbers) if stage.phase is not None else stage.function(cell, *numbers)
    except Exception as error:
        traceback = error.__traceback__
        while traceback.tb_next is not None and traceback.tb_next.tb_frame.f_code is stage.function.__code__:
            traceback = traceback.tb_next
        line = traceback.tb_lineno if traceback.tb_frame.f_code is stage.function.__code__ else None
        given = "numbers"
        if isinstance(error, _OF_NUMBERS):
            given = ", ".join(f"{name}={number!r}" for name, number in zip(stage.reads, numbers, strict=True))
        got = f"{type(error).__name__}: {error}"
        raise refusal(declaration, place(stage.function, line), f"compute with {given}", got) from error
    expected = f"return {len(stage.writes)} numbers, {', '.join(stage.writes)}"
    results = found if isinstance(found, tuple) else (found,)
    if len(results) != len(stage.writes):
        raise refusal(declaration, place(stage.function), expected, len(results))
    for name, result in zip(stage.writes, results, strict=True):
        if isinstance(result, bool) or not isinstance(result, (int, float)):
            raise refusal(declaration, place(stage.function), expected, f"{type(result).__name__} for {name}")
    return dict(zip(stage.writes, results, strict=True))
