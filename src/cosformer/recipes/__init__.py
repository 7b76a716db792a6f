"""Recipes: the paper's experiments, and small ones, as functions that return an :class:`Experiment`; one table."""

from collections.abc import Callable

from cosformer.experiment import Experiment
from cosformer.recipes import evidence, finetune, lm, lra, mlm
from cosformer.suggest import unknown

RECIPES: dict[str, Callable[[], Experiment]] = {
    "lm-wikitext103": lm.lm_wikitext103,
    "lm-wikitext103-adam": lm.lm_wikitext103_adam,
    "lm-wikitext103-small": lm.lm_wikitext103_small,
    "lm-wikitext103-adam-small": lm.lm_wikitext103_adam_small,
    "lm-wikitext2": lm.lm_wikitext2,
    "lm-wikitext2-small": lm.lm_wikitext2_small,
    "lm-stdlib": lm.lm_stdlib,
    "lm-stdlib-small": lm.lm_stdlib_small,
    "mlm-wikitext103": mlm.mlm_wikitext103,
    "mlm-wikitext103-small": mlm.mlm_wikitext103_small,
    "mlm-wikitext2": mlm.mlm_wikitext2,
    "mlm-wikitext2-small": mlm.mlm_wikitext2_small,
    "finetune-qqp": finetune.finetune_qqp,
    "finetune-qqp-small": finetune.finetune_qqp_small,
    "finetune-sst2": finetune.finetune_sst2,
    "finetune-sst2-small": finetune.finetune_sst2_small,
    "finetune-mnli": finetune.finetune_mnli,
    "finetune-mnli-small": finetune.finetune_mnli_small,
    "finetune-imdb": finetune.finetune_imdb,
    "finetune-imdb-small": finetune.finetune_imdb_small,
    "finetune-amazon": finetune.finetune_amazon,
    "finetune-amazon-small": finetune.finetune_amazon_small,
    "lra-listops": lra.lra_listops,
    "lra-listops-small": lra.lra_listops_small,
    "lra-text": lra.lra_text,
    "lra-text-small": lra.lra_text_small,
    "lra-retrieval": lra.lra_retrieval,
    "lra-retrieval-small": lra.lra_retrieval_small,
    "lra-image": lra.lra_image,
    "lra-image-small": lra.lra_image_small,
    "lra-pathfinder": lra.lra_pathfinder,
    "lra-pathfinder-small": lra.lra_pathfinder_small,
    "evidence-pathfinder": evidence.evidence_pathfinder,
    "evidence-lm": evidence.evidence_lm,
    "evidence-lm-m2": evidence.evidence_lm_m2,
    "evidence-lm-m4": evidence.evidence_lm_m4,
    "evidence-lm-nopos": evidence.evidence_lm_nopos,
    "evidence-mlm": evidence.evidence_mlm,
    "evidence-sst2": evidence.evidence_sst2,
    "evidence-listops": evidence.evidence_listops,
    "evidence-recall-16": evidence.evidence_recall_16,
    "evidence-recall-32": evidence.evidence_recall_32,
}


def recipe(name: str) -> Experiment:
    """The experiment of recipe ``name``; an unknown name raises and suggests the nearest."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]()
