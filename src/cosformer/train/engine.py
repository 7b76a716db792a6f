"""Hugging Face's Trainer with what is ours: the stream of rows, the task's scores, whole checkpoints, exact metrics."""

import contextlib
import json
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import SequentialSampler
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerState

from cosformer import json_files
from cosformer.data.masking import IGNORED
from cosformer.experiment import METRICS_FILE, Experiment
from cosformer.models.windows import backward_in_windows
from cosformer.records_file import RecordsFile
from cosformer.tasks.base import Task
from cosformer.train import checkpoints, mesh
from cosformer.train.arguments import arguments
from cosformer.train.card import write_run_card
from cosformer.train.diagnostics import Diagnostics, first_bad
from cosformer.train.metrics import Metrics
from cosformer.train.nag import NAG
from cosformer.train.schedules import schedule, set_rates
from cosformer.train.vocabulary import save_vocabulary

COUNTERS_FILE = "counters.json"


class TrainingFailed(RuntimeError):
    """The run cannot go on; the message says why, and the last good checkpoint is kept."""


def unreadable(path: Path, error: Exception) -> TrainingFailed:
    """The error for a checkpoint whose hashes match but which cannot be loaded."""
    return TrainingFailed(
        f"{path} cannot be read ({type(error).__name__}: "
        f"{str(error).splitlines()[0] if str(error) else 'no reason given'}); none of it was used. Remove this "
        "checkpoint and resume again: training continues from the previous one and repeats the updates since"
    )


class Engine(Trainer):
    """Trains ``model`` on ``task`` into the folder ``run``; evaluations and checkpoints as the experiment says."""

    def __init__(self, experiment: Experiment, task: Task, model: PreTrainedModel, run: Path, **kwargs: Any) -> None:
        args = arguments(experiment, run)
        settings = experiment.train
        alike = settings.batch if settings.group_by_length else None
        rows = mesh.Stream(task, settings.steps * settings.batch, settings.seed, alike)
        if settings.class_weights == "balanced":
            kwargs["compute_loss_func"] = weighted_loss(task.class_weights())
        super().__init__(model, args, data_collator=task.collate, train_dataset=rows, eval_dataset=rows, **kwargs)  # pyright: ignore[reportArgumentType]
        self.mesh = mesh.Mesh(experiment.train.sequence_parallel, self.args.device)
        self.mesh.seed(experiment.train.seed)
        self.remove_callback(PrinterCallback)  # we have a progress bar of our own
        self.experiment, self.task, self.run = experiment, task, run
        self.records = RecordsFile(run)
        self.metrics = Metrics(run, self.records, write=self.is_world_process_zero())
        self.args.metric_for_best_model = task.metric
        self.args.greater_is_better = task.higher_is_better
        self.seconds = 0.0  # of training before this process took over
        self.cpu_seconds = 0.0  # likewise; unlike the others they do not count a pause
        self.tokens = 0
        self._loss = torch.zeros((), dtype=torch.float64)
        self._updates = 0
        self._finished = -1
        self.stopped_early = False
        self._new_tokens = 0
        self._batch: dict[str, Any] = {}
        self._norm = 0.0
        self._started = self._logged_at = time.monotonic()
        self.diagnostics = Diagnostics(model) if experiment.train.diagnostics else None

    # --- rows, optimiser, schedule

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)  # pyright: ignore[reportArgumentType]

    def get_train_dataloader(self) -> Any:
        """On a mesh each data rank has rows of its own, and each sequence rank its shard of them."""
        if self.mesh.group is None:
            return super().get_train_dataloader()
        args = self.args
        return self.mesh.loader(
            self.train_dataset,
            args.per_device_train_batch_size,
            lambda rows: self.mesh.cut(self.task.collate(rows)),
            args.dataloader_num_workers,
        )

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Every parameter is decayed alike, as in the sources of the recipes."""
        if self.optimizer is None:
            train = self.experiment.train
            chosen = [p for p in (model or self.model).parameters() if p.requires_grad]  # pyright: ignore[reportOptionalMemberAccess]
            if train.optimizer == "nag":
                self.optimizer = NAG(chosen, lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay)
            else:
                betas = (train.beta1, train.beta2)
                fused = train.strategy != "fsdp"
                self.optimizer = torch.optim.AdamW(
                    chosen, lr=train.lr, betas=betas, eps=train.eps, weight_decay=train.weight_decay, fused=fused
                )
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, schedule(self.experiment.train))  # pyright: ignore[reportArgumentType]
            self._created_lr_scheduler = True
        return self.lr_scheduler  # pyright: ignore[reportReturnType]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Those of the checkpoint, with the rates of the experiment, which may have been changed since."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            set_rates(self.optimizer, self.lr_scheduler, self.experiment.train)

    # --- one update

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        if self._updates == 0 and self._new_tokens == 0:
            self._logged_at = time.monotonic()
        self._new_tokens += self.task.tokens(inputs)
        self._batch = inputs
        if self.experiment.train.window is None:
            loss = super().training_step(model, inputs, num_items_in_batch)
        else:
            loss = self._step_in_windows(model, inputs, num_items_in_batch)
        self._loss += loss.double().cpu()
        return loss

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if self.mesh.group is not None:
            inputs = inputs | {"sequence_group": self.mesh.group}
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _step_in_windows(self, model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
        model.train()
        train = self.experiment.train
        with self.compute_loss_context_manager():
            return backward_in_windows(
                self.accelerator.unwrap_model(model),
                self._prepare_inputs(inputs),  # pyright: ignore[reportArgumentType]
                window=train.window or 0,
                truncated=train.window_gradients == "truncated",
                divisor=items / self._world,  # processes average their gradients
                wrapped=model,
            )

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Left to :meth:`_get_grad_norm`, which is called next and also where nothing is clipped."""
        return super()._clip_grad_norm(model) if self._trainer_computes_norm else None

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> float:
        """Called between backward and update: the place to stop before a bad gradient reaches the weights."""
        parameters = list(model.parameters())
        if self._trainer_computes_norm:
            norm: Any = super()._get_grad_norm(model, grad_norm)  # pyright: ignore[reportArgumentType]
        else:
            norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        self._norm = float(norm)
        if self.accelerator.scaler is None and not (math.isfinite(self._norm) and bool(torch.isfinite(self._loss))):
            raise TrainingFailed(self._divergence(model))
        if self.diagnostics is not None and (self.state.global_step + 1) % self.experiment.train.log_every == 0:
            self.diagnostics.take_gradients()
        # last: clipping by a norm that is not a number would spoil every gradient, and no one could say which was the
        # first
        if not self._trainer_computes_norm and self.args.max_grad_norm > 0:
            nn.utils.clip_grads_with_norm_(parameters, self.args.max_grad_norm, norm)
        return self._norm

    @property
    def _trainer_computes_norm(self) -> bool:
        """Where gradients are sharded or scaled, the Trainer knows how to add them up; it clips in the same go."""
        return self.is_fsdp_enabled or self.accelerator.scaler is not None

    def _divergence(self, model: nn.Module) -> str:
        step = self.state.global_step + 1
        what = "the loss" if not torch.isfinite(self._loss) else "the gradient"
        where = first_bad(self.accelerator.unwrap_model(model), self._prepare_inputs(self._batch))  # pyright: ignore[reportArgumentType]
        kept = self._last_good_checkpoint()
        return f"{what} is not a number at update {step}, first in {where}; {kept}. Try a smaller lr, warmup or clip."

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        step = self.state.global_step
        if step == self._finished:  # the Trainer asks once more at the end of the rows
            return
        self._finished = step
        self._updates += 1
        last = step == self.state.max_steps
        if step % self.experiment.train.log_every == 0 or last:
            self._log_update(step, kwargs.get("learning_rate"))
        if last:
            self.control.should_evaluate = self.control.should_save = True
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _log_update(self, step: int, lr: float | None) -> None:
        now = time.monotonic()
        loss, tokens = self._over_processes(float(self._loss)) / self._world, self._over_processes(self._new_tokens)
        self.tokens += int(tokens)
        values: dict[str, Any] = {
            "loss": loss / self._updates,
            "lr": lr if lr is not None else self._get_learning_rate(),
            "grad_norm": self._norm,
            "tokens": self.tokens,
            "tokens_per_second": tokens / max(now - self._logged_at, 1e-9),
        }
        self._note(kind="train", **values, seconds=self.elapsed())
        if self.diagnostics is not None:
            layers = self.diagnostics.read()
            self._note(kind="diagnostics", layers=layers)
            for layer in layers:
                values |= {f"layer{layer['layer']}/{k}": v for k, v in layer.items() if k != "layer" and v is not None}
        self.log(values)
        self._loss.zero_()
        self._updates = self._new_tokens = 0
        self._logged_at = now

    def _note(self, *, kind: str, **values: Any) -> None:
        """A line of metrics.jsonl."""
        with self._fail_cleanly_on_write_error(METRICS_FILE):
            self.metrics.add(kind=kind, step=self.state.global_step, **values)

    # --- scores

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """During training: the task's selection evaluation, noted, and the best weights kept."""
        started = time.monotonic()
        name = self.task.selection
        scores = self.scores(name)
        self._note(kind="eval", name=name, scores=scores, seconds=time.monotonic() - started)
        found = {f"eval_{key}": value for key, value in scores.items()}
        self.log(dict(found))
        best = self.state.best_metric
        score = scores[self.task.metric]
        better = best is None or (score > best if self.task.higher_is_better else score < best)
        # without a validation split the last weights are kept: a test split chooses nothing
        better = better or name == "test"
        if better:
            self._keep_best(score)
        self._logged_at += time.monotonic() - started
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
        if not better and self._is_out_of_patience():
            # with a checkpoint, from which a killed run goes on to its scores
            self.stopped_early = self.control.should_save = self.control.should_training_stop = True
        return found

    def _is_out_of_patience(self) -> bool:
        """Whether as many evaluations as ``early_stopping`` allows have passed since the best one. The Trainer's state
        has that one's update, also after a resume."""
        patience, every = self.experiment.train.early_stopping, self.experiment.train.eval_every
        step, best = self.state.global_step, self.state.best_global_step
        return patience is not None and best is not None and step // every - best // every >= patience

    def scores(self, name: str) -> dict[str, float]:
        """The scores of evaluation ``name``."""
        return self.task.scores(name, self.sums(name))

    def sums(self, name: str) -> dict[str, float]:
        """What the scores of evaluation ``name`` are made of; batches are shared by the processes."""
        model = self.model_wrapped if self.is_fsdp_enabled else self.model
        assert model is not None
        if self.mesh.group is not None or self.experiment.train.window is not None:
            model = mesh.Scored(model, self.mesh, self.experiment.train.window)
        return evaluation_sums(self.task, name, model, self.experiment.train.eval_batch, self)

    @property
    def _world(self) -> int:
        return self.args.world_size

    def _over_processes(self, value: float) -> float:
        if self._world == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.args.device)
        dist.all_reduce(tensor)
        return float(tensor)

    def _keep_best(self, score: float) -> None:
        fresh = self.run / "best.new"
        with self._fail_cleanly_on_write_error("the best weights"):
            if self.is_world_process_zero():
                shutil.rmtree(fresh, ignore_errors=True)  # what a killed process left behind
            if self.is_fsdp_enabled:
                self._wait()
                self.save_model(str(fresh))
            elif self.is_world_process_zero():
                self.accelerator.unwrap_model(self.model).save_pretrained(fresh)  # pyright: ignore[reportArgumentType, reportCallIssue]
            if self.is_world_process_zero():
                save_vocabulary(self.task.dataset.vocabulary, fresh, self.task.name, self.task.length)
                self.write_card(fresh, {"step": self.state.global_step, "score": score})
                checkpoints.seal(fresh)
                checkpoints.replace_folder(fresh, self.run / "best")
        self._wait()

    def write_card(self, folder: Path, best: dict[str, Any] | None, result: dict[str, Any] | None = None) -> None:
        """The model card of the best weights, which are in ``folder``."""
        assert self.model is not None
        parameters = sum(p.numel() for p in self.model.parameters())
        write_run_card(folder, self.experiment, self.task, parameters, best, result)

    # --- checkpoints

    def elapsed(self) -> float:
        """Seconds of training, those before a resume included."""
        return self.seconds + time.monotonic() - self._started

    def cpu_elapsed(self) -> float:
        """Seconds of processor time of this process, those before a resume included."""
        return self.cpu_seconds + time.process_time()

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = self.run / "checkpoints"
        place = folder / f"checkpoint-{self.state.global_step}"
        if checkpoints.is_whole(place) and not checkpoints.damage(place):
            return
        tokens = self._over_processes(self._new_tokens)
        loss = self._over_processes(float(self._loss)) / self._world
        with self._fail_cleanly_on_write_error(place.name):
            if self.is_world_process_zero():
                shutil.rmtree(place, ignore_errors=True)  # what a cut checkpoint of this update left behind
            self._wait()
            super()._save_checkpoint(model, trial)
            if self.is_world_process_zero():
                counters = {"tokens": self.tokens, "seconds": self.elapsed(), "loss": loss}
                counters |= {"cpu_seconds": self.cpu_elapsed()}
                counters |= {"updates": self._updates, "new_tokens": int(tokens)}
                if self.stopped_early:  # of so many updates: more may be asked for later
                    counters |= {"stopped_early_of": self.experiment.train.steps}
                (place / COUNTERS_FILE).write_text(json.dumps(counters), encoding="utf-8")
            self._wait()
            if self.is_world_process_zero():
                checkpoints.seal(place)
                checkpoints.prune(folder, self.experiment.train.keep)

    def load_counters(self, checkpoint: Path) -> None:
        """Go on adding up where the checkpoint's run was."""
        try:
            counters = json_files.loads((checkpoint / COUNTERS_FILE).read_text(encoding="utf-8"))
            self.tokens, self.seconds, self._updates = counters["tokens"], counters["seconds"], counters["updates"]
            self.cpu_seconds = counters["cpu_seconds"]
            self._loss.fill_(counters["loss"])
            # the sum over processes is on the first one's account
            self._new_tokens = counters["new_tokens"] if self.is_world_process_zero() else 0
            self.stopped_early = counters.get("stopped_early_of") == self.experiment.train.steps
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unreadable(checkpoint / COUNTERS_FILE, error) from error

    def load_stopped(self, checkpoint: Path) -> None:
        """The weights and step of a run that stopped early at ``checkpoint`` and only needs scoring."""
        try:
            self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
            self._load_from_checkpoint(str(checkpoint))
        except Exception as error:
            raise unreadable(checkpoint, error) from error

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Tied weights are saved once, under one name: the other name is not missing."""
        tied = set(getattr(self.model, "_tied_weights_keys", None) or {})
        if load_result is not None and not set(load_result.missing_keys) <= tied:
            super()._issue_warnings_after_load(load_result)

    @contextlib.contextmanager
    def _fail_cleanly_on_write_error(self, what: str) -> Any:
        """A write that fails (a full disk says so in many ways) stops the run with one clear message."""
        try:
            yield
        except Exception as error:
            for cut in checkpoints.broken(self.run / "checkpoints"):
                shutil.rmtree(cut, ignore_errors=True)
            shutil.rmtree(self.run / "best.new", ignore_errors=True)
            free = shutil.disk_usage(self.run).free / 1e6
            raise TrainingFailed(
                f"{what} could not be written to {self.run} ({error}; {free:,.0f} MB free); "
                f"{self._last_good_checkpoint()}. Make room and run `cosformer resume {self.run}`"
            ) from error

    def _last_good_checkpoint(self) -> str:
        good = checkpoints.whole(self.run / "checkpoints")
        return f"the last good checkpoint is {good[-1].name}" if good else "there is no good checkpoint yet"

    def _wait(self) -> None:
        if self._world > 1:
            dist.barrier()


def weighted_loss(weights: Tensor) -> Callable[..., Tensor]:
    """Cross-entropy with class weights, as Trainer calls it: a sum over rows, divided by the whole batch's rows."""

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = outputs.logits.float().flatten(0, -2)
        total = F.cross_entropy(
            logits, labels.flatten(), weights.to(logits.device), ignore_index=IGNORED, reduction="sum"
        )
        return total / (num_items_in_batch if num_items_in_batch is not None else (labels != IGNORED).sum())

    return loss


def scores_of(task: Task, name: str, model: nn.Module, batch: int) -> dict[str, float]:
    """The scores of evaluation ``name``, in batches of ``batch`` rows."""
    return task.scores(name, evaluation_sums(task, name, model, batch))


@torch.no_grad()
def evaluation_sums(
    task: Task, name: str, model: nn.Module, batch: int, engine: Engine | None = None
) -> dict[str, float]:
    """The task's sums over evaluation ``name``, in batches of ``batch`` rows shared among the processes."""
    size = task.eval_size(name)
    if size < 1:
        raise ValueError(f"the evaluation {name!r} holds no row")
    starts = list(range(0, size, batch))
    # a sharded model needs every process in every forward pass
    shared = engine is not None and engine.args.world_size > 1 and not engine.is_fsdp_enabled
    if engine is not None and shared:
        starts = starts[engine.mesh.data_rank :: engine.mesh.data_ranks]
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    sums: dict[str, float] = {}
    with engine.compute_loss_context_manager() if engine is not None else contextlib.nullcontext():
        for start in starts:
            rows = task.eval_batch(name, start, min(start + batch, size))
            moved = {key: value.to(device) for key, value in rows.items()}
            for key, value in task.sums(model, moved).items():
                sums[key] = sums.get(key, 0.0) + value
    model.train(was_training)
    if engine is not None and shared:
        # a process without a batch knows no keys: they are agreed on first
        every: list[Any] = [None] * engine.args.world_size
        # ranks that share rows have the same sums: one of them counts
        dist.all_gather_object(every, sums if engine.mesh.shard == 0 else {})
        sums = {key: math.fsum(part.get(key, 0.0) for part in every) for key in sorted({k for p in every for k in p})}
    return sums
