"""`headrace chat`: talk to a policy."""

from collections.abc import Sequence

import trio
import tyro

from ..chat.conversation import ChatConfig
from ..chat.session import Terminal
from ..chat.session import chat as run_chat
from ..errors import HeadraceError
from ..policy import load_policy
from .messages import explain, say


def chat(model_or_run: str, flags: Sequence[str]) -> int:
    """Talk until the user leaves."""
    try:
        config = tyro.cli(ChatConfig, args=list(flags), prog=f"headrace chat {model_or_run}")
        policy = load_policy(model_or_run)
        trio.run(run_chat, policy, config, Terminal(_read_line, say))
    except (HeadraceError, BaseExceptionGroup) as error:
        return explain(error)
    return 0


def _read_line() -> str | None:
    try:
        return input("> ")
    except EOFError:
        return None
    except UnicodeDecodeError:
        return ""  # what isn't text says nothing
