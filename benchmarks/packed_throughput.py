"""Real tokens a second in training, packed against padded: ``python -m benchmarks.packed_throughput``.

One model, one set of sequences of uneven lengths, forward and backward; the two batches by turns.
"""

import statistics
import time

import torch
from transformers import DataCollatorWithFlattening

from cosformer.hf import CosformerConfig, CosformerForCausalLM

ROUNDS = 5


def batches() -> tuple[int, dict, dict]:
    """How many tokens, and the same sequences padded and packed."""
    torch.manual_seed(0)
    lengths = (32 * 2 ** (torch.rand(16) * 5)).long().tolist()  # 32 to 1,024, evenly in their logarithm
    rows = [torch.randint(3, 1000, (n,)) for n in lengths]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = (torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]).long()
    padded = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    packed = DataCollatorWithFlattening(return_flash_attn_kwargs=True)([{"input_ids": row.tolist()} for row in rows])
    packed.pop("attention_mask", None)
    return sum(lengths), padded, packed


def main() -> None:
    sizes = {"vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    for attention in ("cosformer", "softmax"):
        config = CosformerConfig(
            **sizes, intermediate_size=1024, max_position_embeddings=1024, is_decoder=True, attention=attention
        )
        model = CosformerForCausalLM(config)
        tokens, padded, packed = batches()
        seconds: dict[str, list[float]] = {"padded": [], "packed": []}
        for turn in range(ROUNDS + 1):
            for name, batch in (("padded", padded), ("packed", packed)):
                start = time.perf_counter()
                model(**batch).loss.backward()
                model.zero_grad()
                if turn:  # the first warms up
                    seconds[name].append(time.perf_counter() - start)
        rates = {name: tokens / statistics.median(times) for name, times in seconds.items()}
        ratios = sorted(a / b for a, b in zip(seconds["padded"], seconds["packed"], strict=True))
        filled = tokens / padded["input_ids"].numel()
        print(
            f"{attention}: {tokens} tokens in 16 sequences, {filled:.0%} of the padded batch;"
            f" packed {rates['packed']:.0f} tokens/s, padded {rates['padded']:.0f};"
            f" ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
