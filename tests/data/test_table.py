"""The table, the loading function and what importing them costs."""

import inspect
import subprocess
import sys

import pytest

from cosformer.data import DATASETS, dataset_function, load_dataset


@pytest.mark.parametrize("name", DATASETS)
def test_every_entry_is_a_function_with_options_by_name(name: str) -> None:
    parameters = inspect.signature(dataset_function(name)).parameters.values()
    assert parameters
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in parameters)


def test_unknown_names_and_options_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown data set 'zzz'; known: python, wikitext2"):
        load_dataset("zzz")
    with pytest.raises(ValueError, match="no option 'depth'; it has: train, valid, test, seed"):
        load_dataset("listops-small", depth=3)


def _modules_after(imports: str) -> set[str]:
    code = f"import sys, {imports}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_table_and_the_commands_import_nothing_heavy() -> None:
    loaded = _modules_after("cosformer.data, cosformer.commands.data, cosformer.lab.bench.data")
    assert not loaded & {"numpy", "torch", "tokenizers", "datasets", "PIL"}


def test_no_family_imports_models_torch_or_the_packages_of_the_extra() -> None:
    loaded = _modules_after(", ".join(module for module, _, _ in DATASETS.values()))
    assert not loaded & {"torch", "tokenizers", "datasets", "PIL", "cosformer.models", "cosformer.attention"}
