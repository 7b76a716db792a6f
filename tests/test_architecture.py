"""The architecture: imports go one way, and every mechanism, data set, command and benchmark is in its table."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "cosformer"

# Modules that anyone may import, and that import nothing of ours but each other
BASE = {
    "_version",
    "extras",
    "json_files",
    "locks",
    "terminal",
    "suggest",
    "renamed",
    "machine",
    "home",
    "processor",
    "shipped",
    "output_file",
    "records_file",
    "plugins",
}

# layer -> the other layers it may import
ALLOWED: dict[str, set[str]] = {
    "ops": set(),
    "attention": {"ops"},
    "nn": {"attention", "ops"},
    "models": {"nn", "attention", "ops"},
    "hf": {"models", "nn", "attention", "ops"},
    "jax": set(),
    "data": set(),
    "tasks": {"experiment", "recipes", "data", "models", "nn", "attention", "ops"},
    "experiment": set(),
    "recipes": {"experiment", "data"},  # of data the summary alone
    "train": {"experiment", "tasks", "data", "models", "nn", "attention", "ops", "hf"},
    # an attention's matrix is attn(q, k, identity); everything else comes from records. Never trains, never times
    "runs": {"experiment"},
    "report": {"attention", "experiment", "runs"},
    "linearize": {"hf", "models", "nn", "attention", "ops"},
}
ALLOWED["prediction"] = {*ALLOWED["train"], "train"}
ALLOWED["bench"] = {*ALLOWED["train"], "train", "linearize", "recipes", "runs", "report"}
ALLOWED["commands"] = {*ALLOWED["bench"], "bench", "prediction"}
ALLOWED["cli"] = {"commands"}
ALLOWED["__main__"] = {"cli"}
ALLOWED["__init__"] = {"ops", "attention", "nn", "models", "hf", "prediction", "data", "recipes", "runs", "tasks"}

# packages of others that a layer may import when it is imported itself; inside functions it may import more
AT_IMPORT: dict[str, set[str]] = {
    "ops": {"torch", "numpy"},
    "attention": {"torch"},
    "nn": {"torch"},
    "data": {"numpy", "torch"},
    "experiment": set(),
    "report": {"numpy"},
    "runs": set(),
    "plugins": set(),
    "recipes": set(),
    "commands": set(),
    "cli": set(),
    "extras": set(),
    "json_files": set(),
    "locks": set(),
    "output_file": set(),
    "records_file": set(),
    "terminal": set(),
    "suggest": set(),
    "renamed": set(),
    "machine": set(),
    "home": set(),
    "processor": set(),
    "shipped": set(),
    "_version": set(),
    "__init__": set(),
    "__main__": set(),
}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if "__pycache__" not in path.parts)


def layer_of(path: Path) -> str:
    """The folder, or the module that lies beside the folders."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names of everything that the code imports, wherever the statement stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_import(tree: ast.Module) -> Iterator[str]:
    """What is imported when the module is, types apart."""
    for node in tree.body:
        for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not for_types and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from imported(node)


def test_imports_go_one_way() -> None:
    wrong = []
    for path in modules():
        layer = layer_of(path)
        assert layer in ALLOWED or layer in BASE, f"{layer} is no layer; add it to ALLOWED with what it may import"
        allowed = ALLOWED.get(layer, set()) | BASE | {layer}
        for name in imported(ast.parse(path.read_text())):
            top, *rest = name.split(".")
            is_ours = (
                top == "cosformer" and rest and ((SOURCE / rest[0]).is_dir() or (SOURCE / f"{rest[0]}.py").exists())
            )
            if is_ours and layer_of(SOURCE.joinpath(*rest[:2])) not in allowed:
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong, wrong


# modules that are imported by functions alone, and what they then need
LAZY = {"ops/triton/kernels.py": {"triton"}, "ops/triton/launch.py": {"triton"}}


def test_heavy_packages_are_imported_where_they_are_allowed() -> None:
    wrong = []
    for path in modules():
        layer = layer_of(path)
        if layer in AT_IMPORT:
            more = LAZY.get(str(path.relative_to(SOURCE)), set())
            for name in at_import(ast.parse(path.read_text())):
                top = name.split(".")[0]
                if top not in sys.stdlib_module_names and top not in AT_IMPORT[layer] | more | {"cosformer"}:
                    wrong.append(f"{path.relative_to(SOURCE)} imports {name} when it is imported itself")
    assert not wrong, wrong


def test_the_layers_of_the_map_have_no_circle() -> None:
    def reach(layer: str) -> set[str]:
        return set().union(*({other} | reach(other) for other in ALLOWED[layer]))

    for layer in ALLOWED:
        assert layer not in reach(layer)


def test_every_attention_is_in_its_table() -> None:
    from cosformer.attention import ATTENTIONS, Attention, attention_class

    table = {(module, name) for module, name in ATTENTIONS.values()}
    for path in (SOURCE / "attention").glob("*.py"):
        module = import_module(f"cosformer.attention.{path.stem}") if path.stem != "__init__" else None
        for name, value in vars(module).items() if module else ():
            own = isinstance(value, type) and issubclass(value, Attention) and value.__module__ == module.__name__
            if own and hasattr(value, "traits"):
                assert (module.__name__, name) in table, f"{name} of {path.name} is missing from ATTENTIONS"
    for key, (module, name) in ATTENTIONS.items():
        assert attention_class(key).__name__ == name
        assert name == "".join(part.capitalize() for part in key.split("_")), f"class {name} for the key {key!r}"
        assert (SOURCE.parent / Path(*module.split(".")).with_suffix(".py")).exists()


def test_every_data_set_is_in_its_table() -> None:
    from cosformer.data import DATASETS, dataset_function

    table = {(module, function) for module, function, _ in DATASETS.values()}
    for path in (SOURCE / "data").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            loads = isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns) == "Dataset"
            # functions with keyword-only options load a set by name; others only pass sets on
            if loads and not node.name.startswith("_") and not node.args.args:
                name = (f"cosformer.data.{path.stem}", node.name)
                assert name in table, f"{node.name} of {path.name} is missing from DATASETS"
    for name in DATASETS:
        assert callable(dataset_function(name))


def test_every_command_and_benchmark_is_in_its_table() -> None:
    from cosformer.cli import COMMANDS
    from cosformer.commands.bench import BENCHES

    commands = {path.stem for path in (SOURCE / "commands").glob("*.py")} - {"__init__", "options"}
    assert commands == {*COMMANDS}
    runnable = {
        path.stem
        for path in (SOURCE / "bench").glob("*.py")
        if re.search(r"^def measurements\(", path.read_text(), re.MULTILINE)
    }
    # the zoo is `bench attention --attentions`, gpu `bench attention --device cuda`
    assert runnable == {*BENCHES, "zoo", "gpu"}


def test_no_file_is_called_after_nothing() -> None:
    assert not [path for path in modules() if path.stem in ("utils", "helpers", "common", "misc")]
