"""The parts of the build that pyproject.toml cannot say: the README of a package index, and the native kernels, which
the package works without.

They are a plain C library, loaded by ctypes: no symbol of Python is in it, so one wheel serves every Python of a
platform. ``COSFORMER_BUILD=any`` makes the wheel for all other platforms, without kernels.
"""

import os
import platform
import re
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# relative paths: setuptools refuses others in an sdist
FOLDER = Path("src/cosformer/ops/native")
FLAGS = [
    "-std=gnu11",
    "-O3",
    "-g0",
    "-fvisibility=hidden",
    "-falign-loops=64",  # the inner loops are short: where they start in a cache line is worth some percent
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",  # never -ffast-math: it turns on flush-to-zero for the whole process
    "-Wno-psabi",
]
# by their file names, needed or not: glibc from 2.34 on has both in libc, older ones, whose symbols pool.c names, have
# not
GLIBC = ["-Wl,--no-as-needed", "-l:libdl.so.2", "-l:libpthread.so.0"]


def readme() -> str:
    """README.md with absolute links to the release's tag: a package index has no other file of the repository."""
    repository = tomllib.loads(Path("pyproject.toml").read_text())["project"]["urls"]["Repository"]
    tag = "v" + re.findall(r'"(.+)"', Path("src/cosformer/_version.py").read_text())[0]

    def absolute(link: re.Match[str]) -> str:
        picture, words, path = link.groups()
        path = path if path[0] != "#" else f"README.md{path}"
        return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/{tag}/{path})"

    return re.sub(r"(!?)\[([^]]*)\]\((?!https://)([^)]+)\)", absolute, Path("README.md").read_text(encoding="utf-8"))


class BuildKernels(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        """Without the tag of one interpreter; ``library.py`` looks for this name."""
        return f"{fullname.replace('.', '/')}.so"

    def build_extensions(self) -> None:
        if self.compiler.compiler_type == "unix":  # an interpreter's own rpath is a folder of this machine
            self.compiler.linker_so = [x for x in self.compiler.linker_so if not x.startswith("-Wl,-rpath")]
        super().build_extensions()


class AnyPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


KERNELS = Extension(
    "cosformer.ops.native._kernels",
    sources=[str(path) for path in sorted(FOLDER.glob("*.c"))],
    depends=[str(path) for path in sorted(FOLDER.glob("*.h"))],
    extra_compile_args=FLAGS,
    extra_link_args=["-lm", *(GLIBC if platform.libc_ver()[0] == "glibc" else ["-ldl", "-lpthread"])],
    optional=True,  # without a compiler the package installs and says which backend it uses
)
setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[] if os.environ.get("COSFORMER_BUILD") == "any" else [KERNELS],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPython},
)
