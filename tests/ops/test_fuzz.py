"""The first cases of the fuzz (``make fuzz`` runs as many as wanted), and that it notices a wrong operator."""

from typing import Any

import pytest

from fuzz import cases
from fuzz.cases import FORMS, run_case

SEED, COUNT, PARTS = 0, 800, 16


@pytest.mark.parametrize("part", range(PARTS))
def test_random_calls_are_right(part: int) -> None:
    wrong = []
    for number in range(part * COUNT // PARTS, (part + 1) * COUNT // PARTS):
        case, errors = run_case(SEED, number)
        if not all(error.allowed <= 1 for error in errors.values()):
            wrong.append(f"make fuzz SEED={SEED} FIRST={number} COUNT=1: {errors} of {case}")
    assert not wrong, "\n".join(wrong)


def spoil(name: str, options: dict[str, Any]) -> dict[str, Any]:
    if name == "angle" and options.get("max_len"):
        return options | {"max_len": options["max_len"] + 1}
    if name == "mask":
        return options | {"key_mask": None}
    if name == "eps":
        return options | {"eps": 2 * options["eps"]}
    if name == "decay" and "decay" in options:
        return options | {"decay": options["decay"] / 2}
    return options


@pytest.mark.parametrize("name", ["angle", "mask", "eps", "decay"])
def test_a_wrong_operator_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = cases.cosformer_attention
    monkeypatch.setattr(cases, "cosformer_attention", lambda *args, **options: right(*args, **spoil(name, options)))
    found = [run_case(SEED, number) for number in range(60)]
    assert sum(any(not error.allowed <= 1 for error in errors.values()) for _, errors in found) >= 3


def test_every_form_is_drawn() -> None:
    import numpy as np

    drawn = [cases.draw(np.random.default_rng([SEED, number])) for number in range(COUNT)]
    assert {case.form for case in drawn} == set(FORMS)
    assert {case.dtype for case in drawn} == set(cases.ROUNDING)
    assert {case.mask for case in drawn} == {"none", "clean", "dirty"}
    assert {layout for case in drawn for layout in case.layouts} == set(cases.LAYOUTS)
