"""The compiler of all kernels and of what they call, `linking.LinkingCompiler` or else Numba's own; and fingerprints of
types."""

import inspect
import pkgutil

from numba import typeof
from numba.core.compiler import Compiler

# Numba internals that `linking` and `operators` rely on, with their parameters; 0.61 to 0.68 have them.
_INSIDE = {
    "codegen:CPUCodegen._module_pass_manager": "self kwargs",
    "codegen:JITCodeLibrary": "codegen name",
    "codegen:JITCodeLibrary.add_linking_library": "self library",
    "codegen:JITCodeLibrary.add_llvm_module": "self ll_module",
    "codegen:JITCodeLibrary.enable_object_caching": "self",
    "codegen:JITCodeLibrary._ensure_finalized": "self",
    "codegen:JITCodeLibrary._finalize_specific": "self",
    "codegen:JITCodeLibrary._get_module_for_linking": "self",
    "codegen:JITCodeLibrary._optimize_final_module": "self",
    "compiler:Compiler": "typingctx targetctx library args return_type flags locals",
    "compiler:Compiler.define_pipelines": "self",
    "compiler:Flags": "copy_from",
    "compiler:Flags.copy": "self",
    "compiler:Flags.summary": "self",
    "compiler:Flags.no_compile.fget": "self",
    "compiler:Flags.no_cpython_wrapper.fget": "self",
    "compiler:_LowerResult": "fndesc call_helper cfunc env",
    "compiler_machinery:register_pass": "mutates_CFG analysis_only",
    "typed_passes:NativeLowering.run_pass": "self state",
    "base:BaseContext.get_arg_packer": "self fe_args",
    "base:BaseContext.get_returned_value": "self builder ty val",
    "base:BaseContext.insert_func_defn": "self defns",
    "base:BaseContext.subtarget": "self kws",
    "callconv:CPUCallConv.get_return_type": "self ty",
    "targetconfig:ConfigStack.top_or_none": "",
    "types:Function.__init__": "self template",
    "types:Function.get_call_type": "self context args kws",
    "types:Function.get_impl_key": "self sig",
    "typing:Context": "",
    "typing:Context.resolve_value_type": "self val",
}


def _parameters(name):
    """Return the parameters of something in numba.core; None if it does not exist."""
    try:
        return " ".join(inspect.signature(pkgutil.resolve_name(f"numba.core.{name}")).parameters)
    except (ImportError, AttributeError):
        return None


def _compiler():
    """Return the compiler of all functions here: Numba's own, twice as slow for the same code, if internals differ."""
    if any(_parameters(name) != parameters for name, parameters in _INSIDE.items()):
        return Compiler
    from .linking import LinkingCompiler

    return LinkingCompiler


def _fingerprint():
    """Return the function that fingerprints the types of a tuple of numbers and arrays: Numba's own, if it exists."""
    try:
        from numba._dispatcher import compute_fingerprint
    except ImportError:
        return lambda values: tuple(map(typeof, values))
    return compute_fingerprint


COMPILER, FINGERPRINT = _compiler(), _fingerprint()
