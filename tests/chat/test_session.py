"""A chat's sampler fits every model and context."""

import io

import jax
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from headrace import ConfigError, load_policy, save_policy
from headrace.pipeline.chat.conversation import ChatConfig
from headrace.pipeline.chat.session import (
    Terminal,
    chat,
    load_tools,
    sampler_sizes,
)
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.models.parameters import init
from headrace.pipeline.policy import Policy
from headrace.pipeline.sampler.layout import check_bits
from headrace.pipeline.text.renderer import CharacterRenderer, TextConfig

TEXT = TextConfig("abc")
VOCAB = CharacterRenderer(TEXT).vocab_size
MODEL = ModelConfig(num_layers=1, width=8, num_heads=1, num_kv_heads=1, head_width=8, ffn_width=8)


@given(st.integers(1, 40), st.integers(2, 5000), st.integers(0, 20))
def test_every_size_is_allowed(heads, context, stop_ids):
    model = decoder_model(ModelConfig(num_heads=heads, num_kv_heads=1), vocab_size=9)
    sizes = sampler_sizes(ChatConfig(context_tokens=context), model, stop_ids=stop_ids)
    check_bits(sizes, model)
    assert sizes.max_stop_ids >= stop_ids


def test_tools_come_from_environments():
    assert [tool.name for tool in load_tools(("calculator",))] == ["calculator"]
    with pytest.raises(ConfigError, match="calculater"):
        load_tools(("calculater",))


@pytest.mark.slow
def test_a_run_s_policy_answers_at_the_default_sizes(tmp_path):
    params = init(MODEL, VOCAB, jax.random.key(0))
    save_policy(Policy(MODEL, VOCAB, params, TEXT), tmp_path / "policy")
    lines = io.StringIO("abc\n")
    shown: list[str] = []
    terminal = Terminal(lambda: lines.readline().strip() or None, shown.append)
    policy = load_policy(tmp_path)
    trio.run(chat, policy, ChatConfig(max_turn_tokens=4), terminal)
    assert shown[:2] == ["(compiling)", "(ready: say something, or /help)"]
    assert len(shown) >= 3
