"""The paper's numbers: a handful read from its pages by hand, and what its own tables say about each other."""

import pytest

from cosformer.attention import ATTENTIONS
from studies.cosformer2022 import paper


def test_values_read_by_hand() -> None:
    assert paper.TABLE1["leaky_relu"] == {"loss": 2.246, "QQP": 84.46, "SST-2": 78.21, "MNLI": 74.26}
    assert paper.TABLE2["cosformer"] == {"valid": 23.5, "test": 23.1}
    assert paper.TABLE2["rfa_gate_gaussian"]["valid"] == 23.2
    assert paper.TABLE3["longformer"]["MNLI"] == 77.22
    assert paper.TABLE4["bigbird"]["pathfinder"] == 74.87
    assert paper.TABLE4["cosformer"]["retrieval"] == 61.36
    assert paper.TABLE5["inference"]["performer"][3000] == 29.5
    assert paper.TABLE5["training"]["cosformer"][4000] == 2.64
    assert paper.TABLE5["training"]["softmax"] == {1000: 6.95, 2000: 2.23, 3000: None, 4000: None}
    assert paper.TABLE6["relu"] == {"fine-tuning": 85.12, "lra": 54.20}
    assert paper.TABLE7["AAN"] == {"train": 147_000, "valid": 18_000, "test": 17_000}


@pytest.mark.parametrize("table", [paper.TABLE3, paper.TABLE4], ids=["table3", "table4"])
def test_averages_are_those_of_their_rows(table: paper.Table) -> None:
    for name, row in table.items():
        values = [value for column, value in row.items() if column != "average"]
        mean = sum(values) / len(values)
        # Sinkhorn's average on the Long-Range Arena is misprinted in the paper
        assert (abs(mean - row["average"]) < 0.006) == ((table, name) != (paper.TABLE4, "sinkhorn")), name


def test_tables_agree_with_each_other() -> None:
    for column in ("QQP", "SST-2", "MNLI"):
        assert paper.TABLE1["softmax"][column] == paper.TABLE3["softmax"][column]
    assert paper.TABLE6["cosformer"]["fine-tuning"] == paper.TABLE3["cosformer"]["average"]
    assert paper.TABLE6["cosformer"]["lra"] == paper.TABLE4["cosformer"]["average"]
    for speeds in paper.TABLE5.values():
        assert speeds.keys() == paper.TABLE4.keys()
        for row in speeds.values():
            shown = [value for value in row.values() if value is not None]
            assert shown == sorted(shown, reverse=True)  # longer is slower
    for name, row in paper.TABLE5["training"].items():
        for n, value in row.items():
            inference = paper.TABLE5["inference"][name][n]
            assert (value is None) == (inference is None)
            assert value is None or inference is None or value < inference


def test_rows_are_attentions_of_the_zoo() -> None:
    tables = [paper.TABLE1, paper.TABLE2, paper.TABLE3, paper.TABLE4, paper.TABLE6, *paper.TABLE5.values()]
    for table in tables:
        assert table.keys() <= ATTENTIONS.keys() & paper.NAMES.keys()
