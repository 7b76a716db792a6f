"""The whole of it: a stock checkpoint and text in, a linearized checkpoint out."""

import copy
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer

from cosformer.hf.attention import max_len_of
from cosformer.hf.convert import PREFIX, load_stock, read_config, with_attention, write_checkpoint
from cosformer.hf.linearized import (
    LearnedAttention,
    find_layers,
    keep_softmax,
    learned_attention,
    mechanisms,
    replaced_mechanisms,
)
from cosformer.linearize import parallel
from cosformer.linearize.measure import card, measure, precision
from cosformer.linearize.progress import Bar, Progress
from cosformer.linearize.repair import add_adapters, layer_costs, merge_adapters, repair_loss
from cosformer.linearize.settings import TRANSFER_SHARE, Settings, kept_layers
from cosformer.linearize.text import Rows, read_text, rows_of
from cosformer.linearize.transfer import TransferLayer, schedule, transfer_update

RECORD = "linearize.json"


def linearize(
    source: str,
    out: Path,
    text: list[Path],
    settings: Settings | None = None,
    *,
    maps: Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Write the model in ``source`` with linear attention to ``out``, distilled from itself on ``text``; returns the
    measurements.

    ``maps``: a linearized model that provides the initial maps. If the process is killed, the same call resumes.
    Under torchrun every process handles its share of each batch, and the first one writes.
    """
    asked = settings or Settings()
    progress = Progress(out, source, f"{', '.join(map(str, text))}; maps {maps}", asked)
    progress.check()
    words = read_text(text)
    model, dtype, settings = _student(source, asked)
    plan = learned_attention(model.config)
    kept_layers(settings.keep, plan.layers, [0.0] * len(plan.layers))  # a mistake is said now, not after the transfer
    rows = _rows(words, source, settings, plan)
    if maps is not None:
        _take_maps(model, maps)
    device = parallel.start()
    start = "swapped" if maps is None else "maps taken"
    run = _Run(model.to(device), rows, settings, progress, start, quiet or parallel.rank() > 0)
    if parallel.rank() == 0:
        progress.begin()
    run.transfer()
    run.repair()
    if parallel.rank() == 0:
        run.write(source, out, dtype)
    parallel.stop()
    return run.record


def _student(source: str, settings: Settings) -> tuple[Any, torch.dtype, Settings]:
    """The model in ``source`` with initial learned maps, in float32; its dtype on disk; settings without None."""
    config = read_config(source)
    if config.model_type.startswith(PREFIX) or config.is_encoder_decoder:
        what = "an encoder-decoder" if config.is_encoder_decoder else f"of type {config.model_type!r}"
        raise ValueError(
            f"{source} is {what}; linearize takes encoders and decoders of transformers with softmax attention"
        )
    original: Any = load_stock(source, config)
    dtype = original.dtype
    original.float()
    found = find_layers(original)
    first = found[0]
    max_len = settings.max_len or max_len_of(config)
    if max_len is None:
        raise ValueError(f"the config of {source} states no longest sequence; give max_len")
    settings = settings.resolved(causal=first.causal, max_len=max_len, head_dim=first.head_dim)
    assert settings.length is not None and settings.features is not None
    if settings.length > max_len:
        raise ValueError(f"length={settings.length} exceeds the model's longest sequence, {max_len}; give shorter rows")
    learned = LearnedAttention(
        attention=settings.attention,
        layers=[layer.name for layer in found],
        kept=[],
        num_heads=first.num_heads,
        num_key_heads=first.num_key_heads,
        head_dim=first.head_dim,
        features=settings.features,
        max_len=max_len,
        causal=first.causal,
        window=settings.window or 0,
        sinks=settings.sinks or 0,
        options={"redraw_interval": None} if settings.attention == "performer" else {},
    )
    changes: dict[str, Any] = {"cosformer_max_len": settings.max_len} if settings.max_len else {}
    model: Any = with_attention(original, attention="learned", learned=asdict(learned), **changes)
    return model.eval().requires_grad_(False), dtype, settings


def _rows(words: str, source: str, settings: Settings, plan: LearnedAttention) -> Rows:
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{source} has no tokenizer, which the text needs: {str(error).splitlines()[0]}") from None
    sizes: dict[str, Any] = {"length": settings.length, "held_out": settings.held_out, "seed": settings.seed}
    return rows_of(words, tokenizer, causal=plan.causal, **sizes)


def _take_maps(model: Any, maps: Path) -> None:
    import cosformer.hf  # noqa: F401  (registers the class of a linearized model)

    other: Any = AutoModel.from_pretrained(maps, dtype=torch.float32)
    if getattr(other.config, "learned", None) != model.config.learned:
        raise ValueError(
            f"the maps in {maps} are of {getattr(other.config, 'learned', None)}, not of {model.config.learned}"
        )
    for mine, theirs in zip(mechanisms(model).values(), mechanisms(other).values(), strict=True):
        mine.load_state_dict(theirs.state_dict())


class _Run:
    """One linearization under way: the model, its rows, and a record of what was measured."""

    def __init__(self, model: Any, rows: Rows, settings: Settings, progress: Progress, start: str, quiet: bool) -> None:
        self.model, self.rows, self.settings, self.progress, self.quiet = model, rows, settings, progress, quiet
        self.start = start  # the name of the first thing that is measured
        self.plan = learned_attention(model.config)
        # maps of another model were taught there, and a window alone has none
        self.learns_maps = start == "swapped" and self.plan.features > 0
        self.saved = progress.load()
        empty = {
            "settings": asdict(settings),
            "tokens": {},
            "measured": {},
            "transfer": [],
            "repair": [],
            "layer losses": {},
            "layer costs": {},
            "kept": [],
        }
        self.record: dict[str, Any] = self.saved["record"] if self.saved else empty

    def transfer(self) -> None:
        """Teach the maps, choose the layers that stay softmax."""
        model, settings, plan = self.model, self.settings, self.plan
        assert settings.transfer_rate is not None and settings.transfer_steps is not None
        rate, steps = settings.transfer_rate, settings.transfer_steps
        students = mechanisms(model)
        layers = {name: TransferLayer(plan.softmax(), students[name]) for name in plan.layers}
        if not self._is_done("transfer"):
            self._measure(self.start)

            def update(number: int, updates: int) -> float:
                ids, mask = self._batch(number)
                losses = transfer_update(
                    model,
                    layers,
                    ids,
                    mask,
                    rate=rate * schedule(number, updates),
                    steps=steps,
                    calibrates=number == 0 and self.learns_maps,
                )
                self.record["transfer"].append([round(x, 6) for x in losses])
                return sum(losses) / len(losses)

            parts = {name: (layer.student, layer.optimizer) for name, layer in layers.items()}
            with replaced_mechanisms(model, layers):  # pyright: ignore[reportArgumentType]
                updates = self._train("transfer", update, parts)
                ids, mask = self._to_device(self.rows.held_out())
                with self._precision():
                    losses = transfer_update(model, layers, ids, mask)
            self.record["layer losses"] = dict(zip(plan.layers, (round(x, 6) for x in losses), strict=True))
            if updates:
                self._measure("transferred")
            self.record["kept"] = self._choose_kept()
        keep_softmax(model, self.record["kept"])
        if not self._is_done("transfer"):
            if self.record["kept"]:
                self._measure("layers kept")
            self._save("transfer", -1, {name: (students[name], None) for name in plan.layers}, now=True)

    def _choose_kept(self) -> list[str]:
        """Layers by number, or those that cost most when made linear, measured on two held-out rows."""
        keep, layers = self.settings.keep, self.plan.layers
        costs = dict.fromkeys(layers, 0.0)
        if "," not in keep and int(keep):
            ids, mask = self._to_device(x[:2] for x in self.rows.held_out())
            with self._precision():
                costs = layer_costs(self.model, ids, mask)
            self.record["layer costs"] = {name: round(cost, 6) for name, cost in costs.items()}
        return kept_layers(keep, layers, list(costs.values()))

    def repair(self) -> None:
        """Train LoRA and the maps together, then add LoRA to the weights."""
        model, settings = self.model, self.settings
        if settings.repair_tokens == 0 or settings.hours == 0:
            self.record["tokens"]["repair"] = 0
            return
        trained = nn.ParameterList(add_adapters(model, settings.rank, settings.seed))
        optimizer = torch.optim.AdamW(trained, weight_decay=0.0)
        first = self._updates(self.record["tokens"]["transfer"])

        def update(number: int, updates: int) -> float:
            ids, mask = self._batch(first + number)
            loss = repair_loss(model, *self._mix_lengths(number, ids, mask), settings.against)
            loss.backward()
            parallel.average_gradients(trained)
            nn.utils.clip_grad_norm_(trained, 1.0)
            for group in optimizer.param_groups:
                group["lr"] = settings.repair_rate * schedule(number, updates)
            optimizer.step()
            optimizer.zero_grad()
            self.record["repair"].append(round(loss.item(), 6))
            return loss.item()

        self._train("repair", update, {"all": (trained, optimizer)})
        self._measure("repaired")  # before the changes are merged: the teacher is the model without them
        merge_adapters(model)

    def _mix_lengths(self, number: int, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A decoder's rows as they are in every other update, in halves or quarters in those between."""
        parts = (1, 2, 1, 4)[number % 4]
        if not self.plan.causal or ids.shape[1] % parts:
            return ids, mask
        length = ids.shape[1] // parts
        return ids.reshape(-1, length), mask.reshape(-1, length)

    def write(self, source: str, out: Path, dtype: torch.dtype) -> None:
        name = Path(source).name if Path(source).exists() else source
        (out / RECORD).write_text(json.dumps(self.record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        body = card(self.record, learned_attention(self.model.config))
        missing = (
            "Licence and data of the original, and of the text: not stated. Fill this in before sharing the model."
        )
        title = f"{name}, linearized"
        write_checkpoint(self.model.to(dtype).cpu(), source, out, title, body, "linearized", missing=missing)
        shutil.rmtree(self.progress.folder)

    def _train(
        self,
        stage: str,
        update: Callable[[int, int], float],
        parts: Mapping[str, tuple[nn.Module, torch.optim.Optimizer | None]],
    ) -> int:
        """``update(number, updates)`` for every number of the stage; how many there were."""
        first = 0
        if self.saved and self.saved["stage"] == stage:
            first = self.saved["update"] + 1
            self._load(parts, self.saved["parts"])
        updates = self._updates(self._tokens(stage, update, parts))
        bar = Bar(stage, first, updates, self.quiet)
        try:
            for number in range(first, updates):
                with self._precision():
                    loss = update(number, updates)
                bar.step(loss)
                self._save(stage, number, parts)
        finally:
            bar.close()
        return updates

    def _tokens(self, stage: str, update: Callable[[int, int], float], parts: Mapping[str, Any]) -> int:
        """Tokens to train on: as many as were asked for, or as fit into the hours; decided once and recorded."""
        decided, settings = self.record["tokens"], self.settings
        if stage not in decided:
            if stage == "transfer" and not self.learns_maps:
                decided[stage] = settings.transfer_tokens if self.plan.features and settings.transfer_tokens else 0
            elif settings.hours is None:
                decided[stage] = getattr(settings, f"{stage}_tokens")
            else:
                share = TRANSFER_SHARE if self.learns_maps else 0.0
                share = share if stage == "transfer" else 1 - share
                updates = max(1, int(settings.hours * share * 3600 / self._seconds(stage, update, parts)))
                decided[stage] = int(updates * self.rows.mean_length * settings.batch)
        return decided[stage]

    def _seconds(self, stage: str, update: Callable[[int, int], float], parts: Mapping[str, Any]) -> float:
        """The duration of an update; what it changes is put back."""
        before, seconds = copy.deepcopy(self._parts_state(parts)), 0.0
        for _ in range(2):  # the first one also allocates
            began = time.monotonic()
            with self._precision():
                update(0, 1)
            seconds = time.monotonic() - began
        self._load(parts, before)
        self.record[stage].clear()
        return parallel.of_first(seconds, self.model.device)

    @staticmethod
    def _parts_state(parts: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: {"module": module.state_dict(), "optimizer": optimizer and optimizer.state_dict()}
            for name, (module, optimizer) in parts.items()
        }

    @staticmethod
    def _load(parts: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
        for name, (module, optimizer) in parts.items():
            module.load_state_dict(saved[name]["module"])
            if optimizer is not None:
                optimizer.load_state_dict(saved[name]["optimizer"])

    def _is_done(self, stage: str) -> bool:
        """Whether an earlier process finished ``stage``; its result is then in the model."""
        if self.saved is None or (self.saved["stage"] == stage and self.saved["update"] >= 0):
            return False
        for name, mechanism in mechanisms(self.model).items():
            if name in self.saved["parts"]:
                mechanism.load_state_dict(self.saved["parts"][name]["module"])
        return True

    def _save(self, stage: str, update: int, parts: Mapping[str, Any], *, now: bool = False) -> None:
        if parallel.rank():
            return

        def state() -> dict[str, Any]:
            return {"stage": stage, "update": update, "parts": self._parts_state(parts), "record": self.record}

        self.progress.save(state, now=now)

    def _measure(self, stage: str) -> None:
        ids, mask = self._to_device(self.rows.held_out())
        with self._precision():
            self.record["measured"][stage] = {k: round(v, 6) for k, v in measure(self.model, ids, mask).items()}
        if not self.quiet:
            print(f"{stage}: {self.record['measured'][stage]}", flush=True)

    def _updates(self, tokens: int) -> int:
        """Updates that ``tokens`` of text make."""
        return math.ceil(tokens / (self.rows.mean_length * self.settings.batch))

    def _batch(self, number: int) -> list[torch.Tensor]:
        return self._to_device(parallel.share(*self.rows.batch(number, self.settings.batch)))

    def _to_device(self, tensors: Any) -> list[torch.Tensor]:
        return [x.to(self.model.device) for x in tensors]

    def _precision(self) -> AbstractContextManager[Any]:
        return precision(self.settings.dtype, self.model.device.type)
