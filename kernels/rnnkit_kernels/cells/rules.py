"""Validation of declarations, before anything is compiled; errors name cell, stage, file and line."""

import keyword
import os
from numbers import Real

from .activations import Activation
from .functions import mean
from .source import type_name
from .uses import helpers_of, uses

_RESERVED = "h", "self"
_BLOCKS = "weight_ih", "weight_hh", "weight_hr", "bias_ih", "bias_hh"  # names of blocks of weights
_FLOAT32_MAX = 3.4028234663852886e38  # the largest number of float32


class CellError(TypeError):
    """A cell's declaration or one of its equations is invalid."""


def cell_error(declaration, where, expected, got, cure=""):
    """Return the error that something in a cell must be as expected."""
    return cell_problem(declaration, where, f"must {expected}, got {got}", cure)


def cell_problem(declaration, where, problem, cure=""):
    """Return the error that something in a cell, the subject of the sentence `problem`, is wrong."""
    text = f"cell {declaration.name}: {where} {problem}"
    return CellError(f"{text}; {cure}" if cure else text)


def describe_stage(function, line=None):
    """Return name, file and line of a stage."""
    code = function.__code__
    return f"stage {function.__name__} ({os.path.basename(code.co_filename)}:{line or code.co_firstlineno})"


def check(kind, with_gradient):
    """Raise CellError for the first mistake in the declaration or the names of stages, hand-written gradient or not."""
    declaration = kind.declaration
    if not (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        expected = "be a NamedTuple, whose fields are the parameters"
        raise cell_error(declaration, "its class", expected, kind.__mro__[1].__name__)
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


def parameter_types(kind):
    """Return name -> bool, int, float or Activation for a cell's parameters; other annotations stay as they are."""
    known = {"bool": bool, "int": int, "float": float, "floating": float, "Activation": Activation}
    annotations = {}
    for base in reversed(kind.__mro__):
        annotations |= getattr(base, "__annotations__", {})
    found = {}
    for name in kind._fields:
        annotation = annotations.get(name)
        found[name] = known.get(type_name(annotation), annotation)
    return found


def _check_parameters(kind):
    for name, annotation in parameter_types(kind).items():
        if name == "declaration" or hasattr(kind._field_defaults.get(name), "is_gradient"):  # a stage
            use = "what @cell declares" if name == "declaration" else "a stage"
            raise cell_problem(kind.declaration, f"its parameter {name}", f"has the name of {use}", "rename it")
        if annotation not in (bool, int, float, Activation):
            expected = "be annotated bool, int, float or Activation"
            raise cell_error(kind.declaration, f"its parameter {name}", expected, repr(annotation))


def _check_kinds(declaration):
    """Check that each name has one meaning, for example a gate or a state."""
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
            problem = f"is used for {' and '.join(own)}"
            raise cell_problem(declaration, f"the name {name!r}", problem, "rename one of them")


def _check_multiplied(declaration):
    """Check that R multiplies h, a state, or a name that a stage writes and nothing else has."""
    taken = {gate.name: "gate" for gate in declaration.gates}
    taken |= {gate.apart: "product of R" for gate in declaration.gates}
    taken |= {vector.name: "vector" for vector in declaration.vectors}
    taken |= {one.name: "side input" for one in declaration.inputs}
    taken |= {noise.name: "noise" for noise in declaration.noises}
    for name, source in ((gate.name, gate.multiplies) for gate in declaration.gates):
        if source in (None, "h"):
            continue
        expected, state = "multiply h, a state before or after the step, or a name that a stage writes", source[:-5]
        if source in taken:
            cure = f"{source} is a {taken[source]}: let a stage write its value under another name"
            raise cell_error(declaration, f"gate {name}", expected, repr(source), cure)
        if source.endswith("_prev") and state not in declaration.states:
            states = " ".join([*declaration.states, state])
            cure = 'write multiplies="h"' if state == "h" else f'declare states="{states}"'
            raise cell_error(declaration, f"gate {name}", expected, repr(source), cure)


def _check_names(declaration):
    if not declaration.gates:
        raise cell_error(declaration, "gates", "name at least one", "none")
    given = [gate.name for gate in declaration.gates]
    given += [gate.apart for gate in declaration.gates if gate.apart is not None]
    states = {*declaration.states, *(f"{state}_prev" for state in declaration.states)}
    given += [source for source in declaration.sources if source != "h" and source not in states]
    given += [*declaration.states, *(one.name for one in declaration.given()), *declaration.extra_slots]
    for name in given:
        if not name.isidentifier() or keyword.iskeyword(name) or name in _RESERVED:
            raise cell_error(declaration, "a name", "be an identifier other than h and self", repr(name))
        if name in _BLOCKS:
            problem = f"is reserved for a block of weights, as are {', '.join(one for one in _BLOCKS if one != name)}"
            raise cell_problem(declaration, f"the name {name!r}", problem)
        if given.count(name) > 1:
            multiplied = name in [gate.multiplies for gate in declaration.gates]
            cure = f"multiplies={name!r} already makes a slot for what R multiplies: remove it from slots"
            raise cell_problem(declaration, f"the name {name!r}", "is declared twice", cure if multiplied else "")
        if name.endswith("_prev") or (name.startswith("d") and name[1:] in (*given, *_RESERVED)):
            use = f"{name[:-5]} before the step" if name.endswith("_prev") else f"the gradient of {name[1:]}"
            raise cell_problem(declaration, f"the name {name!r}", f"is reserved for {use}")


def _check_vectors(declaration):
    for vector in declaration.vectors:
        name, low, high = vector
        if low is None is high:
            continue
        numbers = all(isinstance(one, Real) and not isinstance(one, bool) for one in (low, high))
        if not numbers or not -_FLOAT32_MAX <= low <= high <= _FLOAT32_MAX:
            expected = "have finite float32 numbers low <= high, or None for both"
            what = f"{type(vector).__name__.lower()} {name}"
            raise cell_error(declaration, what, expected, f"low={low!r}, high={high!r}")


def _check_gates(declaration):
    for name, multiplies, apart, has_input, heads in declaration.gates:
        if multiplies is not None and heads != declaration.heads:
            expected = f"have {declaration.heads} heads like the other gates"
            raise cell_error(declaration, f"gate {name}", expected, heads)
        if multiplies is None and heads > 1:
            expected, got = "have rows of R if it has heads", f"multiplies=None, heads={heads}"
            raise cell_error(declaration, f"gate {name}", expected, got)
        if multiplies is None and (apart is not None or not has_input):
            expected = "have rows of W or of R" if apart is None else "have rows of R, whose product apart names"
            got = f"multiplies=None, apart={apart!r}, input={has_input!r}"
            raise cell_error(declaration, f"gate {name}", expected, got)
        if apart is not None and not has_input:
            expected, got = "have rows of W if apart names its product of R", f"apart={apart!r}, input=False"
            cure = "remove apart: without W the gate itself is the product"
            raise cell_error(declaration, f"gate {name}", expected, got, cure)


def _check_noises(kind):
    declaration, types = kind.declaration, parameter_types(kind)
    for noise in declaration.noises:
        if types.get(noise.rate) is not float:
            floats = ", ".join(name for name, one in types.items() if one is float) or "none yet"
            expected = f"have as rate the name of a float parameter of the cell ({floats})"
            raise cell_error(declaration, f"noise {noise.name}", expected, repr(noise.rate))
        if not any(noise.name in stage.reads for stage in declaration.stages if not stage.is_gradient):
            raise cell_error(declaration, f"noise {noise.name}", "be read by a forward stage", "none that reads it")


def _check_signature(declaration, stage):
    function = stage.function
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    plain = code.co_flags & 0x2C == 0 and not code.co_kwonlyargcount and function.__defaults__ is None
    if not plain or names[:1] != ("self",) or len(names) < 2:
        expected = "take self and at least one name that it reads, without defaults, * or **"
        raise cell_error(declaration, describe_stage(function), expected, f"({', '.join(names)})")
    for names, verb in ((stage.writes, "write"), (stage.reads, "read")):
        twice = [name for name in names if names.count(name) > 1]
        if twice or not names:
            expected = f"{verb} each name once" if twice else f"{verb} at least one name"
            got = f"{twice[0]!r} twice" if twice else "none"
            raise cell_error(declaration, describe_stage(function), expected, got)


def _check_forward(declaration):
    """Check that every name is written before it is read, and that all results of a step are written."""
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
            expected = f"read {', '.join(_written_by(declaration, phase))}"
            raise cell_error(declaration, "a forward stage", expected, "none that does")
        known |= set(_written_by(declaration, phase))
        for stage in phase.forward:
            _check_stage(declaration, stage, known, writable, "gate, slot, state or h")
            for name in stage.writes:
                if of_r.get(name, 0) > number:
                    problem = f"writes {name} before R's product with {source_of[name]} is added to it"
                    cure = f"let the stage read {name}, too"
                    raise cell_problem(declaration, describe_stage(stage.function), problem, cure)
                if name in declaration.sources and name in written:
                    problem = f"overwrites {name}, which R multiplies as an earlier stage has written it"
                    raise cell_problem(declaration, describe_stage(stage.function), problem, "write another name")
            written += stage.writes
            known |= set(written)
    missing = [name for name in (*declaration.extra_slots, *declaration.states, "h") if name not in known]
    if missing:
        raise cell_error(declaration, "a forward stage", f"write {missing[0]}", "none that does")


def _check_no_mean(declaration):
    """Check that no stage takes a mean: only derived gradients have the barriers that means need."""
    for stage in declaration.stages:
        waiting, seen = [stage.function], set()
        while waiting:
            function = waiting.pop()
            if function in seen:
                continue
            seen.add(function)
            if mean in uses(function).values():
                problem, cure = "takes a mean, but gradients are written by hand", "remove the stages under @gradient"
                raise cell_problem(declaration, describe_stage(stage.function), problem, cure)
            waiting.extend(helpers_of(function))


def _too_early(declaration, source, name):
    """Return the error that a stage reads `name`, R's product with `source`, before a stage writes `source`."""
    stages = [stage for stage in declaration.stages if not stage.is_gradient]
    for stage in stages:
        if name in stage.reads and source in stage.writes:
            problem = f"writes {source}, which R multiplies, and reads {name}, which has that product"
            cure = f"split it: one stage that ends with {source}, and a second stage that reads {name}"
            return cell_problem(declaration, describe_stage(stage.function), problem, cure)
    late = [describe_stage(stage.function) for stage in stages if source in stage.writes]
    got, cure = (f"{late[0]} after it", "move that stage before it") if late else ("none that does", "")
    expected = f"write {source}, which R multiplies, before a stage reads {name}"
    return cell_error(declaration, "a forward stage", expected, got, cure)


def _written_by(declaration, phase):
    return [name for product in phase.products for name in declaration.names_of(product)]


def _check_handed_on(declaration):
    read = {name for stage in declaration.stages for name in stage.reads}
    declared = [name for gate in declaration.gates for name in (gate.name, gate.apart) if name is not None]
    for name in (*declared, *(one.name for one in declaration.given())):
        if name not in read:
            raise cell_error(declaration, name, "be read by a stage", "none that reads it", "read it or remove it")
    for number, stage in enumerate(declaration.stages):
        for name in filter(set(declaration.extra_slots).__contains__, stage.writes):
            if not any(name in later.reads for later in declaration.stages[number + 1 :]):
                expected = "write gates, states, h, or names that a later stage reads"
                raise cell_error(declaration, describe_stage(stage.function), expected, repr(name))


def check_gradient(declaration):
    """Check that every gradient is written before it is read, and those by all inputs of a step are written."""
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
            known -= {state for state in states if f"{state}_prev" in known}  # they share memory
        if phase is not declaration.phases[0]:  # backward through its products reads the gradients of its gates
            late |= {f"d{name}" for name in _written_by(declaration, phase)} - known
            known |= {f"d{product.source}" for product in phase.products}
    missing = [f"d{name}" for name in products if f"d{name}" not in known - late]
    missing += [f"{state}_prev" for state in states if f"{state}_prev" not in known]
    missing += [name for name in vectors if name not in written]
    if "dh_prev" not in known and any("h_prev" in stage.reads for stage in declaration.stages if not stage.is_gradient):
        missing.append("dh_prev")
    if missing:
        raise cell_error(declaration, "a gradient stage", f"write {missing[0]}", "none that does")


def _check_stage(declaration, stage, known, writable, kinds):
    for name in stage.reads:
        if name not in known:
            expected = f"read names that are defined before it ({', '.join(sorted(known))})"
            cure = "of x a stage sees what W makes of it, or a side input: @cell(inputs=...)" if name == "x" else ""
            raise cell_error(declaration, describe_stage(stage.function), expected, repr(name), cure)
    for name in stage.writes:
        if name not in writable:
            cure = _slot_for(declaration, stage, name, known)
            raise cell_error(declaration, describe_stage(stage.function), f"write a {kinds}", repr(name), cure)


def _slot_for(declaration, stage, name, known):
    """Return the hint to declare a slot for an unknown name that a stage writes, or "" if it cannot be a slot."""
    own = name[1:] if stage.is_gradient else name
    taken = name.removeprefix("d") in (*known, "h") or name.endswith("_prev") or not own.isidentifier()
    if taken or (stage.is_gradient and name[0] != "d"):
        return ""
    return f'declare slots="{" ".join([*declaration.extra_slots, own])}"'
