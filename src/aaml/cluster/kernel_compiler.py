"""How a kernel is compiled: to machine code where Python or an address calls it, else for the kernels that call it.

numba writes machine code for every kernel. For one that cannot be called from Python nobody runs it: its callers hold
their own, made of its optimised lines in LLVM's language. Such a kernel is a `Part` here, which is these lines alone.
(Where they are not optimised before, kernels compile faster still, but run slower by a seventh.)
"""

from typing import Any, Self

from llvmlite import binding as llvm  # type: ignore[import-untyped]
from numba.core.caching import CompileResultCacheImpl
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, CompileResult, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.environment import lookup_environment
from numba.core.typed_passes import NativeLowering

_PART = "part"  # as what it is kept, in place of numba's kinds
_ENVIRONMENT = "_ZN08NumbaEnv"  # with this begin the names of places for what a kernel has of Python's


class _NoMachineCode:
    """Stands for the generator of machine code, where there is none with a place for an environment."""

    @staticmethod
    def set_env(_name: str, _environment: Any) -> None:
        """Leave it to those who call the part."""


class Part(JITCodeLibrary):
    """The code of a kernel that only kernels call."""

    codegen = _NoMachineCode

    @classmethod
    def kept(cls, codegen: Any, name: str, code: bytes) -> Self:
        """Make it of what was kept."""
        part = cls(codegen, name)
        part._final_module = llvm.parse_bitcode(code)
        part._finalize_final_module()
        return part

    def get_pointer_to_function(self, _name: str) -> int:
        """Return 0, a pointer to nothing."""
        self._ensure_finalized()
        return 0

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        """Return what is kept of it."""
        return self.name, _PART, self._get_module_for_linking().as_bitcode()

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    """Writes a kernel in LLVM's language, and compiles what is no part."""

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        codegen = state.targetctx.codegen()
        if state.flags.no_cpython_wrapper:
            state.library = Part(codegen, state.func_id.func_qualname)
            return bool(super().run_pass(state))
        super().run_pass(state)
        for name in [each.name for each in state.library._final_module.global_variables]:  # noqa: SLF001
            environment = lookup_environment(name) if name.startswith(_ENVIRONMENT) else None
            if environment is not None:
                codegen.set_env(name, environment)
        return True


class KernelCompiler(CompilerBase):
    """numba's compiler with this lowering."""

    def define_pipelines(self) -> list[Any]:
        """Return the passes."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [(_Lowering if each is NativeLowering else each, what) for each, what in passes.passes]
        passes.finalize()
        return [passes]


class KernelResults(CompileResultCacheImpl):
    """Makes kernels of what was kept of them."""

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        """Return a kernel. A part has no machine code to load."""
        (name, kind, code), described, environment, signature, _, _, annotation, at_load, environments = payload
        if kind != _PART:
            return super().rebuild(target_context, payload)
        part = Part.kept(target_context.codegen(), name, code)
        result: Any = CompileResult
        return result(
            target_context=target_context, typing_context=target_context.typing_context, library=part,
            environment=environment, entry_point=target_context.get_executable(part, described, environment),
            fndesc=described, type_annotation=annotation, signature=signature, objectmode=False, lifted=(),
            typing_error=None, call_helper=None, metadata=None, reload_init=at_load, referenced_envs=environments,
        )  # fmt: skip
