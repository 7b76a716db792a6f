"""Training: an experiment in, a run's folder out. Hugging Face's Trainer does the work; here is what it does not have."""

from cosformer.train.engine import TrainingFailed
from cosformer.train.run import evaluate_run, load_model, resume, train
from cosformer.train.start import start_model

__all__ = ["TrainingFailed", "evaluate_run", "load_model", "resume", "start_model", "train"]
