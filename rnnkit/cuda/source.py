"""Writes the stages of a cell as CUDA C: one kernel for each phase of a step, and one for its gradient.

A thread computes one unit of one sequence at one step. All kernels take the same arguments, `PARAMETERS`, each of eight
bytes. The functions are those of the CPU's kernels, so a stage has the same bits here; products and sums over steps,
which are cuBLAS's, have others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from types import FunctionType
from typing import Any

import numpy as np

from rnnkit.equations.c_functions import functions
from rnnkit.equations.c_text import FUNCTIONS, CText, literal, name_in_c
from rnnkit.errors import BackendError
from rnnkit_kernels.cells.activations import softplus
from rnnkit_kernels.cells.declaration import MEAN_BLOCK
from rnnkit_kernels.cells.derivatives import given_for
from rnnkit_kernels.cells.reading import read_function
from rnnkit_kernels.stages import mean_places, operand_places

FIRST_OF_GRADIENT = "dgates"
PARAMETERS = {  # name -> type; rows of steps are `first` + row of arrays (steps * batch, ...), strides are in elements
    "first": "long long", "rows": "long long", "batch": "long long", "units": "long long", "outputs": "long long",
    "flags": "const unsigned char *", "gates": "real *", "gates_stride": "long long",
    "hidden_prev": "const real *", "hidden_prev_stride": "long long", "hidden": "real *", "hidden_stride": "long long",
    "states_prev": "const real *", "states": "real *", "vectors": "const real *", "inputs": "const real *",
    "inputs_stride": "long long", "noises": "const real *", "step_noises": "const real *", "terms": "real *",
    "dgates": "real *", "dgates_stride": "long long", "dunits": "real *", "dhidden": "real *", "dstates": "real *",
    "dvectors": "real *", "dinputs": "real *", "dinputs_stride": "long long", "dy": "const real *",
    "dy_stride": "long long",
}  # fmt: skip
RUNS, COUNTS = 1, 2
"""Bits of a flag: whether a step runs, and whether its y is within the sequence."""

_HEAD = """\
#ifdef __CUDACC_RTC__
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#endif
typedef {real} real;
#define RK_MATH(name) name
#define RK_INFINITY ((real)(1e300 * 1e300))
#define RK_NAN (RK_INFINITY - RK_INFINITY)
#define RK_FMA(a, b, c) RK_MATH(fma{f})(a, b, c)
#define RK_INDEX (blockIdx.x * (long long)blockDim.x + threadIdx.x)
"""
_MEANS = """
static inline real rk_mean_of(const real *sums, long long units) {{
  real total = 0;
  for (long long i = 0; i < (units + {block} - 1) / {block}; i++) total = total + sums[i];
  return total / (real)units;
}}
static inline void rk_add_block(const real *terms, real *sums, long long number, long long units) {{
  real block[{block}];
  for (int i = 0; i < {block}; i++) block[i] = number * {block} + i < units ? terms[number * {block} + i] : 0;
  sums[number] = rk_sum(block);
}}
"""
_MATH = {  # of C and CUDA alike: name in Python -> name in C
    **{name: name for name in "acos acosh asin asinh atan atan2 atanh cbrt copysign cos cosh erf erfc exp2 expm1 fabs "
       "fmod hypot lgamma log log10 log1p log2 pow sin sinh tan".split()},
    "gamma": "tgamma",
}  # fmt: skip


class CudaText(CText):
    """Writer of the stages of one cell as CUDA C."""

    refusal, error = "call functions that CUDA C has", BackendError

    def __init__(self, cell: Any, real: Any, function: str) -> None:
        super().__init__(cell, real)
        self.function = function
        # The gradients of a state before and after the step have the same memory.
        self._shared = {f"d{name}_prev": f"d{name}" for name in cell.declaration.states}
        self.suffix = "f" if real is np.float32 else ""
        found = {getattr(math, name): name_of for name, name_of in _MATH.items() if hasattr(math, name)}
        self.functions_of = {one: f"{name}{self.suffix}" for one, name in found.items()} | FUNCTIONS
        self.name_of = lambda one: self.variable(one.arguments[0].name)

    def variable(self, name: str) -> str:
        """Return the C variable of a cell's value; no expression within a stage has such a name."""
        return f"rk_v_{name_in_c(self._shared.get(name, name))}"

    def written_out(self, one: Any) -> Any:
        function = one.op
        own = isinstance(function, FunctionType) and function is not softplus and function not in self.functions_of
        if own and given_for(function) is not None:  # its derivative is declared, its value is what it computes
            (found,) = read_function(type(self.own), function, list(one.arguments))
            return found
        return super().written_out(one)

    def power(self, base: Any, exponent: Any) -> list[Any]:
        try:
            return super().power(base, exponent)
        except self.error:  # of another exponent
            return self.called_with(f"pow{self.suffix}", (base, exponent))


class Source:
    """The kernels of one cell in one dtype; `draws` if its noises are drawn, `keeps` if backward follows."""

    def __init__(self, cell: Any, dtype: np.dtype, projected: bool, draws: bool, keeps: bool, function: str) -> None:
        self.cell, self.declaration, self.real = cell, cell.declaration, dtype.type
        self.projected, self.draws, self.keeps = projected, draws, keeps
        self.text = CudaText(cell, self.real, function)
        self.places, self.means = operand_places(self.declaration), mean_places(self.declaration)

    def forward(self) -> str:
        """Write the kernels forward_0, forward_1, ... of the phases, and means_forward_0, ... of their means."""
        phases, found = self.declaration.phases, []
        for number, phase in enumerate(phases):
            later = self._needed_after(number)
            body = self._body(phase.forward, lambda name, later=later: name in later)
            found.append(self._kernel(f"forward_{number}", [*self._carry(phase.forward), *body]))
            found += self._sums(f"means_forward_{number}", phase.forward)
        return self._whole(found)

    def gradient(self) -> str:
        """Write the kernels gradient_0, ... of the phases, output_gradient, and means_gradient_0, ..."""
        declaration, found = self.declaration, [] if not self.projected else [self._output_gradient()]
        phases, last = declaration.phases, len(declaration.phases) - 1
        slots = {declaration.slots[slot] for product in declaration.products for slot in product.slots}
        needed = {f"d{name}" for name in (*slots, *declaration.sources)}
        needed |= {name for name in self.places if self.places[name][:2] != (True, "gates")}  # each has its own reader
        for number in reversed(range(len(phases))):
            stages = phases[number].gradient
            later = needed | {name for phase in phases[:number] for one in phase.gradient for name in one.reads}
            begin = self._begin(any("dh" in one.reads for p in phases[:-1] for one in p.gradient))
            begin = begin if number == last else ["if (rk_flags && !(rk_flags[at] & 1)) return;"]
            if stages or number == last:
                given = {"dh"} if number == last else set()
                body = self._body(stages, lambda name, later=later: name in later, given)
                found.append(self._kernel(f"gradient_{number}", [*begin, *body]))
                found += self._sums(f"means_gradient_{number}", stages)
        return self._whole(found)

    def _needed_after(self, number: int) -> set[str]:
        """Return what a phase must store: what later phases and products read, and in training the gradient."""
        declaration = self.declaration
        found = {"h", *declaration.states, *declaration.means}
        for later, phase in enumerate(declaration.phases):
            stages = [*(phase.forward if later > number else ()), *(phase.gradient if self.keeps else ())]
            found |= {name for stage in stages for name in stage.reads}
            if later > number or self.keeps:
                found |= {product.source for product in phase.products if product.slots}
        return found

    def _whole(self, kernels: list[str]) -> str:
        f, caller = self.text.suffix, "\n".join(kernels)
        means = _MEANS.format(block=MEAN_BLOCK) if self.declaration.means or self.declaration.gradient_means else ""
        head = _HEAD.format(real="float" if f else "double", f=f)
        return head + functions(self.real, caller + means) + means + caller

    def _kernel(self, name: str, body: list[str], count: str = "rk_units") -> str:
        names = [*PARAMETERS]
        given = names if "gradient" in name else names[: names.index(FIRST_OF_GRADIENT)]
        arguments = ", ".join(f"{PARAMETERS[one]} rk_{one}".replace("* ", "*") for one in given)
        head = f"if (RK_INDEX >= rk_rows * {count}) return;", f"const long long row = RK_INDEX / {count};"
        own = f"const long long u = RK_INDEX % {count}, at = rk_first + row;"
        lines = "".join(f"  {line}\n" for line in (*head, own, *body))
        return f'extern "C" __global__ void {name}({arguments}) {{\n{lines}}}\n'

    def _carry(self, stages: Iterable[Any]) -> list[str]:
        """Lines for a step that does not run: the states stay, and what products multiply is 0."""
        lines, states = [], ("h", *self.declaration.states)
        for name in dict.fromkeys(name for stage in stages for name in stage.writes):
            if name in states and not (name == "h" and self.projected):
                lines.append(f"{self._at(name)} = {self._at(f'{name}_prev')};")
            elif name in self.declaration.sources or (name == "h" and self.projected):
                lines.append(f"{self._at(name)} = 0;")
        return ["if (rk_flags && !(rk_flags[at] & 1)) {", *(f"  {line}" for line in lines), "  return;", "}"]

    def _begin(self, keeps_dh: bool) -> list[str]:
        """Lines before the last phase's gradient: the gradient of the output of the units, in `dh`."""
        clear = [f"{self._at(f'd{name}')} = 0;" for name in self.declaration.slots]
        skipped = ["if (rk_flags && !(rk_flags[at] & 1)) {", *(f"  {line}" for line in clear)]
        if self.projected:
            found = "rk_dunits[row * rk_units + u]"
            return [f"real {self.text.variable('dh')} = {found};", *skipped, "  return;", "}"]
        dh = self.text.variable("dh")
        lines = ["real *const rk_carried = rk_dhidden + row * rk_units + u;", f"real {dh} = *rk_carried;"]
        lines += self._add_dy(dh)
        lines += [*skipped, f"  *rk_carried = {dh};", "  return;", "}", "*rk_carried = 0;"]
        return lines + [f"rk_dunits[row * rk_units + u] = {dh};"] * keeps_dh

    def _add_dy(self, target: str) -> list[str]:
        return [f"if (rk_dy && (!rk_flags || rk_flags[at] & {COUNTS})) {target} += rk_dy[at * rk_dy_stride + u];"]

    def _output_gradient(self) -> str:
        """The kernel of the gradient of a projected output: where its product reads it."""
        column = "rk_dgates_stride - rk_outputs + u"
        lines = ["real *const rk_carried = rk_dhidden + row * rk_outputs + u;", "real rk_total = *rk_carried;"]
        lines += self._add_dy("rk_total")
        lines += ["const int rk_runs = !rk_flags || rk_flags[at] & 1;", "*rk_carried = rk_runs ? 0 : rk_total;"]
        lines += [f"rk_dgates[at * rk_dgates_stride + {column}] = rk_runs ? rk_total : 0;"]
        return self._kernel("output_gradient", lines, "rk_outputs")

    def _body(self, stages: Iterable[Any], is_stored: Any, given: Iterable[str] = ()) -> list[str]:
        """Lines of some stages: load what they read, compute, and store what they have written last."""
        loads, lines, written = [], [], {}
        known = {self.text.variable(name) for name in given}
        for number, stage in enumerate(stages):
            later = {name for one in stages[number + 1 :] for name in one.reads}
            wanted = [name for name in stage.writes if name in later or name in self.means or is_stored(name)]
            reads, own, values = self.text.stage(stage, wanted)
            for name in reads:
                if self.text.variable(name) not in known:
                    loads.append(f"real {self.text.variable(name)} = {self._value(name)};")
                    known.add(self.text.variable(name))
            for name in wanted:
                if self.text.variable(name) not in known:
                    loads.append(f"real {self.text.variable(name)};")
                    known.add(self.text.variable(name))
            written |= dict.fromkeys(wanted)
            news = [f"const real rk_new_{number} = {value};" for number, value in enumerate(values)]
            sets = [f"{self.text.variable(name)} = rk_new_{number};" for number, name in enumerate(wanted)]
            lines += [f"{{ /* {', '.join(wanted)} */", *(f"  {line}" for line in (*own, *news, *sets)), "}"]
        stores = []
        for name in written:
            if name in self.means:
                stores.append(f"{self._term(name, written)} = {self.text.variable(name)};")
            elif name.startswith("d") and self.places[name][:2] == (True, "vectors"):
                stores.append(f"{self._at(name)} += {self.text.variable(name)};")
            elif is_stored(name):
                stores.append(f"{self._at(name)} = {self.text.variable(name)};")
        return [*loads, *lines, *stores]

    def _value(self, name: str) -> str:
        """Return the text that reads a value."""
        if name in self.means:
            return f"rk_mean_of({self._block_sums(name)}, rk_units)"
        scalars = [one.name for one in self.declaration.scalars]
        if name in scalars:
            return f"rk_vectors[{len(self.declaration.vectors) - len(scalars)} * rk_units + {scalars.index(name)}]"
        noise = next((one for one in self.declaration.noises if one.name == name), None)
        if noise is not None and not self.draws:
            return literal(getattr(self.cell, noise.rate) if noise.choice else 1, self.real)
        return self._at(name)

    def _at(self, name: str) -> str:
        """Return the place of a value in memory."""
        is_gradient, field, slot = self.places[name]
        declaration, own = self.declaration, f"{slot} * rk_units + u" if slot else "u"
        if field == "gates":
            array = "rk_dgates" if is_gradient else "rk_gates"
            return f"{array}[at * {array}_stride + {own}]"
        if field in ("hidden_prev", "inputs"):
            array = f"rk_{'d' if is_gradient else ''}{field}"
            return f"{array}[at * {array}_stride + {own}]"
        if field == "units" and not is_gradient:
            projected = "rk_gates[at * rk_gates_stride + rk_gates_stride - rk_units + u]"
            return projected if self.projected else "rk_hidden[at * rk_hidden_stride + u]"
        if is_gradient and field in ("units", "hidden"):
            return f"rk_d{field}[row * rk_units + u]"
        if field in ("states", "states_prev"):
            array, row, count = f"rk_{'d' if is_gradient else ''}{field}", "row" if is_gradient else "at", "states"
            return f"{array}[({row} * {len(getattr(declaration, count))} + {slot}) * rk_units + u]"
        if field == "vectors":
            row = f"(row * {len(declaration.vectors)} + {slot}) * rk_units + u" if is_gradient else own
            return f"rk_{'d' if is_gradient else ''}vectors[{row}]"
        count = sum(one.per_step == (field == "step_noises") for one in declaration.noises)
        row = "at" if field == "step_noises" else "at % rk_batch"
        return f"rk_{field}[({row} * {count} + {slot}) * rk_units + u]"

    def _block_sums(self, name: str) -> str:
        is_gradient, number = self.means[name]
        array, blocks = "rk_dgates" if is_gradient else "rk_gates", f"((rk_units + {MEAN_BLOCK - 1}) / {MEAN_BLOCK})"
        return f"{array} + at * {array}_stride + {len(self.declaration.slots)} * rk_units + {number} * {blocks}"

    def _term(self, name: str, written: Iterable[str]) -> str:
        means = [one for one in written if one in self.means]
        return f"rk_terms[(row * {len(means)} + {means.index(name)}) * rk_units + u]"

    def _sums(self, title: str, stages: Iterable[Any]) -> list[str]:
        """The kernel that sums the terms of the means that these stages write, block by block."""
        means = means_of(self.declaration, stages)
        if not means:
            return []
        lines = [f"const real *const rk_own = rk_terms + row * {len(means)} * rk_units;"]
        for number, name in enumerate(means):
            lines.append(f"rk_add_block(rk_own + {number} * rk_units, {self._block_sums(name)}, u, rk_units);")
        return [self._kernel(title, lines, f"((rk_units + {MEAN_BLOCK - 1}) / {MEAN_BLOCK})")]


def means_of(declaration: Any, stages: Iterable[Any]) -> list[str]:
    """Return the means that stages write, in the order of their terms."""
    names = {*declaration.means, *declaration.gradient_means}
    return list(dict.fromkeys(name for stage in stages for name in stage.writes if name in names))


@lru_cache(256)
def source_of(
    cell: Any, dtype: np.dtype, projected: bool, kind: str, draws: bool = False, function: str = "forward"
) -> str:
    """Return the CUDA C of a cell's "infer", "forward" (of training) or "gradient".

    Raises
    ------
    BackendError
        A stage calls a function that CUDA C does not have.
    """
    own = Source(cell, dtype, projected, draws, kind != "infer", function)
    return own.gradient() if kind == "gradient" else own.forward()
