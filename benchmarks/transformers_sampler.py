"""Transformers' `generate` on the workload of `sampler.py`, for its `--peer`.

  python benchmarks/sampler.py --models m4 --rows 8,32 \\
      --peer "python benchmarks/transformers_sampler.py --models m4 --rows 8,32"

Needs PyTorch and Transformers. The same shapes with random weights, the same prompts; tokens are
drawn from the whole softmax and their logprobs are computed, as our sampler does. One thread takes
the fewest CPU-seconds: several wait for each other busily.
"""

import argparse
import json
from functools import partial

import numpy as np
import torch
import transformers

from costs import measure, quickest
from headrace.pipeline.models.config import ModelConfig
from workload import MODELS, VOCAB_SIZE, Plain, plain_prompt


def main() -> None:
    parser = argparse.ArgumentParser(description="What Transformers' generate costs.")
    parser.add_argument("--models", default="m4", help="comma-separated")
    parser.add_argument("--rows", default="1,8,32", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3, help="after one to warm up")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {
        f"{name}/b{rows}": measure_calls(make_model(MODELS[name]), int(rows), options.rounds)
        for name in options.models.split(",")
        for rows in options.rows.split(",")
    }
    about = {"transformers": transformers.__version__, "torch": torch.__version__}
    print("RESULT " + json.dumps({"results": results, "threads": torch.get_num_threads()} | about))


def make_model(config: ModelConfig) -> transformers.Qwen3ForCausalLM:
    """Draw a model of the same shape, float32."""
    torch.manual_seed(0)
    shape = transformers.Qwen3Config(
        vocab_size=VOCAB_SIZE,
        num_hidden_layers=config.num_layers,
        hidden_size=config.width,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_width,
        intermediate_size=config.ffn_width,
        tie_word_embeddings=config.tied_embeddings,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.Qwen3ForCausalLM(shape).eval()


def measure_calls(
    model: transformers.Qwen3ForCausalLM, rows: int, rounds: int
) -> dict[str, float]:
    """Measure whole calls; the best of the rounds."""
    costs = [measure(partial(generate, model, rows, index)) for index in range(rounds + 1)]
    best = quickest(costs[1:])
    return {"call_cpu_s_min": best.cpu, "call_s_min": best.wall}


@torch.inference_mode()
def generate(model: transformers.Qwen3ForCausalLM, rows: int, index: int) -> torch.Tensor:
    """Sample all tokens of one round; returns their logprobs, [rows, tokens]."""
    work = Plain()
    prompts = np.stack([plain_prompt(index, row, work.prompt_tokens) for row in range(rows)])
    tokens = torch.from_numpy(prompts).long()
    output = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),  # an id of the prompt may be that of padding
        max_new_tokens=work.new_tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = output.sequences[:, work.prompt_tokens :]
    if tokens.shape != (rows, work.new_tokens):
        raise RuntimeError(f"{work.new_tokens} tokens a row were asked for, got {tokens.shape}")
    logprobs = torch.stack(output.logits, dim=1).log_softmax(dim=-1)
    return logprobs.gather(-1, tokens[:, :, None])[:, :, 0]


if __name__ == "__main__":
    main()
