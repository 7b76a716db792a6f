"""The compiled library: where it is, why it is not, which instruction set it runs."""

import ctypes
import functools
import os
import struct
from pathlib import Path

import torch

NAME = "_kernels.so"  # setup.py gives it no tag of an interpreter
#: members of call_t in cosformer.h, in order; name[n] is an array, pointers are addresses
# fmt: off
MEMBERS = [
    "B", "H", "Hk", "N", "S", "D", "E", "dtype", "relu", "causal", "normaliser", "q_len", "k_len", "eps",
    "qs[3]", "ks[3]", "vs[3]", "os[3]", "ss[3]", "sequences", "threads", "out_dtype", "reversed", "q_first", "k_first",
    "q", "k", "v", "kv", "z", "mask", "cu", "decay", "sums", "sums_den", "out", "den", "kv_next", "z_next",
    "g_out", "gs[3]", "g_kv", "g_z", "dq", "dk", "dv", "dqs[3]", "dks[3]", "dvs[3]", "dkv", "dz", "b",
]
#: members of token_t in the same way
TOKEN_MEMBERS = [
    "B", "H", "Hk", "D", "E", "dtype", "max_len", "threads", "eps", "q", "k", "v", "kv", "z", "decay", "position",
    "out", "kv_next", "z_next", "position_next",
]
# fmt: on


def _record(members: list[str]) -> struct.Struct:
    """Every member is an integer of eight bytes but eps."""
    return struct.Struct("".join("3q" if name.endswith("[3]") else "d" if name == "eps" else "q" for name in members))


CALL, TOKEN = _record(MEMBERS), _record(TOKEN_MEMBERS)
#: builds of the kernels, the widest first; the variable names one of them for tests and support
INSTRUCTION_SETS = ("avx512", "avx2", "generic")
INSTRUCTION_SET = "COSFORMER_INSTRUCTION_SET"
TOKEN_STATE_IS_FULL = 3  # what `token` returns for a state that has seen max_len tokens
DTYPES = {torch.float32: 0, torch.bfloat16: 1}
NORMALISERS = {"clamp": 0, "add": 1, "signed": 2, "none": 3}


class Library:
    """The entries of one loaded library; each takes a packed call and returns 0, or 1 when memory ran out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._dll = ctypes.CDLL(str(path))  # a call releases the interpreter lock
        for name in ("cosformer_compiler", "cosformer_pool", "cosformer_choose"):
            getattr(self._dll, name).restype = ctypes.c_char_p
        self._dll.cosformer_choose.argtypes = [ctypes.c_char_p]
        if self._dll.cosformer_call_bytes() != CALL.size or self._dll.cosformer_token_bytes() != TOKEN.size:
            raise OSError(f"{path} was built from other sources (its records are others); reinstall cosformer")
        self.forward = self._entry("cosformer_forward")
        self.backward = self._entry("cosformer_backward")
        self.step = self._entry("cosformer_step")
        self.dense = self._entry("cosformer_dense")
        self.token = self._entry("cosformer_token")
        self.release = self._dll.cosformer_release
        self.compiler: str = self._dll.cosformer_compiler().decode()
        self._dll.cosformer_runs.argtypes = [ctypes.c_char_p]
        #: those that this processor runs
        self.instruction_sets = tuple(name for name in INSTRUCTION_SETS if self._dll.cosformer_runs(name.encode()))
        self.pool: str = self._dll.cosformer_pool().decode()
        self._choose_by_environment()

    def _entry(self, name: str):
        function = self._dll[name]  # not the cached attribute: each has its own argument types
        function.argtypes = [ctypes.c_char_p]
        function.restype = ctypes.c_int
        return function

    def choose(self, name: str | None) -> None:
        """Use the build of the kernels with this name, or the widest the processor runs."""
        if name is not None and name not in INSTRUCTION_SETS:
            raise ValueError(f"{name!r} is no instruction set of the kernels; known: {', '.join(INSTRUCTION_SETS)}")
        chosen = self._dll.cosformer_choose(None if name is None else name.encode())
        if chosen is None:
            raise RuntimeError(
                f"this processor does not run the {name} kernels; it runs {', '.join(self.instruction_sets)}"
            )
        self.instructions: str = chosen.decode()

    def _choose_by_environment(self) -> None:
        name = os.environ.get(INSTRUCTION_SET)
        try:
            self.choose(name or None)
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{INSTRUCTION_SET}={name}: {error}; unset it for the widest") from None

    def describe(self) -> str:
        threads = f"{torch.get_num_threads()} threads ({self.pool})"
        return f"{self.instructions} kernels, built with {self.compiler}, {threads}"


@functools.cache
def find() -> tuple[Library | None, str]:
    """The library, or None and the reason. COSFORMER_KERNELS names another build, for example one with sanitizers."""
    if other := os.environ.get("COSFORMER_KERNELS"):
        return Library(Path(other)), ""
    path = Path(__file__).parent / NAME
    if not path.exists():
        return None, (
            "the native kernels were not built when cosformer was installed (no working C compiler then?); install a C "
            "compiler, then `pip install --force-reinstall --no-deps --no-cache-dir cosformer` (pip keeps what it "
            "built without one)"
        )
    try:
        return Library(path), ""
    except (OSError, AttributeError) as error:  # AttributeError: an entry that its sources did not have
        return None, f"the native kernels could not be loaded: {error}"


@functools.cache
def loaded() -> Library:
    library, reason = find()
    if library is None:
        raise RuntimeError(reason)
    return library
