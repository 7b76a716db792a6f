"""Triton's interpreter as a stand-in for a GPU: made faithful for bfloat16, and watched for stray reads and writes."""

import sys

import pytest
import torch
from packaging.version import Version

triton = pytest.importorskip("triton")


def _rounded_to_bfloat16(np, x):
    bits = np.ascontiguousarray(x).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded[np.isnan(x)] = 0x7FC0
    return rounded.reshape(x.shape)


def _faithful(patch, interpreter):
    """The interpreter multiplies the bit patterns of bfloat16 operands, and truncates float32 to bfloat16."""
    import numpy as np

    builder, kinds, handle = interpreter.InterpreterBuilder, interpreter.tl, interpreter.TensorHandle
    dot, cast = builder.create_dot, builder.cast_impl

    def wide(x):
        if x.dtype.scalar != kinds.bfloat16:
            return x
        return handle((x.data.astype(np.uint32) << 16).view(np.float32), kinds.float32)

    def rounding_cast(self, x, kind):
        if x.dtype.scalar == kinds.float32 and kind.scalar == kinds.bfloat16:
            return handle(_rounded_to_bfloat16(np, x.data), kind.scalar)
        return cast(self, x, kind)

    patch.setattr(builder, "create_dot", lambda self, a, b, *rest: dot(self, wide(a), wide(b), *rest))
    patch.setattr(builder, "cast_impl", rounding_cast)
    patch.setattr(builder, "create_fp_trunc", rounding_cast)


def _quick(patch, interpreter):
    """Caches the setup that Triton's interpreter repeats for each nested call; once per launch and file is enough."""
    launch, prepared = interpreter.GridExecutor.__call__, set()

    def run(self, *arguments, **options):
        prepared.clear()
        return launch(self, *arguments, **options)

    def call(self, *arguments, **options):
        if self.fn.__module__ not in prepared:
            interpreter._patch_lang(self.fn)
            prepared.add(self.fn.__module__)
        return self.rewrite()(*arguments, **options)

    patch.setattr(interpreter.GridExecutor, "__call__", run)
    patch.setattr(interpreter.InterpretedFunction, "__call__", call)


def _interpret_the_library(patch, interpreter):
    """Triton's own functions in Triton were made for a GPU where triton was imported without TRITON_INTERPRET."""
    import triton.language as language
    from triton.runtime.jit import JITFunction

    made = {}
    for module in (language, language.standard):
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                made.setdefault(value, interpreter.InterpretedFunction(value.fn))
                patch.setattr(module, name, made[value])


@pytest.fixture(
    scope="module"
)  # not package: without __init__.py that lasts to the end, and its variable reaches every later process
def interpreter():
    """The interpreter's module, with the kernels loaded for it."""
    if Version(triton.__version__) < Version("3.4"):
        pytest.skip("Triton 3.4: older interpreters do not run with numpy 2.4")
    if "cosformer.ops.triton.kernels" in sys.modules:
        pytest.skip("the kernels are already loaded for a GPU in this process")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        from triton.runtime import interpreter

        _interpret_the_library(patch, interpreter)
        import cosformer.ops.triton.launch  # noqa: F401

        _faithful(patch, interpreter)
        patch.setattr("cosformer.ops.triton._INTERPRETED_DTYPES", [torch.float32, torch.float16, torch.bfloat16])
        _quick(patch, interpreter)
        yield interpreter
    for name in ("kernels", "launch"):
        sys.modules.pop(f"cosformer.ops.triton.{name}", None)


@pytest.fixture
def small(interpreter, monkeypatch):
    """Segments of 64 positions and tiles of 32 or 64, so that short sequences have several of everything."""
    from cosformer.ops.triton import launch
    from cosformer.ops.triton.plan import SIZES, Sizes

    monkeypatch.setattr(launch, "segment_length", lambda width: 64)
    monkeypatch.setattr(launch, "SCAN_BLOCK", 1024)
    monkeypatch.setattr(launch, "STEP_BLOCK", 64)
    for kernel, sizes in SIZES.items():
        for key in sizes:
            monkeypatch.setitem(sizes, key, Sizes(64 if kernel == "segment_sums" else 32, 32, 64, 4, 1))
    return launch


class Watch:
    """Looks at every address: inside one of the launch's tensors, and written by one program only."""

    def __init__(self, interpreter, patch):
        import numpy as np

        self.np, self.writers, self.regions, self.launches = np, {}, [], 0
        builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
        load, store, call = builder.create_masked_load, builder.create_masked_store, executor.__call__

        def watched_load(this, pointers, mask, *rest):
            self._inside(pointers, mask, "load")
            return load(this, pointers, mask, *rest)

        def watched_store(this, pointers, value, mask, *rest):
            self._write(self._inside(pointers, mask, "store"), tuple(this.grid_idx))
            return store(this, pointers, value, mask, *rest)

        def watched_call(this, *arguments, **options):
            tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
            self.regions = [self._region(x) for x in tensors]
            self.writers, self.launches = {}, self.launches + 1
            return call(this, *arguments, **options)

        patch.setattr(builder, "create_masked_load", watched_load)
        patch.setattr(builder, "create_masked_store", watched_store)
        patch.setattr(executor, "__call__", watched_call)

    @staticmethod
    def _region(x):
        last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else -1
        return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()

    def _inside(self, pointers, mask, what):
        np, size = self.np, pointers.get_element_ty().primitive_bitwidth // 8
        found = np.asarray(pointers.data, dtype=np.uint64)[np.asarray(mask.data, dtype=bool)]
        inside = np.zeros(found.shape, bool)
        for first, end in self.regions:
            inside |= (found >= first) & (found + size <= end)
        assert inside.all(), f"{what} outside every tensor: {int((~inside).sum())} addresses"
        return found

    def _write(self, addresses, program):
        assert len(self.np.unique(addresses)) == addresses.size, "one store writes an address twice"
        for address in addresses.tolist():
            first = self.writers.setdefault(address, program)
            assert first == program, f"programs {first} and {program} write one address"


@pytest.fixture
def watch(interpreter, monkeypatch):
    return Watch(interpreter, monkeypatch)
