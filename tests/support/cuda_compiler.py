"""NVRTC, which compiles CUDA C without a GPU: the library of the wheels nvidia-cuda-nvrtc, or the system's."""

import ctypes
import glob
import importlib.util
import os
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache


@cache
def library():
    """The loaded library, or None."""
    names = ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"]
    for package in ("nvidia.cu13", "nvidia.cuda_nvrtc"):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in found.submodule_search_locations or () if found else ():
            names = sorted(glob.glob(os.path.join(folder, "lib", "libnvrtc.so.1?"))) + names
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def compiled(source, options):
    """The machine code of a program; raises AssertionError with the log."""
    nvrtc, program = library(), c_void_p()
    given = [option.encode() for option in options]
    assert not nvrtc.nvrtcCreateProgram(byref(program), source.encode(), b"kernels.cu", 0, None, None)
    status = nvrtc.nvrtcCompileProgram(program, c_int(len(given)), (c_char_p * len(given))(*given))
    size = c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == 0, log.value.decode()
    nvrtc.nvrtcGetCUBINSize(program, byref(size))
    code = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(byref(program))
    return code.raw, log.value.decode().strip()
