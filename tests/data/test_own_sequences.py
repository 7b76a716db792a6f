"""Own sequences and series: FASTA, FASTQ, arrays and tables; splits and refusals."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cosformer.data import load_dataset
from cosformer.data.vocabulary import Channels, Ids, Letters, vocabulary_from_json

RECORDS = "".join(f">seq{i} label={'ab'[i % 2]}\nACGTacgt\nAC{'GT'[i % 2] * (i + 1)}\n" for i in range(40))


def load(name: str, path: Path, **options: Any) -> Any:
    return load_dataset(name, path=str(path), **options)


def test_fasta_records_are_rows_with_the_label_of_their_header(tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_text(RECORDS)
    (tmp_path / "b.fasta.gz").write_bytes(gzip.compress(RECORDS.encode()))
    for name in ("a.fa", "b.fasta.gz"):
        found = load("sequences", tmp_path / name, target="class")
        assert found.class_names == ("a", "b") and found.choices == {"alphabet": "dna"}
        assert {split: len(part) for split, part in found.splits.items()} == {"train": 32, "valid": 4, "test": 4}
        train = found.splits["train"]
        for row, label in zip(train.tokens, train.labels, strict=True):
            assert found.vocabulary.decode(row).startswith(f"<s>ACGTACGTAC{'GT'[label]}")


def test_a_class_may_be_a_file_and_a_record_four_lines(tmp_path: Path) -> None:
    for name in ("coding", "other"):
        (tmp_path / f"{name}.fq").write_text(
            "".join(f"@r{i}\nGAUUACA{'U' * i}\n+\n{'I' * (7 + i)}\n" for i in range(10))
        )
    found = load("sequences", tmp_path, target="class")
    assert found.class_names == ("coding", "other") and found.choices == {"alphabet": "rna"}
    with pytest.raises(ValueError, match=r"coding.fq, line 1: no label=\.\.\. in the header"):
        load("sequences", tmp_path / "coding.fq", target="class")


def test_without_labels_sequences_are_a_stream_with_an_end_after_each(tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_text(RECORDS)
    (tmp_path / "genome.fna").write_text(">chr1\n" + "ACGT" * 500 + "\n")
    found = load("sequences", tmp_path / "a.fa")
    assert all(row[-1] == found.vocabulary.eos_id for part in found.splits.values() for row in part.tokens)
    found = load("sequences", tmp_path / "genome.fna", valid=0.2)
    flat = np.concatenate([part.tokens.flat for part in found.splits.values()])
    assert len(flat) == 2_001 and (flat == found.vocabulary.eos_id).sum() == 1
    assert len(found.splits["valid"].tokens.flat) == pytest.approx(400, abs=25)


def test_arrays_of_whole_numbers(tmp_path: Path) -> None:
    rows = np.arange(200).reshape(20, 10) % 7
    np.save(tmp_path / "x.npy", rows)
    np.save(tmp_path / "x.labels.npy", np.arange(20) % 2)
    lengths = np.arange(1, 21)
    np.savez(tmp_path / "z.npz", events=np.arange(210) % 7, lengths=lengths, labels=np.linspace(0, 1, 20))
    found = load("sequences", tmp_path / "x.npy", target="class")
    assert found.vocabulary.count == 7 and found.choices == {"num_ids": 7} and found.class_names == ("0", "1")
    assert found.splits["train"].tokens[0].tolist()[1:-1] in rows.tolist()
    found = load("sequences", tmp_path / "z.npz", target="number", num_ids=9)
    assert found.vocabulary.size == 13
    assert sorted(n - 2 for part in found.splits.values() for n in part.tokens.lengths) == lengths.tolist()


def test_vocabularies_are_kept(tmp_path: Path) -> None:
    letters = vocabulary_from_json(Letters("ACGT").save(tmp_path), tmp_path)
    assert isinstance(letters, Letters) and letters.encode(["acG"])[0].tolist() == [0, 1, 2]
    ids = vocabulary_from_json(Ids(5).save(tmp_path), tmp_path)
    assert isinstance(ids, Ids) and ids.decode(np.array([6, 1, 7])) == "<s> 1 </s>"
    channels = vocabulary_from_json(Channels(["a"], [0.5], [2.0]).save(tmp_path), tmp_path)
    assert isinstance(channels, Channels) and (channels.names, channels.mean, channels.scale) == (["a"], [0.5], [2.0])


# --- series


def readings(rooms: int = 12, steps: int = 20) -> str:
    lines = [
        f"{t},{r},{20 + t % 7 + r},{t % 3},{'warm' if r % 2 else 'cold'}" for t in range(steps) for r in range(rooms)
    ]
    return "\n".join(["time,room,temp,humidity,kind", *lines]) + "\n"


def test_arrays_of_readings_keep_their_shape(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((30, 20, 2))
    np.save(tmp_path / "y.npy", values)
    np.save(tmp_path / "y.labels.npy", np.array(["up", "down", "flat"])[np.arange(30) % 3])
    found = load("series", tmp_path / "y.npy", target="class")
    assert found.class_names == ("down", "flat", "up") and found.vocabulary.names == ["channel1", "channel2"]
    train = found.splits["train"].tokens
    assert train[0].shape == (20, 2) and train.flat.dtype == np.float32
    np.testing.assert_allclose(found.vocabulary.mean, train.flat.mean(0), atol=1e-6)
    np.testing.assert_allclose(found.vocabulary.scale, train.flat.std(0), rtol=1e-5)


def test_to_forecast_every_series_is_cut_in_time(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.arange(400, dtype=np.float32).reshape(4, 100))
    found = load("series", tmp_path / "y.npy", valid=0.1, test=0.2)
    ends = {split: (part.tokens.lengths.tolist(), part.labels.tolist()) for split, part in found.splits.items()}
    assert ends == {"train": ([70] * 4, [0] * 4), "valid": ([80] * 4, [70] * 4), "test": ([100] * 4, [80] * 4)}
    assert found.splits["test"].tokens[1][0, 0] == 100, "what is before is there as context"


def test_a_table_of_readings_is_grouped_and_put_in_order_of_time(tmp_path: Path) -> None:
    header, *lines = readings().splitlines()
    (tmp_path / "a.csv").write_text("\n".join([header, *reversed(lines)]) + "\n")
    found = load("series", tmp_path / "a.csv", target="class", series="room", label="kind")
    assert found.choices == {"series": "room", "label": "kind", "time": "time", "channels": "temp,humidity"}
    assert sum(map(len, found.splits.values())) == 12
    for part in found.splits.values():
        for row, label in zip(part.tokens, part.labels, strict=True):
            room = row[0, 0] - 20
            assert row[:, 0].tolist() == [20 + t % 7 + room for t in range(20)]
            assert found.class_names[label] == ("warm" if room % 2 else "cold")


def test_a_time_that_comes_twice_asks_for_the_column_of_the_series(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(readings())
    with pytest.raises(ValueError, match=r"a.csv: time 0 appears more than once; name the column .*--data.options.se"):
        load("series", tmp_path / "a.csv", channels="temp")
    assert len(load("series", tmp_path / "a.csv", channels="temp", series="room").splits["train"]) == 12


ARRAYS: dict[str, Any] = {
    "nan.npy": np.where(np.arange(60).reshape(3, 20) == 25, np.nan, 1.0),
    "negative.npy": np.array([[1, 2], [3, -4]]),
    "words.npy": np.array(["a", "b"]),
    "deep.npy": np.zeros((2, 2, 2, 2)),
}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nan.npy", "nan.npy, row 2: step 6 holds nan; readings must be finite"),
        ("negative.npy", "negative.npy, row 2: the id -4 is negative; ids count from 0"),
        ("words.npy", "words.npy has the type <U1; expected whole numbers"),
        ("deep.npy", r"deep.npy has the shape \[2, 2, 2, 2\]; expected \[rows, steps, channels\]"),
        ("ragged.npy", "ragged.npy holds rows of unequal length .* np.savez"),
        ("empty.npy", "empty.npy is empty"),
        ("text.npy", "text.npy cannot be read as an array"),
        ("short.npz", "lengths add up to 5 and there are 6 steps"),
        ("two.npz", "two.npz holds a, b; expected one array of rows"),
    ],
)  # fmt: skip
def test_arrays_that_cannot_be_rows_are_refused(name: str, said: str, tmp_path: Path) -> None:
    for file, array in ARRAYS.items():
        np.save(tmp_path / file, array)
    np.save(tmp_path / "ragged.npy", np.array([[1, 2], [3]], object), allow_pickle=True)
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "text.npy").write_text("no array")
    np.savez(tmp_path / "short.npz", x=np.arange(6), lengths=np.array([2, 3]))
    np.savez(tmp_path / "two.npz", a=np.arange(6), b=np.arange(6))
    real = name in ("nan.npy", "deep.npy")
    with pytest.raises(ValueError, match=said):
        load("series" if real else "sequences", tmp_path / name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a.fa is empty"),
        ("ACGT\n", "a.fa, line 1: expected a header that begins with >"),
        (">a\nACGT\n>b\n>c\nAC\n", "a.fa, line 3: the record '>b' has no sequence"),
        (">a\nACGTACGTACGTACGT\n>b\nAC!T\n", "a.fa, line 3: the letter '!' is not in the dna alphabet"),
        ("@a\nACGT\n+\nIII\n", r"a.fa, line 1: not a FASTQ record of four lines"),
        (">a\nACG\xff\n", "a.fa, line 2: byte 3 .* is not valid utf-8"),
    ],
)  # fmt: skip
def test_bad_fasta_is_refused_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=said):
        load("sequences", tmp_path / "a.fa")


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (("2,22,", "2,nan,"), {}, "a.csv, line 4: column 'temp' holds 'nan'; readings must be finite"),
        (("2,22,", "2,,"), {}, "a.csv, line 4: column 'temp' holds ''; readings must be finite"),
        (("0,3,", "noon,3,"), {}, "a.csv, line 5: column 'time' holds 'noon'; expected a number or a time"),
        (("2,23,1,cold", "2,23,1,hot"), {"target": "class", "label": "kind"}, "series '2' has the label .* a series "
                                                                              "has one label"),
        (("", ""), {"channels": "temp,wind"}, "unknown column 'wind'"),
        (("", ""), {"series": "rom"}, "unknown column 'rom'; did you mean 'room'"),
    ],
)  # fmt: skip
def test_bad_readings_are_refused_with_their_line(change: tuple, options: dict, said: str, tmp_path: Path) -> None:
    text = readings()
    (tmp_path / "a.csv").write_text(text.replace(*change, 1) if change[0] else text)
    with pytest.raises(ValueError, match=said):
        load("series", tmp_path / "a.csv", **{"series": "room"} | options)
