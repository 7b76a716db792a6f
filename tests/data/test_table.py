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


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("python", "max_bytes", "abc", "data set 'python': max_bytes='abc'; it must be a whole number, e.g. 4000000"),
        ("python", "max_bytes", 2e6, "max_bytes=2000000.0; it must be a whole number"),
        ("listops", "max_length", True, "max_length=True; it must be a whole number"),
        ("text", "max_length", -5, "max_length=-5; it must be at least 1"),
        ("recall", "seed", -1, "seed=-1; it must be at least 0"),
        ("image", "lra_padding", 1, "lra_padding=1; it must be true or false"),
        ("amazon", "fraction", "half", "fraction='half'; it must be a number, e.g. 0.5"),
        ("imdb", "tokenizer", 3, "tokenizer=3; it must be text, e.g. bytes"),
        ("listops", "workers", "two", "workers='two'; it must be a whole number$"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(name: str, option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_dataset(name, **{option: value})


def _modules_after(imports: str) -> set[str]:
    code = f"import sys, {imports}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_table_and_the_commands_import_nothing_heavy() -> None:
    loaded = _modules_after("cosformer.data, cosformer.commands.data, benchmarks.data")
    assert not loaded & {"numpy", "torch", "tokenizers", "datasets", "PIL"}


def test_no_family_imports_models_torch_or_the_packages_of_the_extra() -> None:
    loaded = _modules_after(", ".join(module for module, _, _ in DATASETS.values()))
    assert not loaded & {"torch", "tokenizers", "datasets", "PIL", "cosformer.models", "cosformer.attention"}
