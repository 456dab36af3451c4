"""Compiles functions that only kernels call to LLVM IR, which is linked into the kernels and optimised there.

Numba optimises each function and emits its machine code, although its callers link the code and compile it again, at
each level of calls. This took two thirds of the time of a first call.
"""

from contextlib import contextmanager
from functools import cache

from llvmlite import binding
from numba import _dynfunc
from numba.core import config
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

from .operators import InternedFlags, cached_context
from .registers import ABI_ARGUMENTS, VECTOR_BYTES
from .tile import NAME

# Numba's passes for what kernels do not contain (closures, `with`, array expressions, exceptions with arguments,
# counted references) and for reports. They took a twelfth of the time.
_SKIPPED = {
    "WithLifting",
    "InlineClosureLikes",
    "RewriteDynamicRaises",
    "MakeFunctionToJitFunction",
    "FindLiterallyCalls",
    "IRLegalization",
    "LiteralUnroll",
    "NopythonRewrites",
    "NoPythonSupportedFeatureValidation",
    "AnnotateTypes",
    "DumpParforDiagnostics",
}
# Numba's own first passes, then LLVM's at level 2 instead of 3: a sixth less code in three quarters of the time, which
# is as fast.
_FIRST_PASSES, _LEVEL = {"loop_vectorize": False, "slp_vectorize": False, "opt": 0, "cost": "cheap"}, 2
# The rest of a loop over 16 numbers at once takes 8 at once, not LLVM's 4: 8, 24 or 40 units are more common than 20.
# That of a loop over 8 of float64 takes 4, which LLVM would take one by one.
_EPILOGUE = "epilogue-vectorization-force-VF"
_KNOWS_OPTIONS = binding.llvm_version_info[0] <= 22  # an unknown option makes LLVM abort the process


class _LinkedLibrary(JITCodeLibrary):
    """The lowered code of one function, neither optimised nor emitted."""

    def __init__(self, codegen, name):
        super().__init__(codegen, name)
        self.linked = {}

    def add_linking_library(self, library):
        self.linked[library] = None

    def add_llvm_module(self, ll_module):
        """Give symbols linkonce_odr linkage: each user of the module gets a copy, which is dropped once inlined."""
        for symbol in (*ll_module.functions, *ll_module.global_variables):
            if not symbol.is_declaration and symbol.linkage.name in ("external", "common"):
                symbol.linkage = "linkonce_odr"
        self._final_module = ll_module

    def _ensure_finalized(self):
        """Do nothing: there is nothing to finalise."""

    def _get_module_for_linking(self):
        return self._final_module


class _KernelLibrary(JITCodeLibrary):
    """The code of a kernel and of all that it calls, optimised as a whole."""

    def add_llvm_module(self, ll_module):
        self._final_module.link_in(ll_module)

    def _optimize_final_module(self):
        """Run LLVM's passes. The kernel's callees become internal, so that LLVM drops their unused arguments.

        Each field of an array or a named tuple is an argument of its own. A step of a small network stored several
        hundred of them; without these it takes 0.7 to 0.9 of the time (H = 16 to 64, N = 1, Zen 5).
        """
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
        stages = [self._codegen._module_pass_manager(**_FIRST_PASSES)]
        if not self._has_tiles():  # which are emitted in their final form
            stages.append(_second_passes(self._codegen))
        rest = 4 if any("float64" in function.name for function in self._final_module.functions) else 8
        with _option(_EPILOGUE if VECTOR_BYTES == 64 else None, rest, 1):
            for made in stages:
                manager, *builder = made if isinstance(made, tuple) else (made,)  # no builder before Numba 0.62
                manager.run(self._final_module, *builder)

    def _has_tiles(self):
        return any(function.name.startswith(NAME) for function in self._final_module.functions)

    def _finalize_specific(self):
        """Emit machine code, except for tiles without strength reduction: LLVM spent half of that time on the addresses
        of a stage's thirty arrays. Without it a layer norm takes 1.01 to 1.04 times as long."""
        with _option(None if self._has_tiles() else "disable-lsr", "true", "false"):
            super()._finalize_specific()


@contextmanager
def _option(name, value, default):
    """Set an option of LLVM, if it is not None; under Numba's lock, so that no other function is compiled with it."""
    is_set = name is not None and _KNOWS_OPTIONS
    if is_set:
        binding.set_option("", f"-{name}={value}")
    try:
        yield
    finally:
        if is_set:
            binding.set_option("", f"-{name}={default}")


def _second_passes(codegen):
    """Return LLVM's own passes, without unrolling: loops over units are vectorised anyway, and for the others it costs
    an eighth of a kernel's compile time and gains nothing."""
    level = min(_LEVEL, config.OPT)
    if not hasattr(codegen, "_pass_builder"):  # before Numba 0.62
        return codegen._module_pass_manager(opt=level)
    tuning = binding.create_pipeline_tuning_options(speed_level=level)
    tuning.loop_vectorization, tuning.slp_vectorization = config.LOOP_VECTORIZE, config.SLP_VECTORIZE
    tuning.loop_unrolling = False
    builder = binding.create_pass_builder(_target_machine(codegen), tuning)
    return builder.getModulePassManager(), builder


@cache
def _target_machine(codegen):
    """Return what LLVM's passes know of the CPU: Numba's own, but loops use whole registers of 512 bits. On Intel's
    CPUs LLVM prefers half of one, which spares the clock of a loop by itself; here the tiles use whole ones anyway.

    The gates of 64 and more units take 0.6 to 0.75 of the time (Emerald Rapids).
    """
    if VECTOR_BYTES < 64:
        return codegen._tm
    triple, name, features = codegen.magic_tuple()
    target, features = binding.Target.from_triple(triple), f"{features},-prefer-256-bit"
    return target.create_target_machine(cpu=name, features=features, opt=min(_LEVEL, config.OPT))


def _call_of(fndesc, libraries):
    """Return what emits a call of a function, as Numba does, but without the thirty instructions that pass on an
    exception: kernels and what they call raise none. Compiling these took a twentieth of the time."""

    def call(context, builder, signature, arguments):
        function = context.declare_function(builder.module, fndesc)
        with builder.goto_entry_block():
            result = builder.alloca(context.call_conv.get_return_type(fndesc.restype).pointee)
        given = context.get_arg_packer(fndesc.argtypes).as_arguments(builder, arguments)
        _, error = builder.function.args[:ABI_ARGUMENTS]
        builder.call(function, [result, error, *given])
        return context.get_returned_value(builder, fndesc.restype, builder.load(result))

    call.signature, call.libs = fndesc.argtypes, libraries
    return call


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    """Lowers as Numba does, but registers a function with `no_compile`, so that its callers find it."""

    _name = "rnnkit_lowering"

    def run_pass(self, state):
        kind = _LinkedLibrary if state.flags.no_compile else _KernelLibrary
        library = state.library = kind(state.targetctx.codegen(), state.func_id.func_qualname)
        library.enable_object_caching()
        super().run_pass(state)
        if not state.flags.no_compile:
            return True
        fndesc, environment = state.cr.fndesc, state.cr.env
        # Identifies the function to callers; nobody calls the object, so it has no address.
        entry = _dynfunc.make_function(fndesc.lookup_module(), fndesc.qualname, "", 0, environment, (library,))
        # The libraries of its callees come after its own: the linker takes only symbols that are already undefined.
        call = _call_of(fndesc, (library, *library.linked))
        state.targetctx.insert_func_defn([(call, entry, fndesc.argtypes)])
        state.cr = state.cr._replace(cfunc=entry)
        return True


class LinkingCompiler(Compiler):
    """Emits code only for kernels, which Python calls; everything else is linked into its callers."""

    def __init__(self, typingctx, targetctx, library, args, return_type, flags, locals):
        flags, typingctx = InternedFlags(flags), cached_context(typingctx)
        flags.no_compile = flags.no_cpython_wrapper
        targetctx = targetctx.subtarget(typing_context=typingctx)
        super().__init__(typingctx, targetctx, library, args, return_type, flags, locals)

    def define_pipelines(self):
        [pipeline] = super().define_pipelines()
        pipeline.passes = [
            (_Lowering if step is NativeLowering else step, description)
            for step, description in pipeline.passes
            if step.__name__ not in _SKIPPED
        ]
        pipeline.finalize()
        return [pipeline]
