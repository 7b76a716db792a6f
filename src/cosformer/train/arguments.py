"""An experiment as the settings of Hugging Face's Trainer."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainingArguments

from cosformer.experiment import Experiment
from cosformer.train import mesh


def arguments(experiment: Experiment, run: Path) -> TrainingArguments:
    """The Trainer's own settings for ``experiment``."""
    train = experiment.train
    # as torchrun says, before the group is there
    world = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    mesh.check(train, experiment.task, world)
    copies = world // train.sequence_parallel
    if train.batch % copies:
        raise ValueError(f"batch={train.batch} cannot be shared by {copies} processes; use a multiple of {copies}")
    share = train.batch // copies
    micro = train.micro_batch or share
    if share % micro:
        raise ValueError(
            f"micro_batch={micro} must divide a process's share of the batch, {train.batch}/{copies}={share}"
        )
    cuda = torch.cuda.is_available()
    if train.precision == "fp16" and not cuda:
        raise ValueError("precision='fp16' needs a GPU for its loss scaling; on a CPU use precision='bf16' or 'fp32'")
    if train.strategy == "fsdp" and world == 1:
        raise ValueError("strategy='fsdp' shards over processes; start it with torchrun, or use strategy='ddp'")
    if train.strategy == "fsdp" and not cuda:  # accelerate would leave the weights whole and not say so
        raise ValueError("strategy='fsdp' shards on GPUs only; on a CPU use strategy='ddp'")
    fsdp: dict[str, Any] = {}
    if train.strategy == "fsdp":
        wrapped = {"transformer_layer_cls_to_wrap": ["Layer"], "version": 2}
        fsdp = {"fsdp": "full_shard auto_wrap", "fsdp_config": wrapped}
    return TrainingArguments(
        output_dir=str(run / "checkpoints"),
        max_steps=train.steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=share // micro,
        learning_rate=train.lr,
        max_grad_norm=train.clip,
        seed=train.seed,
        bf16=train.precision == "bf16",
        fp16=train.precision == "fp16",
        gradient_checkpointing=train.gradient_checkpointing,
        torch_compile=train.compile,
        use_cpu=not cuda,
        eval_strategy="steps",
        eval_steps=train.eval_every,
        save_strategy="steps",
        save_steps=train.save_every,
        save_total_limit=None,  # ours: only whole checkpoints count, so only they may push others out
        logging_strategy="no",  # ours: the Trainer forgets what it has added up when it is resumed
        logging_nan_inf_filter=False,
        dataloader_num_workers=train.workers,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[train.tracker] if train.tracker in ("wandb", "trackio") else [],
        ddp_find_unused_parameters=False,
        **fsdp,
    )
