"""One layer of a network in C, in one direction: a function that runs one step, and its weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rnnkit.cpu.layer import Layer
from rnnkit.equations.c_text import CText, literal, name_in_c
from rnnkit.equations.printer import CellText
from rnnkit.native.arrays import Arrays
from rnnkit.native.int8_products import Int8Products, Target
from rnnkit.native.products import Part, Products, shifted
from rnnkit_kernels.cells.declaration import MEAN_BLOCK, mean_blocks
from rnnkit_kernels.stages import flushed_in, operand_places

# What a variable of the equations is in C: the array, and how many units before it.
_ARRAYS = {
    "gates": "rk_gates", "hidden_prev": "rk_h_prev", "units": "rk_units", "states": "s", "states_prev": "rk_s_prev",
    "vectors": "rk_bias", "inputs": "rk_side",
}  # fmt: skip


class LayerText(NamedTuple):
    """The C text of a layer: its constant arrays, and its function; and the bytes of the function's stack."""

    arrays: str
    function: str
    stack: int


def _merged(targets: list[Target]) -> list[Target]:
    """Join neighbouring columns that start from the same array."""
    found: list[Target] = []
    for one in targets:
        last = found[-1] if found else None
        if last is not None and last.start.split(" ")[0] == one.start.split(" ")[0]:
            found[-1] = last._replace(rows=range(last.rows.start, one.rows.stop))
        else:
            found.append(one)
    return found


class LayerWriter:
    """Writes a layer. In its function x is the input, h and s are the states, which it overwrites; `rk_side` the side
    inputs."""

    def __init__(
        self,
        layer: Layer,
        weights: np.ndarray,
        bias: np.ndarray,
        products: Products,
        int8: Int8Products | None,
        name: str,
    ) -> None:
        self._layer, self._weights, self._products, self._name = layer, weights, products, name
        self._int8 = int8  # its products, in place of `products`, if weights are int8
        self._cell, self._declaration, self._real = layer.cell, layer.cell.declaration, weights.dtype.type
        self._hidden, self._output = layer.sizes.hidden, layer.sizes.output
        self._bias = bias  # of the columns of the gates, summed, then the vectors
        self._text, self._places = CText(layer.cell, self._real), operand_places(layer.cell.declaration)
        self._equations = CellText(layer.cell)
        self._is_projected = bool(layer.products[-2].rows.size)
        self._stored = self._stored_before()

    def text(self, arrays: Arrays) -> LayerText:
        """Write the layer; its weights go to `arrays`."""
        declaration, size = self._declaration, self._hidden
        body = [line for number in range(len(declaration.phases)) for line in self._phase(number)]
        if self._is_projected:
            projection = Part(self._matrix(self._layer.products[-2]), "rk_units")
            body += [f"static const real rk_zeros[{self._output}] = {{0}};"]
            if self._int8 is None:
                body += self._products.lines("h", "rk_zeros", self._output, [projection], f"{self._name}_weights")
            else:
                target = Target("h", "rk_zeros", range(self._output))
                body += self._int8.lines(self._name, "rk_units", projection.matrix, [target])
        sizes = {"rk_gates": max(len(declaration.slots), 1) * size}
        sizes |= {"rk_h_prev": self._output} if "h" in self._stored else {}
        sizes |= {"rk_s_prev": len(declaration.states) * size} if self._stored - {"h"} else {}
        sizes |= {"rk_units": size} if self._is_projected else {}
        head = [f"real {name}[{count}];" for name, count in sizes.items()]
        head += [f"real rk_mean_{name_in_c(name)};" for name in declaration.means]
        head += [f"rk_copy(rk_h_prev, h, {self._output});"] * ("rk_h_prev" in sizes)
        head += [f"rk_copy(rk_s_prev, s, {sizes['rk_s_prev']});"] if "rk_s_prev" in sizes else []
        arguments = ["const real *restrict x", *["const real *restrict rk_side"] * bool(declaration.inputs)]
        arguments += ["real *restrict h", *["real *restrict s"] * bool(declaration.states)]
        texts, own_bytes = arrays.text(f"{self._name}_bias", self._bias), 0
        if self._int8 is None:
            texts += arrays.text(f"{self._name}_weights", self._products.taken())
        else:
            weights, numbers = self._int8.taken()
            texts += arrays.text(f"{self._name}_weights", weights) + arrays.text(f"{self._name}_numbers", numbers)
            own_bytes = max(self._int8.deepest, 1)
            head += [f"signed char rk_q[{own_bytes}];", "real rk_scale_of_q;"]
        lines = "".join(f"  {line}\n" for line in (*head, *body)).replace("rk_bias", f"{self._name}_bias")
        function = f"static void {self._name}({arrays.parameter}{', '.join(arguments)}) {{\n{lines}}}\n"
        terms = max((sum(one in declaration.means for one in stage.writes) for stage in declaration.stages), default=0)
        count = sum(sizes.values()) + terms * mean_blocks(size) * MEAN_BLOCK
        return LayerText(texts, function, count * self._bias.itemsize + own_bytes)

    def _stored_before(self) -> set[str]:
        """Return the states whose values before the step are still read after a stage has written the new ones: they
        are copied first."""
        written: set[str] = set()
        found: set[str] = set()
        for phase in self._declaration.phases:
            found |= {one.source.removesuffix("_prev") for one in phase.products if one.slots} & written
            for stage in phase.forward:
                before = {name.removesuffix("_prev") for name in stage.reads if name.endswith("_prev")}
                found |= before & written
                written |= {*stage.writes} & {"h", *self._declaration.states}
        return found

    def _place(self, name: str) -> str:
        """Return a pointer to the first unit of a variable."""
        _, field, slot = self._places[name]
        array, first = _ARRAYS[field], slot * self._hidden
        if field == "hidden_prev" and "h" not in self._stored:
            array = "h"
        if field == "states_prev" and name.removesuffix("_prev") not in self._stored:
            array = "s"
        if field == "units" and not self._is_projected:
            array = "h"
        if field == "vectors":
            first += len(self._declaration.slots) * self._hidden
        return shifted(array, first)

    def _at(self, name: str) -> str:
        """Return a variable of the present unit."""
        array, _, first = self._place(name).partition(" + ")
        return f"{array}[{first} + u]" if first else f"{array}[u]"

    def _matrix(self, product: Any) -> np.ndarray:
        """Return the weights of a product, (columns, depth)."""
        if not product.rows.size or not product.depth:
            return np.zeros((product.rows.size, 0), self._real)
        end = product.start + (int(product.rows.max()) + 1) * product.depth
        return self._weights[product.start : end].reshape(-1, product.depth)[product.rows]

    def _phase(self, number: int) -> list[str]:
        phase = self._declaration.phases[number]
        if self._int8 is not None:
            lines = self._int8_products(number)
        else:
            lines = self._first_products() if number == 0 else self._products_of_states(number, {})
        for stage in phase.forward:
            lines += self._stage(number, stage)
        return lines

    def _first_products(self) -> list[str]:
        """W x of all gates; where R h is added to it, both in one chain."""
        of_x = self._layer.products[0]
        slots = self._declaration.products[0].slots
        matrix, parts = self._matrix(of_x), {}
        for place, slot in enumerate(slots):
            rows = slice(place * self._hidden, (place + 1) * self._hidden)
            parts[slot] = Part(matrix[rows], "x")
        return self._products_of_states(0, parts)

    def _products_of_states(self, number: int, of_x: dict[int, Part]) -> list[str]:
        """Products of a phase, a run of neighbouring slots with the same operands at a time. They start from the
        biases, or continue the sums of before."""
        declaration, size, lines = self._declaration, self._hidden, []
        of_r: dict[int, tuple[Any, np.ndarray]] = {}
        for product, packed in zip(declaration.products[1:], self._layer.products[1:], strict=False):
            if product in declaration.phases[number].products:
                matrix = self._matrix(packed)
                for place, slot in enumerate(product.slots):
                    of_r[slot] = product, matrix[place * size : (place + 1) * size]
        runs: list[list[int]] = []
        last: Any = None
        for slot in sorted({*of_x, *of_r}):
            kind = slot in of_x, of_r.get(slot, (None,))[0]
            if runs and runs[-1][-1] == slot - 1 and kind == last and (kind[1] is None or kind[1].heads == 1):
                runs[-1].append(slot)
            else:
                runs.append([slot])
            last = kind
        is_skip = bool(of_x) and not self._layer.products[0].depth
        for run in runs:
            first, count = run[0] * size, len(run) * size
            target, start = shifted("rk_gates", first), shifted("rk_bias", first)
            product = of_r.get(run[0], (None,))[0]
            is_new = run[0] in of_x or (product is not None and run[0] in product.apart)
            if not is_new:
                start = target
            parts = []
            if run[0] in of_x and is_skip:
                lines += self._skip(run)
                start = target
            elif run[0] in of_x:
                parts.append(Part(np.concatenate([of_x[slot].matrix for slot in run]), "x"))
            heads = 1 if product is None else product.heads
            width = size // heads
            if product is not None:
                matrix = np.concatenate([of_r[slot][1] for slot in run])
                parts.append(Part(matrix, self._place(product.source)))
            for head in range(heads):  # of several heads a run is one slot
                rows = slice(head * width, (head + 1) * width) if heads > 1 else slice(None)
                own = [Part(one.matrix[rows], one.source) for one in parts]
                if heads > 1:
                    own[-1] = Part(own[-1].matrix, shifted(parts[-1].source, head * width))
                where = shifted(target, head * width), shifted(start, head * width), count // heads
                lines += self._products.lines(*where, own, f"{self._name}_weights")
        return lines

    def _int8_products(self, number: int) -> list[str]:
        """Products of a phase, one after the other: what each multiplies is rounded anew."""
        declaration, size, lines = self._declaration, self._hidden, []
        for product, packed in zip(declaration.products, self._layer.products, strict=False):
            if not product.slots or product not in (
                [declaration.products[0]] * (number == 0) + [*declaration.phases[number].products]
            ):
                continue
            if not packed.depth:
                lines += self._skip(product.slots)
                continue
            matrix, width = self._matrix(packed), size // product.heads
            source = "x" if product.source is None else self._place(product.source)
            targets = []
            for place, slot in enumerate(product.slots):
                is_new = product.source is None or slot in product.apart
                for head in range(product.heads):
                    first, row = slot * size + head * width, place * size + head * width
                    start = shifted("rk_bias" if is_new else "rk_gates", first)
                    targets.append(Target(shifted("rk_gates", first), start, range(row, row + width)))
            if product.heads == 1:
                lines += self._int8.lines(self._name, source, matrix, _merged(targets))
            for number_of, target in enumerate(targets if product.heads > 1 else ()):
                rows = slice(target.rows.start, target.rows.stop)
                own = target._replace(rows=range(width))
                of_head = shifted(source, number_of % product.heads * width)
                lines += self._int8.lines(self._name, of_head, matrix[rows], [own])
        return lines

    def _skip(self, slots: Any) -> list[str]:
        """Add the input itself to these gates, without W."""
        lines = []
        for slot in slots:
            at = f"[{slot * self._hidden} + u]" if slot else "[u]"
            lines.append(f"for (int u = 0; u < {self._hidden}; u++) rk_gates{at} = rk_bias{at} + x[u];")
        return lines

    def _stage(self, number: int, stage: Any) -> list[str]:
        """The loop of a stage over the units."""
        declaration, noises = self._declaration, {one.name: one for one in self._declaration.noises}
        live = self._live_after(number, stage)
        wanted = [name for name in stage.writes if name in live]
        means = [name for name in wanted if name in declaration.means]
        flushed = flushed_in(declaration, stage)
        read, lines, values = self._text.stage(stage, wanted)
        loads = []
        for name in read:
            if name in declaration.means:
                text = f"rk_mean_{name_in_c(name)}"
            elif name in noises:
                noise = noises[name]  # inference has its expectation
                text = literal(getattr(self._cell, noise.rate) if noise.choice else 1, self._real)
            elif name in (one.name for one in declaration.scalars):
                text = f"rk_bias[{self._scalar(name)}]"
            else:
                text = self._at(name)
            loads.append(f"const real {name_in_c(name)} = {text};")
        stores = []
        for name, value in zip(wanted, values, strict=True):  # after all loads of the unit
            target = f"rk_terms_{name_in_c(name)}[u]" if name in means else self._at(name)
            stores.append(f"{target} = rk_flushed({value});" if name in flushed else f"{target} = {value};")
        space = mean_blocks(self._hidden) * MEAN_BLOCK
        inner = [f"real rk_terms_{name_in_c(name)}[{space}];" for name in means]
        inner.append(f"for (int u = 0; u < {self._hidden}; u++) {{")
        inner += [f"  {line}" for line in (*loads, *lines, *stores)]
        inner.append("}")
        inner += [f"rk_mean_{name_in_c(name)} = rk_mean(rk_terms_{name_in_c(name)}, {self._hidden});" for name in means]
        equations = zip(stage.writes, self._equations.expressions(stage), strict=True)
        comments = [f"/* {name} = {self._equations.shortened(one)} */" for name, one in equations if name in wanted]
        return [*comments, "{", *(f"  {line}" for line in inner), "}"]

    def _scalar(self, name: str) -> int:
        declaration = self._declaration
        before = len(declaration.slots) + len(declaration.vectors) - len(declaration.scalars)
        return before * self._hidden + [one.name for one in declaration.scalars].index(name)

    def _live_after(self, number: int, stage: Any) -> set[str]:
        """Return what is read after a stage: by later stages and products, or as a state."""
        declaration = self._declaration
        live = {"h", *declaration.states, *declaration.means}
        phases = declaration.phases
        own = phases[number].forward
        for later in own[own.index(stage) + 1 :]:
            live |= {*later.reads}
        for phase in phases[number + 1 :]:
            live |= {name for later in phase.forward for name in later.reads}
            for product in phase.products:
                live |= {product.source, *declaration.names_of(product)}
        return live
