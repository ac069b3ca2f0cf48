"""A second policy that teaches the first: it must read and write the same token ids."""

from ...sharding.mesh import Topology
from ..errors import ConfigError
from ..text.renderer import TextConfig
from ..text.tokenizer import Tokenizer
from .load import load_policy
from .record import Policy, TextFiles


def load_teacher(
    path: str,
    text: TextFiles | TextConfig | None,
    vocab_size: int,
    *,
    setting: str = "distillation.teacher",
    topology: Topology | None = None,
) -> Policy:
    """Load a teacher for a student.

    Args:
      path: as for `load_policy`.
      text: the text side of the student.
      vocab_size: of the student.
      setting: where the path was given.
      topology: as for `load_policy`.

    Raises:
      ConfigError: where it can't be loaded, or its token ids mean something else.
    """
    teacher = load_policy(path, topology)
    problem = _difference(teacher.text, text)
    if problem is None and teacher.vocab_size < vocab_size:
        problem = f"it knows {teacher.vocab_size} token ids of the student's {vocab_size}"
    if problem is not None:
        raise ConfigError(
            f"{setting} {path!r} must have the student's tokenizer, but {problem}; "
            "choose a teacher of the same family, or a run with the same [text]"
        )
    return teacher


def _difference(
    teacher: TextFiles | TextConfig | None, student: TextFiles | TextConfig | None
) -> str | None:
    """Say how token ids differ in meaning; None where they don't."""
    if isinstance(teacher, TextFiles) and isinstance(student, TextFiles):
        return _other_ids(teacher.tokenizer, student.tokenizer)
    if isinstance(teacher, TextConfig) and isinstance(student, TextConfig):
        return None if teacher == student else "its alphabet is another one"
    return "one of them is of characters and the other isn't"


def _other_ids(teacher: Tokenizer, student: Tokenizer) -> str | None:
    if teacher.vocab_size != student.vocab_size:
        return f"it has {teacher.vocab_size} tokens, and the student's {student.vocab_size}"
    if dict(teacher.specials) != dict(student.specials):
        return "its special tokens are others"
    for index in range(student.vocab_size):
        if teacher.token_bytes(index) != student.token_bytes(index):
            return f"its token {index} is another text"
    return None
