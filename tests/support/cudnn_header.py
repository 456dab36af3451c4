"""Reads prototypes and numbers off the headers that come with cuDNN, in terms of ctypes."""

import ctypes
import re
from pathlib import Path

NUMBERS = {
    "void": None, "int": ctypes.c_int, "int32_t": ctypes.c_int, "unsigned": ctypes.c_uint, "uint32_t": ctypes.c_uint,
    "size_t": ctypes.c_size_t, "float": ctypes.c_float, "double": ctypes.c_double,
    "unsigned long long": ctypes.c_ulonglong, "cudaStream_t": ctypes.c_void_p,  # of CUDA's own header
}  # fmt: skip


def read(folder):
    """All headers of a folder as one text, without comments and what the preprocessor reads."""
    text = "\n".join(path.read_text(errors="replace") for path in sorted(Path(folder).glob("cudnn*.h")))
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    return re.sub(r"(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", " ", text)


def enumerators(text):
    """{name: number} of all enumerations."""
    found = {}
    for body in re.findall(r"enum\s*\w*\s*{(.*?)}", text, flags=re.DOTALL):
        found.update((name, int(number)) for name, number in re.findall(r"(CUDNN_\w+)\s*=\s*(\d+)\b", body))
    return found


def prototypes(text):
    """{name: (result, arguments)} as ctypes of all functions."""
    pointers = set(re.findall(r"typedef\s+struct\s+\w+\s*\*\s*(\w+)\s*;", text))
    pointers |= set(re.findall(r"typedef\s+\w+\s*\(\s*\*\s*(\w+)\s*\)", text))
    enums = set(re.findall(r"enum\s*\w*\s*{[^}]*}\s*(\w+)\s*;", text))

    def kind(words, name_follows):
        if "[" in words:
            return ctypes.c_void_p
        words = re.sub(r"\bconst\b|\bstruct\b", " ", words).strip()
        stars, words = words.count("*"), words.replace("*", " ").split()
        name = " ".join(words[:-1] if name_follows and len(words) > 1 else words)
        if stars:
            return ctypes.c_char_p if name == "char" and not name_follows else ctypes.c_void_p
        if name in pointers:
            return ctypes.c_void_p
        return ctypes.c_int if name in enums else NUMBERS[name]

    found = {}
    pattern = r"([\w\s*]+?)\s*CUDNNWINAPI\s+(cudnn\w+)\s*\(([^;{]*)\)\s*(?:CUDNN_DEPRECATED\w*)?\s*;"
    for result, name, arguments in re.findall(pattern, text):
        words = [part.strip() for part in arguments.split(",")]
        try:
            kinds = [] if words in (["void"], [""]) else [kind(part, True) for part in words]
            found[name] = kind(result.split(";")[-1].replace("CUDNN_DEPRECATED", ""), False), kinds
        except KeyError:  # of a type that the RNN functions do not have
            continue
    return found
