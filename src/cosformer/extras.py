"""Optional dependencies: one place that knows which pip extra brings a package."""

from importlib import import_module
from types import ModuleType


class MissingExtra(RuntimeError):
    """A package of an optional extra is not installed; the message holds the pip line that brings it."""


def require(extra: str, package: str) -> ModuleType:
    """Import ``package``, or raise :class:`MissingExtra` that names the extra to install."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:
            raise
        raise MissingExtra(
            f"this needs the package {package!r}, which is not installed; get it with:\n    pip install "
            f"'cosformer[{extra}]'"
        ) from None
