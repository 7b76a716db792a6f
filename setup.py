"""The part of the build that pyproject.toml cannot say: the native kernels, an extension the package works without."""

from pathlib import Path

from setuptools import Extension, setup

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

setup(
    ext_modules=[
        Extension(
            "cosformer.ops.native._kernels",
            sources=[str(path) for path in sorted(FOLDER.glob("*.c"))],
            depends=[str(path) for path in sorted(FOLDER.glob("*.h"))],
            extra_compile_args=FLAGS,
            libraries=["m", "dl", "pthread"],
            optional=True,  # without a compiler the package installs and says which backend it uses
        )
    ]
)
