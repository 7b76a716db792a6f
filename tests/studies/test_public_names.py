"""The study uses what any user may use: names that are exported and documented."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "reference").glob("*.md")))
DOCUMENTED = set(re.findall(r"^::: ([\w.]+)$", REFERENCE, re.MULTILINE))


def imported(path: Path) -> list[tuple[str, str]]:
    """(module, name) of everything of cosformer that the file imports."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cosformer":
            found += [(node.module or "", alias.name) for alias in node.names]
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "cosformer"]
    return found


def is_public(module: str, name: str) -> bool:
    """Exported by the package itself, documented by its own name, or exported by a documented module."""
    if module == "cosformer" and (not name or name in import_module("cosformer").__all__):
        return True
    if f"{module}.{name}" in DOCUMENTED:
        return True
    documented = any(known == module or known.startswith(f"{module}.") for known in DOCUMENTED)
    return documented and name in getattr(import_module(module), "__all__", ())


@pytest.mark.parametrize("path", sorted((ROOT / "studies").rglob("*.py")), ids=lambda path: path.stem)
def test_a_study_imports_public_names_alone(path: Path) -> None:
    assert not [f"{module}.{name}" for module, name in imported(path) if not is_public(module, name)]


def test_a_private_name_would_be_noticed() -> None:
    assert is_public("cosformer", "cosformer_attention") and is_public("cosformer.runs", "load")
    assert not is_public("cosformer.ops.dispatch", "choose") and not is_public("cosformer.runs", "_readable")
