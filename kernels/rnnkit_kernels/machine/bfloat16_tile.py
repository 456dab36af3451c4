"""The micro-kernel of bfloat16 weights in vector registers: the sums of tile registers (`amx`), in float32.

A tile register multiplies 16 words at once: the first numbers of these are one chain of fused multiply-adds, the second
numbers are another, and both start from 0; then the two are added to the sums (found by experiment, and in agreement
with TDPBF16PS in the Intel Instruction Set Extensions Programming Reference). Subnormal sums become 0.
"""

from functools import partial

from llvmlite import ir

from .amx import TILE_WORDS
from .registers import I32, I64, REGISTERS, emit_fma
from .tile import Tile


def _without_subnormals(builder, value):
    """Return the numbers, zeros of the same sign for subnormal ones, as tile registers read and write them."""
    bits = ir.VectorType(I32, value.type.count)
    sign, magnitude = (ir.Constant(bits, [I32(mask)] * bits.count) for mask in (0x80000000, 0x7FFFFFFF))
    word = builder.bitcast(value, bits)
    least = ir.Constant(bits, [I32(0x00800000)] * bits.count)  # of a normal number
    is_small = builder.icmp_unsigned("<", builder.and_(word, magnitude), least)
    return builder.bitcast(builder.select(is_small, builder.and_(word, sign), word), value.type)


class Bfloat16Tile(Tile):
    """With few rows both chains of a block run at once, as each multiply-add waits for the last. With many rows their
    sums would not fit in the registers: then one chain runs after the other, with as many rows as in float32."""

    def _sums(self, builder, a_row, c_row):
        count, zero = len(a_row) * len(self.group), ir.Constant(self.vector, None)
        is_scaled = self.form.scales_rows
        # What is scaled starts from 0, and then no sum is subnormal. Others start from any number.
        flushed = (lambda sums: sums) if is_scaled else partial(map, partial(_without_subnormals, builder))
        starts = [zero] * count if is_scaled else [*flushed(self._start(builder, c_row))]
        at_once = 2 * count + len(self.group) < REGISTERS
        before = builder.block
        head, body, after = (builder.function.append_basic_block(name) for name in ("block", "words", "summed"))
        builder.branch(head)
        builder.position_at_end(head)
        k, totals = builder.phi(I64), [builder.phi(self.vector) for _ in range(count)]
        for phi, value in zip([k, *totals], [I64(0), *starts], strict=True):
            phi.add_incoming(value, before)
        builder.cbranch(builder.icmp_signed("<", k, self.depth), body, after)
        builder.position_at_end(body)
        stop = builder.add(k, I64(TILE_WORDS))
        stop = builder.select(builder.icmp_signed("<", stop, self.depth), stop, self.depth)
        chains = []
        for self.halves in ((0, 1),) if at_once else ((0,), (1,)):
            chains += self._loops(builder, a_row, [zero] * (count * len(self.halves)), k, stop)
        added = flushed(
            builder.fadd(total, builder.fadd(*pair))
            for total, *pair in zip(totals, chains[:count], chains[count:], strict=True)
        )
        for phi, value in zip([k, *totals], [stop, *added], strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        if not is_scaled:
            return totals
        scales = [self._in_every_lane(builder, builder.load(builder.gep(row, [I64(-1)]))) for row in a_row]
        scales = [scale for scale in scales for _ in self.group]
        starts = self._start(builder, c_row)
        return [
            emit_fma(builder, total, scale, first) for first, total, scale in zip(starts, totals, scales, strict=True)
        ]

    def _multiply_add(self, builder, a_row, k, turn, sums):
        form, words, result = self.form, self._weights(builder, k, turn), []
        rows = [self._values(builder, row, k) for row in a_row]
        for number, half in enumerate(self.halves):
            columns = [form.half(builder, word, half) for [word] in words]
            before = iter(sums[number * len(sums) // len(self.halves) :])
            result += [form.add(builder, row[number], column, next(before)) for row in rows for column in columns]
        return result

    def _values(self, builder, row, k):
        """Return the numbers of a row of A to multiply with each of the halves of a word."""
        pointers = [builder.gep(row, [builder.add(builder.mul(k, I64(2)), I64(half))]) for half in self.halves]
        return [self._in_every_lane(builder, builder.load(pointer)) for pointer in pointers]
