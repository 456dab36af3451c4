"""
A network that compresses text
==============================

A network that predicts the next byte is a compressor. It learns while it
compresses. How many bytes does it need to catch up with zlib and xz?
"""

import lzma
import zlib
from pydoc_data import topics

import matplotlib.pyplot as plt

from rnnkit.language_model.compressor import compress, decompress

pages = [topics.topics[name] for name in sorted(topics.topics)]
text = "\n".join(pages).encode()[:32_000]
sizes = [1_000, 4_000, 12_000, 32_000]
methods = {
    "rnnkit, 96 units": lambda one: compress(one, hidden=96),
    "zlib": lambda one: zlib.compress(one, 9),
    "xz": lzma.compress,
}
bits = {}
for name, method in methods.items():
    bits[name] = [8 * len(method(text[:size])) / size for size in sizes]
    print(f"{name:16} {bits[name][-1]:.2f} bits a byte of {sizes[-1]:,}")

# %%
# The decoder repeats every step of the learning, so it arrives at the same
# predictions.

code = compress(text[:4_000], hidden=96)
print("decompressed the same:", decompress(code) == text[:4_000])

# %%
plt.figure(figsize=(7, 3.5))
for name, found in bits.items():
    plt.semilogx(sizes, found, "o-", label=name)
plt.xlabel("bytes of text")
plt.ylabel("bits a byte")
plt.xticks(sizes, sizes)
plt.minorticks_off()
plt.legend()
plt.tight_layout()
plt.show()
