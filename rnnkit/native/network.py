"""What a program calls of a network in C: its state, and the functions that run steps."""

from __future__ import annotations

from typing import Any, NamedTuple

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.native.arrays import Arrays
from rnnkit.native.check import FLAGS

_HEADER = """\
/* {description}. Written by rnnkit {version}: do not edit.

{about} */
#ifndef {upper}_H
#define {upper}_H
#include <stddef.h>
#ifdef __cplusplus
extern "C" {{
#endif

#define {upper}_INPUT {inputs} /* numbers of a step in x{side} */
#define {upper}_OUTPUT {outputs} /* numbers of a step in y */
#define {upper}_WORK(steps) {work} /* numbers in work */
{weights}
typedef struct {{
{fields}
}} {name}_state;

{init} /* {initial} */
{step}void {name}_run({name}_state *state, const {real} *x, size_t steps, {real} *y, {real} *work);

#ifdef __cplusplus
}}
#endif
#endif
"""

_ABOUT = """\
A state belongs to one sequence: every stream has its own, and threads may run different ones at once. Nothing is
allocated, there are no globals, and the time of a step is bounded. The stack takes about {stack} bytes.

{name}_init starts a sequence. {calls}
x is (steps, {upper}_INPUT), y is (steps, {upper}_OUTPUT), row by row. {run}

    gcc or clang: {flags}
    on a CPU without a fused multiply-add: -DRK_SOFT_FMA

The numbers are those of rnnkit, bit for bit: {name}_test.c is a program that checks it."""


_IN_FILE = """

The weights are in {name}.bin, {upper}_WEIGHTS bytes. Read or map it to memory from a multiple of 8 bytes on, and keep
it there: all states can share it. {name}_init returns 0, or -1 if it is another file."""


def header(desc: RNNDescriptor, name: str, about: dict[str, Any]) -> str:
    """Return the text of the header file."""
    upper, real = name.upper(), about["real"]
    both = desc.num_directions == 2
    rows = desc.num_pseudo_layers
    in_file = about["file_bytes"] > 0
    of_states = " ".join(desc.cell.declaration.states)
    fields = [f"  {real} h[{rows}][{desc.output_size}];"]
    if desc.cell.declaration.states:
        fields.append(f"  {real} s[{rows}][{len(desc.cell.declaration.states) * desc.hidden_size}]; /* {of_states} */")
    if in_file:
        fields.append(f"  const unsigned char *weights; /* {name}.bin, in memory */")
    inputs = [one.name for one in desc.cell.declaration.inputs]
    step = f"void {name}_step({name}_state *state, const {real} *x, {real} *y);\n"
    calls = f"{name}_step runs one step, {name}_run several: the next call goes on where one ended."
    run = "work may be NULL."
    if both:
        calls = f"{name}_run runs a whole sequence, in both directions; state has the last states then."
        run = f"work is for {upper}_WORK(steps) numbers."
    init = f"void {name}_init({name}_state *state);"
    if in_file:
        init = f"int {name}_init({name}_state *state, const void *weights);"
        run += _IN_FILE.format(name=name, upper=upper)
    text = _ABOUT.format(name=name, upper=upper, calls=calls, run=run, stack=about["stack"], flags=" ".join(FLAGS))
    halves = both and (desc.num_layers > 1 or about["has_readout"])
    work = f"({2 * desc.num_directions * desc.output_size} * (steps))" if halves else "0"
    weights = f"#define {upper}_WEIGHTS {about['file_bytes']} /* bytes of {name}.bin */\n" if in_file else ""
    side = f": {desc.input_size} features, then {desc.hidden_size} each of {', '.join(inputs)}" if inputs else ""
    return _HEADER.format(
        description=repr(desc), version=about["version"], about=text, upper=upper, name=name, real=real, work=work,
        inputs=desc.row_size, side=side, outputs=about["outputs"],
        fields="\n".join(fields), init=init, weights=weights,
        initial="the learned initial states" if desc.learned_initial_state else "all zeros",
        step="" if both else step,
    )  # fmt: skip


class Body(NamedTuple):
    """What the functions of the header call and read."""

    desc: RNNDescriptor
    name: str
    layers: list[str]  # names of the layers' functions
    initial: str  # start of the names of arrays of initial states, or empty
    readout: str  # the call of a readout of `hidden` to `y`, or empty
    arrays: Arrays

    def functions(self) -> str:
        """Return the functions of the header."""
        return self._init() + (_both_directions if self.desc.num_directions == 2 else _one_direction)(self)

    def _init(self) -> str:
        desc, name = self.desc, self.name
        sizes = {"h": desc.output_size} | ({"s": desc.states_size} if desc.cell.declaration.states else {})
        lines = []
        for state, size in sizes.items():
            value = f"{self.initial}_{state}[row * {size} + i]" if self.initial else "0"
            lines.append(f"    for (int i = 0; i < {size}; i++) state->{state}[row][i] = {value};\n")
        loop = f"  for (int row = 0; row < {desc.num_pseudo_layers}; row++) {{\n{''.join(lines)}  }}\n"
        if not self.arrays.in_file:
            return f"\nvoid {name}_init({name}_state *state) {{\n{loop}}}\n"
        return f"""
int {name}_init({name}_state *state, const void *weights) {{
  static const unsigned char start[32] = {{{self.arrays.start()}}};
  const unsigned char *const rk_file = (const unsigned char *)weights;
  for (int i = 0; i < 32; i++)
    if (rk_file[i] != start[i]) return -1;
  state->weights = rk_file;
{loop}  return 0;
}}
"""


def _states(desc: RNNDescriptor, row: Any) -> str:
    states = f", state->s[{row}]" if desc.cell.declaration.states else ""
    return f"state->h[{row}]{states}"


def _one_direction(body: Body) -> str:
    desc, name = body.desc, body.name
    side = f", x + {desc.input_size}" if desc.cell.declaration.inputs else ""
    lines, source = [], "x"
    for layer, own in enumerate(body.layers):
        lines.append(f"  {own}({body.arrays.argument}{source}{side}, {_states(desc, layer)});\n")
        source = f"state->h[{layer}]"
    last = body.readout.format(hidden=source, y="y") or f"rk_copy(y, {source}, {desc.output_size});"
    upper = name.upper()
    return f"""
void {name}_step({name}_state *state, const real *x, real *y) {{
{"".join(lines)}  {last}
}}

void {name}_run({name}_state *state, const real *x, size_t steps, real *y, real *work) {{
  (void)work;
  for (size_t t = 0; t < steps; t++) {name}_step(state, x + t * {upper}_INPUT, y + t * {upper}_OUTPUT);
}}
"""


def _both_directions(body: Body) -> str:
    desc, name, names, readout = body.desc, body.name, body.layers, body.readout
    upper, size, width = name.upper(), desc.output_size, 2 * desc.output_size
    lines = []
    for layer in range(desc.num_layers):
        is_last = layer == desc.num_layers - 1
        source, row = ("x", f"{upper}_INPUT") if layer == 0 else (f"rk_half_{(layer - 1) % 2}", str(width))
        target, target_row = (
            ("y", f"{upper}_OUTPUT") if is_last and not readout else (f"rk_half_{layer % 2}", str(width))
        )
        side = f", x + t * {upper}_INPUT + {desc.input_size}" if desc.cell.declaration.inputs else ""
        for direction, order in enumerate(("size_t t = 0; t < steps; t++", "size_t t = steps; t-- > 0;")):
            own = 2 * layer + direction
            place = f" + {size}" if direction else ""
            lines.append(f"""\
  for ({order}) {{
    {names[own]}({body.arrays.argument}{source} + t * {row}{side}, {_states(desc, own)});
    rk_copy({target} + t * {target_row}{place}, state->h[{own}], {size});
  }}
""")
    if readout:
        last = readout.format(hidden=f"rk_half_{(desc.num_layers - 1) % 2} + t * {width}", y=f"y + t * {upper}_OUTPUT")
        lines.append(f"  for (size_t t = 0; t < steps; t++) {last}\n")
    text = "".join(lines)
    starts = {"rk_half_0": "work", "rk_half_1": f"work + steps * {width}"}
    halves = "".join(f"  real *const {half} = {start};\n" for half, start in starts.items() if half in text)
    halves = halves or "  (void)work;\n"
    return f"""
void {name}_run({name}_state *state, const real *x, size_t steps, real *y, real *work) {{
{halves}{text}}}
"""
