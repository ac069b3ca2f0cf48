"""The words that are held out are like those of the training, and none of them."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "reverse.py"


def test_held_out_words_are_new_but_each_letter_is_seen_at_each_place():
    tasks = runpy.run_path(str(EXAMPLE))["tasks"]
    train, held_out = (
        {task.data["word"] for task in tasks(split, 64, 0)} for split in ("train", "eval")
    )
    assert (len(train), len(held_out)) == (56, 8)
    assert not train & held_out
    for place in range(3):
        assert {word[place] for word in train} == set("abcd")
        assert len({word[place] for word in held_out}) > 1
