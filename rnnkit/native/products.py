"""The products of a layer in C: blocks of columns whose sums stay in registers, and their weights in that order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

_LINE_BYTES = 64
_WIDEST_BYTES = 256  # of a block of columns: 4 vectors of 64 bytes, or 8 of 32


class Part(NamedTuple):
    """A part of a product: a matrix (columns, depth), and the C text of what it multiplies."""

    matrix: np.ndarray
    source: str


def shifted(pointer: str, distance: int) -> str:
    """Return the C text of a pointer moved by a distance, which it may have been moved by before."""
    array, _, before = pointer.partition(" + ")
    distance += int(before or 0)
    return f"{array} + {distance}" if distance else array


class Products:
    """Writes the calls of products, collects their weights, and remembers which functions they need."""

    def __init__(self, real: Any) -> None:
        self.real, self.size = real, np.dtype(real).itemsize
        self.widths: set[int] = set()
        self.repeated: set[int] = set()
        self.pack: list[np.ndarray] = []  # of the present layer

    def taken(self) -> np.ndarray:
        """Return the weights of the present layer, and begin another one."""
        found = np.concatenate(self.pack) if self.pack else np.zeros(0, self.real)
        self.pack = []
        return found

    def lines(self, target: str, start: str, count: int, parts: list[Part], weights: str) -> list[str]:
        """Return calls that write columns: `target` = `start` + the sum of the parts, each chain k ascending, of two
        parts at most."""
        parts = [part for part in parts if part.matrix.shape[1]]
        if not parts:
            return [] if start == target else [f"rk_copy({target}, {start}, {count});"]
        whole = np.concatenate([part.matrix for part in parts], axis=1).astype(self.real)
        sources = [f"{part.source}, {part.matrix.shape[1]}" for part in parts] + [f"{parts[0].source}, 0"]
        lines = []
        for first, width, times in self._blocks(count):
            offset = sum(one.size for one in self.pack)
            for block in range(times):
                own = whole[first + block * width : first + (block + 1) * width]
                self.pack.append(np.ascontiguousarray(own.T).ravel())
            self.widths.add(width)
            name, number = f"rk_columns_{width}", ""
            if times > 1:
                self.repeated.add(width)
                name, number = f"rk_blocks_{width}", f"{times}, "
            to, init = (shifted(one, first) for one in (target, start))
            lines.append(f"{name}({to}, {init}, {shifted(weights, offset)}, {number}{', '.join(sources[:2])});")
        return lines

    def _blocks(self, count: int) -> list[tuple[int, int, int]]:
        """Return (first column, width, how many) of blocks of equal width, in whole cache lines; then smaller ones."""
        line, widest, first, found = _LINE_BYTES // self.size, _WIDEST_BYTES // self.size, 0, []
        while first < count:
            left = count - first
            if left >= line:
                blocks = -(-(left // line * line) // widest)
                width = left // line // blocks * line
                times = min(blocks, left // width)
            else:
                width, times = 1 << left.bit_length() - 1, 1
            found.append((first, width, times))
            first += width * times
        return found

    def functions(self) -> str:
        """Return the functions that the calls need."""
        text = ["\n/* columns = start + a . weights + b . weights, in one chain of fused multiply-adds each */\n"]
        for width in sorted(self.widths, reverse=True):
            text.append(_FUNCTION.format(name=f"rk_columns_{width}", other="", body=_body(width, ("sums", "w", 0))))
        for width in sorted(self.repeated, reverse=True):
            body = _body(width, ("sums", "w", 0), ("more", "v", width))
            text.append("#if RK_PAIRS /* two blocks at once hide the latency */\n")
            text.append(_FUNCTION.format(name=f"rk_pair_{width}", other="const real *v, ", body=body))
            text.append(f"#endif\n{_REPEATED.format(width=width)}")
        return "".join(text)


_FUNCTION = """\
static inline void {name}(
    real *c, const real *start, const real *w, {other}const real *a, int n, const real *b, int m) {{
{body}}}
"""
_REPEATED = """\
static inline void rk_blocks_{width}(
    real *c, const real *start, const real *w, int blocks, const real *a, int n, const real *b, int m) {{
  const int size = {width} * (n + m);
  int i = 0;
#if RK_PAIRS
  for (; i + 1 < blocks; i += 2, w += 2 * size)
    rk_pair_{width}(c + {width} * i, start + {width} * i, w, w + size, a, n, b, m);
#endif
  for (; i < blocks; i++, w += size) rk_columns_{width}(c + {width} * i, start + {width} * i, w, a, n, b, m);
}}
"""


def _body(width: int, *blocks: tuple[str, str, int]) -> str:
    """Return the statements of a function of a block, or of two side by side."""

    def each(text: str) -> str:
        every = " ".join(text.format(sums=sums, w=w, at=f" + {at}" if at else "") for sums, w, at in blocks)
        return f"RK_UNROLL for (int j = 0; j < {width}; j++) {{{{ {every} }}}}".replace("{{", "{").replace("}}", "}")

    advance = ", ".join(f"{w} += {width}" for _, w, _ in blocks)
    lines = [f"real {', '.join(f'{sums}[{width}]' for sums, *_ in blocks)};", each("{sums}[j] = start[j{at}];")]
    for source, depth in (("a", "n"), ("b", "m")):
        lines.append(f"for (int k = 0; k < {depth}; k++, {advance})")
        lines.append("  " + each(f"{{sums}}[j] = RK_FMA({source}[k], {{w}}[j], {{sums}}[j]);"))
    lines.append(each("c[j{at}] = {sums}[j];"))
    return "".join(f"  {line}\n" for line in lines)
