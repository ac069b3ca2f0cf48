"""A policy that thinks before each word, in a format that strips old thoughts, and its task.

Its weights are a chain: the last token alone says which comes next. It answers a or b, one as
likely as the other; the environment wants a, three times.
"""

import json
from pathlib import Path

import numpy as np

from headrace import Policy, save_policy
from headrace.envs import EnvSpec, Message, StepResult, Task
from headrace.pipeline.models.families import family_of
from headrace.pipeline.models.parameters import declare
from headrace.pipeline.text.hub_tokenizer import HubTokenizer
from tests.text.templates import SPECIALS, STRIPPING
from tests.text.vocabularies import definition, entry

TURNS = 3
WIDTH = 16
SURE = 4.0  # a state has length 4, so the next token's logit is 16, and all others' 0


class Words:
    async def __aenter__(self):
        self.heard = 0
        return self

    async def __aexit__(self, *error):
        pass

    async def reset(self, task, seed):
        return [Message("user", "say")]

    async def step(self, message):
        self.heard += 1
        good = float(message.content.strip() == "a")
        over = self.heard == TURNS
        said = () if over else (Message("user", "more"),)
        return StepResult(said, reward=good / TURNS, terminated=over)


def tasks(split, count, seed):
    return [Task(f"{split}-{n}") for n in range(count)]


SPEC = EnvSpec(make=Words, tasks=tasks, demonstrate=None, best_reward=1.0)


def save_thinking_policy(folder: Path) -> None:
    """Save the policy as the Hub has them: weights, settings, tokenizer and template."""
    content = definition("byte-level", tuple(entry(text) for text in SPECIALS))
    tokenizer = HubTokenizer(content)
    hub = {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": tokenizer.vocab_size,
        "num_hidden_layers": 1,
        "hidden_size": WIDTH,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 16,
        "tie_word_embeddings": False,
    }
    config = family_of(hub).config_from(hub)
    params = _chain(declare(config, tokenizer.vocab_size), tokenizer)
    save_policy(Policy(config, tokenizer.vocab_size, params, settings=hub), folder)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(STRIPPING, encoding="utf-8")


def _chain(weights, tokenizer):
    """Let attention and feed-forward add nothing, and the head follow the last token's state."""
    states = np.eye(WIDTH, dtype=np.float32)
    embedding = np.tile(states[-1], (tokenizer.vocab_size, 1))  # of tokens outside the chain
    head = np.zeros_like(embedding)
    (newline,) = tokenizer.encode("\n")
    chain = [newline, *(tokenizer.specials["<think>"], *tokenizer.encode("h"))]
    chain += [tokenizer.specials["</think>"]]
    answers = [*tokenizer.encode("a"), *tokenizer.encode("b")]
    for place, (token, following) in enumerate(
        zip(chain, [*map(_one, chain[1:]), answers], strict=True)
    ):
        embedding[token] = states[place]
        head[following] += SURE * states[place]
    embedding[answers] = states[len(chain)]
    head[tokenizer.specials["<|im_end|>"]] += SURE * states[len(chain)]
    nothing = {
        name: np.full(weight.shape, 0.0 if weight.stddev is not None else weight.start, np.float32)
        for name, weight in weights["layers"].items()
    }
    norm = np.ones((WIDTH,), np.float32)
    return {"embedding": embedding, "head": head, "final_norm": norm, "layers": nothing}


def _one(token: int) -> list[int]:
    return [token]
