"""Training: turns an experiment into a run folder, with Hugging Face's Trainer and the features that it lacks."""

from cosformer.train.engine import TrainingFailed, scores_of
from cosformer.train.run import SCORED_WEIGHTS, evaluate_run, evaluate_with_confusions, load_model, resume, train
from cosformer.train.start import start_model

__all__ = [
    "SCORED_WEIGHTS",
    "TrainingFailed",
    "evaluate_run",
    "evaluate_with_confusions",
    "load_model",
    "resume",
    "scores_of",
    "start_model",
    "train",
]
